"""Whether a run may be believed. A figure that measured the client, a cache or a truncated prompt is worse than none.

`reasons` make a run invalid; `notes` are what a reader has to know. The limits are those of the definitions
(docs/handbook/measuring.md): none is there to make a run look better.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ridgeline.measure import metrics
from ridgeline.measure.metrics import percentile
from ridgeline.measure.point import Run

MAX_LOOP_LAG_S = 0.005  # P99 of the client's event loop
MAX_SCHEDULE_LAG = 0.1  # P99 of t_send - t_sched, of the median TTFT
MAX_HIT_RATE = 0.01
LEAST_BEATS = 100  # of the event loop, a second's worth: fewer say nothing about P99
MAX_DEVIATION = 0.05  # of lengths, of the rate, and of Little's law


@dataclass(frozen=True)
class Expected:
    """What a run was meant to be. `header_tokens`: of a template, before the unique line; a cache may hold those."""

    is_cold: bool = True  # prompts share nothing
    has_exact_outputs: bool = True  # the server was told to ignore its end token, and can
    header_tokens: int = 0


def check(run: Run, figures: dict[str, Any], expected: Expected) -> dict[str, Any]:
    """The keys that say whether to believe the others."""
    health = client_health(run)
    reasons = [
        reason
        for reason in (
            _nothing_done(figures),
            _loop_lag(health),
            _schedule_lag(run, figures, health),
            _achieved_rate(run, health),
            _hits(run, expected),
            _prompt_lens(run),
            _output_lens(run) if expected.has_exact_outputs else None,
            _littles_law(run, health),
            _mixed_sources(figures),
        )
        if reason
    ]
    return {"valid": not reasons, "invalid_reasons": reasons, "notes": _notes(run, figures, expected), "client": health}


def client_health(run: Run) -> dict[str, Any]:
    """Seconds, and in-flight requests two ways: counted by the load generator, and rate x mean time (Little)."""
    lags, waits = sorted(run.lags), sorted(metrics.queue_client(record) for record in run.records)
    times = [record.t_end - record.t_send for record in run.records if record.t_end is not None]
    scheduled = max((record.t_sched for record in run.records), default=run.started) - run.started
    sent = max((record.t_send for record in run.records), default=run.started) - run.started
    return {
        "real_time": run.is_real_time,
        "cpu_share": run.cpu_share,
        "loop_lag_p99_s": percentile(lags, 0.99) if len(lags) >= LEAST_BEATS else None,
        "schedule_lag_p99_s": percentile(waits, 0.99) if waits and run.load.is_open else None,
        "offered_rate": len(run.records) / scheduled if run.load.is_open and scheduled > 0 else None,
        "achieved_rate": len(run.records) / sent if run.load.is_open and sent > 0 else None,
        "in_flight_mean": run.mean_in_flight,
        "in_flight_by_littles_law": sum(times) / run.elapsed_s if run.elapsed_s else None,
    }


def _nothing_done(figures: dict[str, Any]) -> str | None:
    if figures["completed"]:
        return None
    kinds = ", ".join(f"{kind} x {count}" for kind, count in figures["errors"].items())
    return f"no request completed ({kinds or 'none was sent'})"


def _loop_lag(health: dict[str, Any]) -> str | None:
    lag = health["loop_lag_p99_s"]
    if lag is None or lag <= MAX_LOOP_LAG_S:
        return None
    return (
        f"the client was late: its event loop lagged {lag * 1e3:.1f} ms at P99, the limit is "
        f"{MAX_LOOP_LAG_S * 1e3:.0f} ms: it needs a core of its own"
        + ("" if health["real_time"] else ", or real-time priority (on Linux: root, or CAP_SYS_NICE)")
    )


def _schedule_lag(run: Run, figures: dict[str, Any], health: dict[str, Any]) -> str | None:
    lag, ttft = health["schedule_lag_p99_s"], figures["ttft_send_s"]["p50"]
    if lag is None or ttft is None or lag <= MAX_SCHEDULE_LAG * ttft:
        return None
    return (
        f"requests were sent {lag * 1e3:.1f} ms after their time at P99, more than {MAX_SCHEDULE_LAG:.0%} of the "
        f"median TTFT of {ttft * 1e3:.1f} ms"
    )


def _achieved_rate(run: Run, health: dict[str, Any]) -> str | None:
    offered, achieved = health["offered_rate"], health["achieved_rate"]
    if offered is None or achieved is None or achieved >= (1 - MAX_DEVIATION) * offered:
        return None
    return f"{achieved:.2f} requests/s were sent, {offered:.2f} were scheduled"


def _hits(run: Run, expected: Expected) -> str | None:
    told = [record for record in run.records if record.cached_tokens is not None and record.prompt_tokens]
    cached = sum(max(0, (record.cached_tokens or 0) - expected.header_tokens) for record in told)
    prompt = sum(record.prompt_tokens or 0 for record in told)
    if not expected.is_cold or cached <= MAX_HIT_RATE * prompt:
        return None
    return (
        f"{cached:,} of {prompt:,} prompt tokens ({cached / prompt:.1%}) came from a prefix cache that was to be "
        "defeated: TTFT measures the cache"
    )


def _prompt_lens(run: Run) -> str | None:
    good = [record for record in run.records if record.ok]
    return _deviation("prompt", [(record.prompt_tokens, record.wanted_prompt_tokens) for record in good])


def _output_lens(run: Run) -> str | None:
    good = [record for record in run.records if record.ok]
    return _deviation("output", [(record.n_out, record.wanted_output_tokens) for record in good])


def _deviation(what: str, pairs: list[tuple[int | None, int | None]]) -> str | None:
    known = [(got, wanted) for got, wanted in pairs if got is not None and wanted is not None]
    if not known:
        return None
    got, wanted = (sum(values) / len(known) for values in zip(*known, strict=True))
    if abs(got - wanted) <= MAX_DEVIATION * wanted:
        return None
    return f"{what} lengths are off: {got:,.1f} tokens on average, {wanted:,.1f} were asked for"


def _littles_law(run: Run, health: dict[str, Any]) -> str | None:
    """Within 5 %, or the lag of a client that is still valid, per request: what very short requests are made of."""
    counted, computed = health["in_flight_mean"], health["in_flight_by_littles_law"]
    if run.is_partial or not counted or computed is None:
        return None
    allowed_s = max(MAX_DEVIATION * counted * run.elapsed_s, MAX_LOOP_LAG_S * len(run.records))
    if abs(computed - counted) * run.elapsed_s <= allowed_s:
        return None
    return f"the books do not balance: {counted:.2f} requests were in flight, rate x time says {computed:.2f}"


def _mixed_sources(figures: dict[str, Any]) -> str | None:
    if figures["token_source"] != "mixed":
        return None
    return "output tokens were counted in different ways for different requests, which cannot be summed"


def _notes(run: Run, figures: dict[str, Any], expected: Expected) -> list[str]:
    notes = []
    if len(run.lags) < LEAST_BEATS:
        notes.append("too short to tell whether the client kept up: a second or more is needed")
    if figures["failed"]:
        notes.append(f"{figures['failed']:,} of {figures['requests']:,} requests failed; they count as missed")
    if figures["partial"]:
        notes.append(f"ended early, with {figures['interrupted']} requests in flight: only finished ones are counted")
    if figures["token_source"] == "chunks":
        notes.append("the server does not count tokens: a chunk is taken for one, which may be wrong")
    if expected.is_cold and figures["completed"] and figures["hit_rate"] is None:
        notes.append("the server does not report cached tokens: that no cache helped is unverified")
    if figures["completed"] and figures["prompt_tokens_mean"] is None:
        notes.append("the server does not report prompt tokens: their number is an estimate")
    if not expected.has_exact_outputs and (short := _output_lens(run)):
        notes.append(short)
    if figures["saturated"]:
        notes.append("over-saturated: the backlog grew, so the percentiles depend on how long the run was")
    if figures["itl_estimated"]:
        notes.append("ITL is estimated: chunks held several tokens, spread by their length of text")
    if expected.header_tokens and figures["cached_tokens"]:
        notes.append(f"hits within the template's header of {expected.header_tokens} tokens are allowed")
    return notes
