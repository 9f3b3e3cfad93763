"""The share of the cores that `benchmarks/busy.py` holds tokens/s against."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def busy():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield importlib.import_module("busy")


@pytest.mark.parametrize(
    ("cores", "threads", "burners", "nice", "share"),
    [
        (2, 2, 0, 0, 1.0),
        (2, 2, 1, 0, 2 / 3),
        (2, 2, 2, 0, 1 / 2),
        (2, 2, 4, 0, 1 / 3),
        (2, 1, 1, 0, 1.0),  # a core for each
        (2, 1, 2, 0, 2 / 3),
        (2, 2, 2, 10, 1 / (1 + 1.25**-10)),
        (4, 2, 2, 10, 1.0),
        (4, 3, 2, 10, 1.0),  # the burners share the fourth core
    ],
)
def test_the_fair_share_goes_by_weight_and_no_thread_has_two_cores(busy, cores, threads, burners, nice, share):
    assert busy.fair_share(cores, threads, busy.Load(burners, nice)) == pytest.approx(share)
