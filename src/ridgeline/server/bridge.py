"""Between the engine's thread and the asyncio loop.

The engine calls a request's sink on its own thread, once per step and request. The bridge collects what one step
produces and wakes the loop once for all of it. A Generation is the loop's side of one API request: its choices run
as separate engine requests and their deltas arrive in one stream of batches.

Invariant: whatever ends a Generation (completion, error, time limit, a client that left, shutdown), no request of it
stays in the engine.
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections.abc import AsyncIterator, Callable

from ridgeline.engine.loop import Engine
from ridgeline.engine.request import Delta, FinishReason, Request, SamplingParams, Sink
from ridgeline.errors import RequestError, RidgelineError
from ridgeline.server.cache import CacheOptions
from ridgeline.server.errors import shutting_down, timed_out


@dataclasses.dataclass(frozen=True)
class Work:
    """What one API request asks of the engine. Choice `i` continues prompt `i // n`."""

    request_id: str
    prompts: list[list[int]]
    params: SamplingParams
    n: int
    priority: int
    arrived_at: float  # time.monotonic()
    cache: CacheOptions

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.n


FinishHook = Callable[["Generation", Delta], None]


class Bridge:
    """Submits work to the engine and brings its deltas to the loop. Lives on the loop's thread, except `_post`."""

    def __init__(self, engine: Engine, *, timeout_s: float, on_finish: FinishHook) -> None:
        self.engine = engine
        self.timeout_s = timeout_s
        self.on_finish = on_finish
        self._loop = asyncio.get_running_loop()
        self._live: set[Generation] = set()
        self._lock = threading.Lock()
        self._outbox: list[tuple[Generation, int, Delta]] = []

    @property
    def num_live(self) -> int:
        """API requests under way."""
        return len(self._live)

    def submit(self, work: Work) -> Generation:
        """Starts `work`, whole or not at all. Raises CapacityError or OverloadedError of the engine."""
        generation = Generation(self, work)
        self._live.add(generation)
        try:
            generation.start()
        except BaseException:
            generation.close()
            raise
        return generation

    def fail_all(self, error: RidgelineError) -> None:
        for generation in list(self._live):
            generation.fail(error)

    def forget(self, generation: Generation) -> None:
        self._live.discard(generation)

    def sink(self, generation: Generation, index: int) -> Sink:
        return lambda delta: self._post(generation, index, delta)

    def call_at_limit(self, arrived_at: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(arrived_at + self.timeout_s - time.monotonic(), callback)

    def _post(self, generation: Generation, index: int, delta: Delta) -> None:
        """On the engine's thread."""
        with self._lock:
            self._outbox.append((generation, index, delta))
            if len(self._outbox) > 1:
                return  # the loop is already being woken
        self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        with self._lock:
            arrived, self._outbox = self._outbox, []
        for generation, index, delta in arrived:
            generation.receive(index, delta)


class Generation:
    """The choices of one API request, from submission to the last delta."""

    def __init__(self, bridge: Bridge, work: Work) -> None:
        self.work = work
        self.submitted_at = time.monotonic()
        self._bridge = bridge
        self._running: set[int] = set()  # choices submitted and not finished
        self._arrived: list[tuple[int, Delta]] = []
        self._error: RidgelineError | None = None
        self._wake = asyncio.Event()
        self._limit = bridge.call_at_limit(work.arrived_at, lambda: self.fail(timed_out(bridge.timeout_s)))

    @property
    def prepare_s(self) -> float:
        return self.submitted_at - self.work.arrived_at

    def start(self) -> None:
        work = self.work
        for index in range(work.num_choices):
            request = Request(
                id=self._engine_id(index),
                prompt_ids=list(work.prompts[index // work.n]),
                params=work.params,
                sink=self._bridge.sink(self, index),
                priority=work.priority,
                choice=index % work.n,
                cache_salt=work.cache.salt,
                cache_ttl_s=work.cache.ttl_s,
                cache_memory_only=work.cache.memory_only,
                explain_cache=work.cache.explain,
            )
            try:
                self._bridge.engine.submit(request)
            except RequestError as error:
                if len(work.prompts) > 1:
                    raise error.of_entry(index // work.n) from None
                raise
            self._running.add(index)

    async def batches(self) -> AsyncIterator[list[tuple[int, Delta]]]:
        """Deltas as (choice, delta), all that have arrived at once. Raises what stopped the generation early."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            arrived, self._arrived = self._arrived, []
            if arrived:
                yield arrived
            if self._error is not None:
                raise self._error
            if not self._running and not self._arrived:
                return

    def receive(self, index: int, delta: Delta) -> None:
        """Takes a delta from the bridge. Those of a request that was given up still count in the metrics."""
        reason = delta.finish_reason
        if reason is not None:
            self._running.discard(index)
            self._bridge.on_finish(self, delta)
        if reason in (FinishReason.ERROR, FinishReason.ABORT):
            self.fail(delta.error or shutting_down())  # nobody but a shutdown aborts what still has a client
        elif self._error is None:
            self._arrived.append((index, delta))
        self._wake.set()

    def fail(self, error: RidgelineError) -> None:
        """Ends the generation with `error`, unless it has ended: what runs is aborted now, the reader is told next."""
        if self._error is None:
            self._error = error
            self.close()
            self._wake.set()

    def close(self) -> None:
        """Gives up what is still running. Idempotent."""
        self._limit.cancel()
        self._bridge.forget(self)
        for index in self._running:
            self._bridge.engine.abort(self._engine_id(index))
        self._running = set()

    def _engine_id(self, index: int) -> str:
        return f"{self.work.request_id}-{index}"
