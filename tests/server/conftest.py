from __future__ import annotations

from collections.abc import Iterator

import pytest

from scripted_server import LiveServer, Start, serving


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    """One server for the tests of a module, which leave it as they found it."""
    with serving() as start:
        yield start()


@pytest.fixture
def start() -> Iterator[Start]:
    with serving() as start:
        yield start
