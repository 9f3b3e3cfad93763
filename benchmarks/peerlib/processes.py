"""Processes that a run starts end with it: after an error, Ctrl-C and SIGTERM too."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from types import FrameType
from typing import Any, NoReturn

import psutil

_PATIENCE_S = 30.0


def end_on_sigterm() -> None:
    """SIGTERM unwinds the stack as Ctrl-C does, where by default it would leave behind all that was started."""
    signal.signal(signal.SIGTERM, _end)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not interrupt the stopping
    raise SystemExit(128 + number)


def stop(process: subprocess.Popen[Any]) -> None:
    """Ends a process and its children: at once when it does not end by itself, or when somebody is impatient."""
    family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    process.terminate()
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE_S)
    finally:
        process.kill()  # does nothing to one that has ended
        process.wait()
        for child in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
