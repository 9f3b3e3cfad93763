"""The load test: points, one after the other, each with its own prompts, its own warm-up and its own books.

    fit the prompts' lengths -> per point: predict, warm up, load, tabulate, judge

What a point is measured with is decided before it starts, from the seed and the point's place in the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any

from ridgeline.errors import ConfigError
from ridgeline.measure import load as loading
from ridgeline.measure import validity
from ridgeline.measure.arrivals import arrival_times, num_arrivals
from ridgeline.measure.capacity import Capacity, find_capacity
from ridgeline.measure.client import Client
from ridgeline.measure.events import Record
from ridgeline.measure.point import Load, Run, table
from ridgeline.measure.slo import Slo
from ridgeline.measure.workloads import Session, TokenRate, Workload, Writer, fit_token_rate, longest

_WARM_UP_TOKENS = 16
_REQUESTS_PER_WORKER = 8
_LEAST_REQUESTS = 32
_SLACK_TOKENS = 64  # by which a prompt may exceed its length: templates, and words of another number of tokens

Predict = Callable[[Load], dict[str, Any]]


@dataclass(frozen=True)
class Settings:
    """`num_requests` and `duration_s` limit each point; both None: enough for a first look. Sessions of a trace replace
    the workload."""

    loads: tuple[Load, ...]  # one point each
    workload: Workload = field(default_factory=Workload)
    trace: tuple[Session, ...] = ()
    num_requests: int | None = None
    duration_s: float | None = None
    arrivals: str = "poisson"
    burstiness: float = 1.0
    seed: int = 0
    slo: Slo | None = None
    chat: bool = False
    seeks_capacity: bool = False  # the highest rate that meets `slo`, from the first load's rate
    loaded_context: int | None = None  # the `num_ctx` that Ollama runs the model with now

    @property
    def is_cold(self) -> bool:
        return not self.workload.shares and not any(session.shared for session in self.trace)


@dataclass
class Progress:
    """Of the point that runs, for whoever watches."""

    load: Load | None = None
    total: int | None = None  # requests; None: limited by time
    records: list[Record] = field(default_factory=list)
    watch: loading.Watch | None = None


class Bench:
    """One run. `points` fills as it goes; `stop()` ends it with what was measured."""

    def __init__(
        self, client: Client, settings: Settings, *, predict: Predict, on_point: Callable[[dict[str, Any]], None]
    ) -> None:
        self.client, self.settings = client, settings
        self.points: list[dict[str, Any]] = []
        self.runs: list[Run] = []
        self.progress = Progress()
        self.rate = TokenRate()
        self.is_stopped = False
        self.capacity: Capacity | None = None
        self._predict, self._on_point = predict, on_point
        self._running: asyncio.Task[None] | None = None
        self._num_interrupted = 0
        self._rng = random.SystemRandom()
        self._num_ctx: int | None = None

    def stop(self) -> None:
        """The point that is being measured becomes a partial one; what is in flight is cut off."""
        self.is_stopped = True
        if self.progress.watch is not None:
            self._num_interrupted = self.progress.watch.now_in_flight
        if self._running is not None:
            self._running.cancel()

    async def run(self) -> None:
        """Raises ConfigError when the server does not even answer a small request, or the context is too short."""
        self._running = asyncio.create_task(self._all_points())
        try:
            await self._running
        except asyncio.CancelledError:
            if not self.is_stopped:
                raise

    async def _all_points(self) -> None:
        await self.prepare()
        if self.settings.seeks_capacity:
            self.capacity = await find_capacity(self._meets, self.settings.loads[0].rate or 1.0)
            return
        for load in self.settings.loads:
            if not self.is_stopped:
                await self.measure(load)

    async def _meets(self, rate: float) -> bool:
        point = await self.measure(Load("open", rate=rate))
        if self.is_stopped:
            raise asyncio.CancelledError
        return bool(self.settings.slo and point["attainment"] >= self.settings.slo.target)

    async def prepare(self) -> None:
        context, needed = self.client.endpoint.context_len, longest(self._sessions(1_000))
        if context is not None and needed > context:
            raise ConfigError(
                f"requests of up to {needed:,} tokens are wanted, the server's context is {context:,}",
                hint="choose a smaller --input or --output",
            )
        self._num_ctx = self.client.endpoint.num_ctx(needed + _SLACK_TOKENS, self.settings.loaded_context)
        self.rate = await fit_token_rate(self.client, chat=self.settings.chat, num_ctx=self._num_ctx)

    async def measure(self, load: Load) -> dict[str, Any]:
        """One point; also kept in `points` and `runs`."""
        predicted = self._predict(load)
        await self._warm_up(load)
        run = await self._load(load)
        figures = table(run, self.settings.slo)
        point = figures | {"predicted": predicted} | validity.check(run, figures, self._expected())
        self.runs.append(run)
        self.points.append(point)
        self._on_point(point)
        return point

    def _expected(self) -> validity.Expected:
        can_ignore_eos = self.client.endpoint.capabilities.ignore_eos
        return validity.Expected(
            is_cold=self.settings.is_cold,
            has_exact_outputs=can_ignore_eos and self.settings.workload.has_exact_outputs,
            header_tokens=max(0, round(self.rate.overhead)) if self.settings.chat and self.rate.is_known else 0,
        )

    def _writer(self) -> Writer:
        """Lengths and times are the same at every point and follow from the seed; texts never are, or a server that was
        measured before would have them in its cache."""
        return Writer(
            self.rate,
            chat=self.settings.chat,
            seed=self._rng.getrandbits(64),
            ignore_eos=self.settings.workload.has_exact_outputs,
            cache=not self.settings.is_cold,
            num_ctx=self._num_ctx,
        )

    def _sessions(self, count: int) -> list[Session]:
        if self.settings.trace:
            limit = self.settings.num_requests
            return list(self.settings.trace[:limit])
        return self.settings.workload.sessions(count, self.settings.seed)

    async def _warm_up(self, load: Load) -> None:
        """As many at once as the point will have, of its first shapes, with prompts that are not measured."""
        writer = self._writer()
        sessions = self._sessions(load.concurrency or 2)[: load.concurrency or 2]
        shorter = [replace(s, output_len=min(_WARM_UP_TOKENS, s.output_len), shared=()) for s in sessions]
        await asyncio.gather(*(self.client.stream(writer.first(session)) for session in shorter))

    async def _load(self, load: Load) -> Run:
        clock = self.client.clock
        count = self._count(load)
        sessions = self._sessions(count or _LEAST_REQUESTS)
        watch, records = loading.Watch(clock), list[Record]()
        total = None if count is None else sum(session.num_turns for session in sessions)
        self.progress = Progress(load, total, records, watch)
        writer = self._writer()
        rounds = [sessions] if count is not None else repeat(sessions)
        jobs = (self._job(session, writer, watch, records) for round_ in rounds for session in round_)
        ready = jobs if count is None else iter(list(jobs))  # written before the clock runs, where they are counted
        async with _no_old_garbage(), watch.beating():
            started = clock()
            try:
                await self._dispatch(load, ready, sessions, started)
            except asyncio.CancelledError:
                if not self.is_stopped:
                    raise
        return Run(
            load=load,
            records=records,
            started=started,
            lags=watch.lags,
            mean_in_flight=watch.mean_in_flight,
            elapsed_s=watch.elapsed_s,
            cpu_share=watch.cpu_share,
            is_real_time=watch.is_real_time,
            is_partial=self.is_stopped,
            num_interrupted=self._num_interrupted,
        )

    def _count(self, load: Load) -> int | None:
        """Sessions of a point; None: as many as fit in the time."""
        settings = self.settings
        if settings.trace:
            return len(self._sessions(0))
        if settings.num_requests is not None:
            return max(1, settings.num_requests // self._turns)
        if settings.duration_s is None:
            return max(_LEAST_REQUESTS, _REQUESTS_PER_WORKER * (load.concurrency or 1))
        return num_arrivals(load.rate, settings.duration_s) if load.rate else None

    @property
    def _turns(self) -> int:
        return self.settings.workload.num_turns if self.settings.workload.name == "chat" else 1

    async def _dispatch(
        self, load: Load, jobs: Iterator[loading.Job], sessions: Sequence[Session], started: float
    ) -> None:
        clock, settings = self.client.clock, self.settings
        until = None if settings.duration_s is None else started + settings.duration_s
        if load.kind == "closed":
            await loading.closed_loop(jobs, load.concurrency or 1, clock=clock, until=until)
        elif load.kind == "barrier":
            await loading.barrier(jobs, load.concurrency or 1, clock=clock, until=until)
        else:
            await loading.open_loop(jobs, [started + time for time in self._times(load, sessions)], clock=clock)

    def _times(self, load: Load, sessions: Sequence[Session]) -> list[float]:
        if load.kind == "trace":
            return [session.time or 0.0 for session in sessions]
        settings = self.settings
        return arrival_times(
            settings.arrivals, load.rate or 0.0, len(sessions), seed=settings.seed, burstiness=settings.burstiness
        )

    def _job(
        self, session: Session, writer: Writer, watch: loading.Watch, records: list[Record]
    ) -> Callable[[float | None], Awaitable[None]]:
        request = writer.first(session)

        async def job(t_sched: float | None) -> None:
            turn, scheduled = request, t_sched
            for left in reversed(range(session.num_turns)):
                with watch.request():
                    record = await self.client.stream(turn, t_sched=scheduled, index=len(records))
                records.append(record)
                if not left or not record.ok:
                    return
                turn, scheduled = writer.next_turn(session, turn, record.text), None

        return job


@contextlib.asynccontextmanager
async def _no_old_garbage() -> AsyncIterator[None]:
    """No collection looks at what is already there: that would stop the client for milliseconds."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
