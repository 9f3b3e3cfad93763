"""Real-time priority lasts as long as it was asked for, is not inherited, and is done without where it is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from ridgeline.measure.priority import real_time

linux = pytest.mark.skipif(not hasattr(os, "sched_getscheduler"), reason="no such call on this system")


@linux
def test_it_ends_with_the_block_and_is_not_inherited() -> None:
    before = os.sched_getscheduler(0)
    with real_time() as granted:
        within = os.sched_getscheduler(0)
        ask = [sys.executable, "-c", "import os; print(os.sched_getscheduler(0))"]
        inherited = int(subprocess.run(ask, capture_output=True, text=True, check=True).stdout)
    assert within == (os.SCHED_RR | os.SCHED_RESET_ON_FORK if granted else before)
    assert inherited == os.SCHED_OTHER
    assert os.sched_getscheduler(0) == before


@linux
def test_a_refusal_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with real_time() as granted:
        assert not granted


def test_a_system_that_does_not_know_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_setscheduler", raising=False)
    with real_time() as granted:
        assert not granted
