"""An event loop in which waiting takes no time: its clock jumps to the next timer when nothing else is to be done."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._select = self._selector.select
        self._selector.select = self._jump  # type: ignore[method-assign]

    def time(self) -> float:
        return self._now

    def _jump(self, timeout: float | None = None) -> Any:
        events = self._select(0 if timeout is not None else None)
        if not events and timeout:
            self._now += timeout
        return events


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs it in virtual time, from 0."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(coroutine)


def now() -> float:
    return asyncio.get_running_loop().time()
