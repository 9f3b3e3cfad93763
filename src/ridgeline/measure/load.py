"""When the next request may start: that is all that tells load patterns apart.

- closed loop: N workers, each takes the next job when its last one has ended;
- open loop: at times that were fixed before, whatever is still in flight;
- barrier: N together, the next N when the last of them has ended: what static batching does to its users.

A job is one request, or one conversation, told when it was meant to start (None: now). `Watch` keeps an account of its
own beside the records: requests in flight over time, and how late the event loop was.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

from ridgeline.measure.priority import real_time

Clock = Callable[[], float]
Job = Callable[[float | None], Awaitable[None]]

_BEAT_S = 0.01


async def closed_loop(jobs: Iterable[Job], workers: int, *, clock: Clock, until: float | None = None) -> None:
    """Until the jobs run out or the clock shows `until`; what runs then is finished."""
    waiting = iter(jobs)

    async def work() -> None:
        while until is None or clock() < until:
            job = next(waiting, None)
            if job is None:
                return
            await job(None)

    async with asyncio.TaskGroup() as group:
        for _ in range(workers):
            group.create_task(work())


async def open_loop(jobs: Iterable[Job], times: Sequence[float], *, clock: Clock) -> None:
    """Job i at `times[i]` of the clock, ascending; returns when all have ended."""
    async with asyncio.TaskGroup() as group:
        for job, time in zip(jobs, times, strict=False):
            while (wait := time - clock()) > 0:  # a timer may ring a millisecond early: nobody is served before he asks
                await asyncio.sleep(wait)
            group.create_task(_awaited(job, time))


async def barrier(jobs: Iterable[Job], size: int, *, clock: Clock, until: float | None = None) -> None:
    waiting: Iterator[Job] = iter(jobs)
    while until is None or clock() < until:
        batch = [job for _, job in zip(range(size), waiting, strict=False)]
        if not batch:
            return
        async with asyncio.TaskGroup() as group:
            for job in batch:
                group.create_task(_awaited(job, None))


async def _awaited(job: Job, time: float | None) -> None:
    await job(time)


class Watch:
    """`lags`: seconds by which a timer of the event loop was late, a hundred times a second. `cpu_share`: of one core,
    what this thread computed while it beat."""

    def __init__(self, clock: Clock) -> None:
        self.lags: list[float] = []
        self.now_in_flight = 0
        self.is_real_time = False
        self.cpu_share = 0.0
        self._clock = clock
        self._area = 0.0  # requests x seconds
        self._started = self._changed = clock()

    @contextmanager
    def request(self) -> Iterator[None]:
        self._change(1)
        try:
            yield
        finally:
            self._change(-1)

    @property
    def mean_in_flight(self) -> float:
        """From the first request's start to the last one's end."""
        elapsed = self._changed - self._started
        return self._area / elapsed if elapsed else 0.0

    @property
    def elapsed_s(self) -> float:
        return self._changed - self._started

    @asynccontextmanager
    async def beating(self) -> AsyncIterator[Watch]:
        beat = asyncio.create_task(self._beat())
        started, computed = time.perf_counter(), time.thread_time()
        try:
            with real_time() as self.is_real_time:
                yield self
        finally:
            self.cpu_share = (time.thread_time() - computed) / (time.perf_counter() - started)
            beat.cancel()

    def _change(self, by: int) -> None:
        now = self._clock()
        if self.now_in_flight == 0 and not self._area:
            self._started = now
        else:
            self._area += self.now_in_flight * (now - self._changed)
        self._changed = now
        self.now_in_flight += by

    async def _beat(self) -> None:
        while True:
            before = self._clock()
            await asyncio.sleep(_BEAT_S)
            self.lags.append(self._clock() - before - _BEAT_S)
