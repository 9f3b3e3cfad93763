"""Counters of an engine, and the snapshot that others read.

Totals only ever grow. Histograms are the server's: it gets each request's RequestMetrics with the last Delta.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ridgeline.engine.request import FinishReason, Request, RequestMetrics
from ridgeline.engine.scheduler import Scheduler

_MAX_CHANGE = 10.0  # of a request's time from the average so far


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Each figure is exact; together they are of about the same moment."""

    num_running: int
    num_waiting: int  # preempted ones too
    num_pages: int  # the null page left out
    num_pages_free: int
    num_pages_held: int  # by running requests, shared ones once
    num_pages_cached: int  # kept for later requests; handed out when space is needed
    num_steps: int
    num_failed_steps: int
    num_preemptions: int
    num_prompt_tokens: int  # of requests that got as far as their first token; computed + cached + loaded, each once
    num_prompt_tokens_computed: int
    num_prompt_tokens_cached: int  # found in memory, in whole pages or in one that was copied
    num_prompt_tokens_loaded: int  # found in the tier below
    num_output_tokens: int
    last_step_tokens: int
    last_step_s: float
    total_step_s: float
    last_step_age_s: float | None  # since the last step finished; None: none has
    slots_used: int  # tokens sampled
    slots_total: int  # places in the batch that could have sampled one
    finished: dict[str, int]  # by finish reason
    num_pages_published: int  # put into the prefix cache
    pages_removed: dict[str, int]  # from the prefix cache, by reason: space, expired, flushed

    @property
    def page_use(self) -> float:
        """Share of the KV pages that is held, 0 to 1."""
        return self.num_pages_held / self.num_pages


@dataclass(slots=True)
class Counters:
    """Written by the engine's thread alone."""

    num_steps: int = 0
    num_failed_steps: int = 0
    num_prompt_tokens: int = 0
    num_prompt_tokens_cached: int = 0
    num_prompt_tokens_loaded: int = 0
    num_output_tokens: int = 0
    last_step_tokens: int = 0
    last_step_s: float = 0.0
    total_step_s: float = 0.0
    last_step_end_s: float | None = None
    slots_used: int = 0
    slots_total: int = 0
    finished: dict[FinishReason, int] = field(default_factory=lambda: dict.fromkeys(FinishReason, 0))
    run_s: float = 1.0  # moving average of the time from a request's start to its end

    def on_step(self, *, num_tokens: int, start_s: float, end_s: float) -> None:
        self.num_steps += 1
        self.last_step_tokens = num_tokens
        self.last_step_s = end_s - start_s
        self.total_step_s += self.last_step_s
        self.last_step_end_s = end_s

    def on_token(self, request: Request) -> None:
        self.num_output_tokens += 1
        if len(request.output_ids) == 1:
            self.num_prompt_tokens += len(request.prompt_ids)
            self.num_prompt_tokens_cached += request.num_cached_tokens + request.num_copied_tokens
            self.num_prompt_tokens_loaded += request.num_loaded_tokens

    def on_samples(self, num_samples: int, num_places: int) -> None:
        """A step that samples nothing, because it only prefills, has no slots to use."""
        if num_samples:
            self.slots_used += num_samples
            self.slots_total += num_places

    def on_end(self, reason: FinishReason, metrics: RequestMetrics) -> None:
        self.finished[reason] += 1
        run_s = min(metrics.e2e_s - metrics.queue_s, _MAX_CHANGE * self.run_s)  # it may have been stopped meanwhile
        self.run_s += 0.1 * (run_s - self.run_s)


def snapshot(counters: Counters, scheduler: Scheduler, *, num_submitted: int, now: float) -> EngineStats:
    """`num_submitted` requests have not reached the scheduler yet. From any thread."""
    pool = scheduler.cache.pool
    cache = scheduler.cache.counters
    num_reused = counters.num_prompt_tokens_cached + counters.num_prompt_tokens_loaded
    last_end_s = counters.last_step_end_s
    return EngineStats(
        num_running=len(scheduler.running),
        num_waiting=len(scheduler.waiting) + num_submitted,
        num_pages=pool.num_usable,
        num_pages_free=pool.num_free,
        num_pages_held=pool.num_held,
        num_pages_cached=pool.num_cached,
        num_steps=counters.num_steps,
        num_failed_steps=counters.num_failed_steps,
        num_preemptions=scheduler.num_preemptions,
        num_prompt_tokens=counters.num_prompt_tokens,
        num_prompt_tokens_computed=counters.num_prompt_tokens - num_reused,
        num_prompt_tokens_cached=counters.num_prompt_tokens_cached,
        num_prompt_tokens_loaded=counters.num_prompt_tokens_loaded,
        num_output_tokens=counters.num_output_tokens,
        last_step_tokens=counters.last_step_tokens,
        last_step_s=counters.last_step_s,
        total_step_s=counters.total_step_s,
        last_step_age_s=None if last_end_s is None else now - last_end_s,
        slots_used=counters.slots_used,
        slots_total=counters.slots_total,
        finished={str(reason): count for reason, count in counters.finished.items()},
        num_pages_published=cache.num_published,
        pages_removed={
            "space": cache.num_evicted_for_space,
            "expired": cache.num_expired,
            "flushed": cache.num_flushed,
        },
    )
