import sys
import types

import pytest

from ridgeline.cost.bandwidth import read_bandwidth
from ridgeline.cost.cores import usable_cores


@pytest.fixture
def asked(monkeypatch):
    """What the native module was asked for, instead of a second of reading memory."""
    calls = []
    fake = types.SimpleNamespace(read_bandwidth=lambda *arguments: calls.append(arguments) or 12.5e9)
    monkeypatch.setitem(sys.modules, "ridgeline._native", fake)
    monkeypatch.setattr("ridgeline._native", fake, raising=False)
    return calls


def test_the_working_set_is_what_is_read(asked):
    assert read_bandwidth(270_000_000, threads=2, seconds=0.5) == 12.5e9
    assert asked == [(270_000_000, 2, 0.5)]


def test_tiny_working_sets_are_read_as_one_mebibyte_by_all_cores(asked):
    read_bandwidth(1000)
    assert asked == [(1 << 20, usable_cores(), 1.0)]
