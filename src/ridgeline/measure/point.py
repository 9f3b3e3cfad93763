"""One measured point: records of one load, as the table that `bench` prints and stores.

Headline throughput is that of the steady-state window, the whole run's beside it; barrier runs have no steady state,
so theirs is the whole run's. In open loop the headline TTFT and E2E count from the scheduled time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ridgeline.measure import metrics
from ridgeline.measure.events import Record
from ridgeline.measure.metrics import defined, pooled, summarize
from ridgeline.measure.slo import Slo, verdict
from ridgeline.measure.throughput import (
    Window,
    is_saturated,
    output_tokens_in,
    prompt_tokens_in,
    started_in,
    steady_window,
    whole_run,
)

_PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_SLOWEST = 0.01  # of the requests, whose time is told part by part


@dataclass(frozen=True)
class Load:
    """`concurrency` for closed loop and barrier, `rate` (requests per second) for open loop; a trace has neither."""

    kind: Literal["closed", "open", "trace", "barrier"]
    concurrency: int | None = None
    rate: float | None = None
    scheduler: str | None = None  # of a server that we started

    @property
    def has_steady_state(self) -> bool:
        """Static batching has none: throughput is the whole run's."""
        return self.kind != "barrier" and self.scheduler != "static"

    @property
    def is_open(self) -> bool:
        return self.kind in ("open", "trace")

    @property
    def name(self) -> str:
        if self.rate is not None:
            return f"{self.rate:g} requests/s"
        if self.kind == "trace":
            return "trace"
        name = f"{self.concurrency} at once" + ", all awaited" * (self.kind == "barrier")
        return f"{name}, {self.scheduler}" if self.scheduler else name


@dataclass
class Run:
    """What one load left behind. `started` is on the clock of the records; `lags` and `mean_in_flight` are the load
    generator's own account (`load.Watch`)."""

    load: Load
    records: list[Record]
    started: float
    lags: list[float] = field(default_factory=list)
    mean_in_flight: float = 0.0
    elapsed_s: float = 0.0  # first request's start to last one's end, by the same account
    cpu_share: float | None = None  # of one core, the client's own work
    is_real_time: bool = False  # the client's priority: on time whatever else the machine computes
    is_partial: bool = False
    num_interrupted: int = 0  # in flight when the run was ended early; not among the records


def table(run: Run, slo: Slo | None) -> dict[str, Any]:
    """The figures of a run, under the keys that programs rely on. Whether they mean anything, `validity.py` says."""
    records, load = run.records, run.load
    good = [record for record in records if record.ok]
    whole, window = whole_run(records), measuring_window(run)
    headline = window if load.has_steady_state else whole
    figures: dict[str, Any] = {
        "load": load.kind,
        "concurrency": load.concurrency,
        "rate": load.rate,
        "scheduler": load.scheduler,
        "requests": len(records),
        "completed": len(good),
        "failed": len(records) - len(good),
        "errors": dict(Counter(record.error.kind for record in records if record.error)),
        "partial": run.is_partial,
        "interrupted": run.num_interrupted,
        "duration_s": whole.length if whole else None,
        "window_s": window.length if window else None,
        "output_tokens_per_s": _per_second(records, headline, output_tokens_in),
        "output_tokens_per_s_whole_run": _per_second(records, whole, output_tokens_in),
        "prefill_tokens_per_s": _per_second(records, headline, prompt_tokens_in),
        "requests_per_s": _per_second(good, whole, lambda some, _: len(some)),
        "queue_client_s": summarize(metrics.queue_client(record) for record in records),
        **_latencies(good, is_open=load.is_open),
    }
    figures["low_samples"] = _low_samples(figures)
    figures |= _lengths(good) | _goodput(records, window, slo)
    figures["saturated"] = is_saturated(records, window) if load.is_open and window else None
    figures["slowest"] = _slowest(good)
    return figures


def _latencies(good: Sequence[Record], *, is_open: bool) -> dict[str, Any]:
    """Of successful requests, in seconds."""
    values = {
        "ttft_s": defined(metrics.ttft_sched if is_open else metrics.ttft, good),
        "ttft_send_s": defined(metrics.ttft, good),
        "ttfa_s": defined(metrics.ttfa, good),
        "tpot_s": defined(metrics.tpot, good),
        "itl_s": pooled(metrics.itls, good),
        "chunk_gap_s": pooled(metrics.chunk_gaps, good),
        "longest_gap_s": defined(metrics.longest_gap, good),
        "e2e_s": defined(metrics.e2e_sched if is_open else metrics.e2e, good),
        "norm_latency_s": defined(metrics.norm_latency, good),
    }
    return {
        **{name: summarize(some) for name, some in values.items()},
        "intervals": {name: _intervals(values[name]) for name in ("ttft_s", "tpot_s", "e2e_s")},
        "itl_estimated": any(record.counts_estimated for record in good),
        "load_s": max(defined(lambda record: record.load_s, good), default=None),
    }


def measuring_window(run: Run) -> Window | None:
    """Steady state in closed loop, start to last dispatch in open loop; the whole run where neither exists."""
    if not run.records or not run.load.has_steady_state:
        return whole_run(run.records)
    if run.load.is_open:
        window = Window(run.started, max(record.t_sched for record in run.records))
        return window if window.length > 0 else whole_run(run.records)
    return steady_window(run.records, run.load.concurrency or 1) or whole_run(run.records)


def _per_second(records: Sequence[Record], window: Window | None, count: Any) -> float | None:
    return count(records, window) / window.length if window and window.length > 0 else None


def _intervals(values: list[float]) -> dict[str, tuple[float, float] | None]:
    """Of each percentile, at 95 %; None where there are too few samples."""
    return {name: metrics.interval(values, share) for name, share in _PERCENTILES.items()}


def _low_samples(figures: dict[str, Any]) -> list[str]:
    """The percentiles that rest on too few samples, as `ttft_s.p99`."""
    return [
        f"{name}.{percentile}"
        for name in ("ttft_s", "ttft_send_s", "tpot_s", "itl_s", "chunk_gap_s", "e2e_s")
        for percentile, share in _PERCENTILES.items()
        if figures[name]["count"] < metrics.samples_needed(share)
    ]


def _lengths(good: Sequence[Record]) -> dict[str, Any]:
    """Tokens: asked for, and reported. Sources of output counts are never mixed: `mixed` is no valid run."""
    sources = {record.token_source for record in good if record.token_source}
    prompts = [record for record in good if record.prompt_tokens is not None]
    told = [record for record in prompts if record.cached_tokens is not None]
    return {
        "token_source": sources.pop() if len(sources) == 1 else "mixed" if sources else None,
        "output_tokens": sum(record.n_out or 0 for record in good),
        "output_tokens_mean": _mean([record.n_out for record in good]),
        "output_tokens_wanted_mean": _mean([record.wanted_output_tokens for record in good]),
        "prompt_tokens": sum(record.prompt_tokens or 0 for record in prompts) if prompts else None,
        "prompt_tokens_mean": _mean([record.prompt_tokens for record in good]),
        "prompt_tokens_wanted_mean": _mean([record.wanted_prompt_tokens for record in good]),
        "cached_tokens": sum(record.cached_tokens or 0 for record in told) if told else None,
        "hit_rate": _share([record.cached_tokens for record in told], [record.prompt_tokens for record in told]),
        "reasoning_tokens": sum(record.reasoning_tokens or 0 for record in good),
    }


def _goodput(records: Sequence[Record], window: Window | None, slo: Slo | None) -> dict[str, Any]:
    if slo is None:
        return {"goodput_rps": None, "attainment": None, "slo": None}
    started = started_in(records, window) if window else list(records)
    met = [record for record in started if slo.is_met(record)]
    judged = verdict(len(started), len(started) - len(met), slo.target)
    return {
        "goodput_rps": len(met) / window.length if window and window.length > 0 else 0.0,
        "goodput_tokens_per_s": sum(record.n_out or 0 for record in met) / window.length if window else 0.0,
        "attainment": len(met) / len(started) if started else 0.0,
        "slo": {
            "limits_s": slo.limits,
            "target": slo.target,
            "counted": len(started),
            "misses": slo.misses(started),
            "verdict": judged.result,
            "more_requests": judged.more_requests,
        },
    }


def _slowest(good: Sequence[Record]) -> list[dict[str, Any]]:
    """The slowest 1 % (at least one) with the server's own account of where their time went, if it gives one."""
    ordered = sorted(good, key=lambda record: metrics.e2e(record) or 0.0, reverse=True)
    return [
        {"index": record.index, "e2e_s": metrics.e2e(record), "ttft_s": metrics.ttft(record), "server": record.server}
        for record in ordered[: max(1, round(_SLOWEST * len(ordered)))]
    ]


def _mean(values: Sequence[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _share(parts: Sequence[int | None], wholes: Sequence[int | None]) -> float | None:
    whole = sum(value or 0 for value in wholes)
    return sum(value or 0 for value in parts) / whole if whole else None
