"""Limits that a user sets, and what a run says about them.

A request is good when it succeeded and met every limit. Goodput is good requests per second of the window, attainment
their share of all requests that started in it: failures count as missed. Where requests have scheduled times, TTFT and
E2E count from there.

`verdict` is the early-stopping test of MLPerf's load generator: a run passes (fails) only when a server that just
misses (just meets) the target would show such a result with a probability below 1 - confidence; between the two it is
undecided, and the test says how many more requests without a further miss would pass. 459 requests without a miss pass
a target of 0.99 at confidence 0.99.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from ridgeline.config import nearest
from ridgeline.errors import ConfigError
from ridgeline.measure import metrics
from ridgeline.measure.events import Record
from ridgeline.units import parse_duration

CONFIDENCE = 0.99
_MOST_REQUESTS = 1_000_000  # beyond this nobody waits for a verdict
_METRICS: dict[str, Callable[[Record], float | None]] = {
    "ttft": metrics.ttft_sched,
    "tpot": metrics.tpot,
    "e2e": metrics.e2e_sched,
    "gap": metrics.longest_gap,
}


@dataclass(frozen=True)
class Slo:
    """`limits`: seconds by name (ttft, tpot, e2e, gap: the longest pause in a stream). `target`: the share of requests
    that must meet them all."""

    limits: dict[str, float]
    target: float = 0.9

    def is_met(self, record: Record) -> bool:
        """An undefined TPOT or gap (an answer of one token) is no miss."""
        if not record.ok or record.t_1 is None:
            return False
        values = ((_METRICS[name](record), limit) for name, limit in self.limits.items())
        return all(value is None or value <= limit for value, limit in values)

    def misses(self, records: Sequence[Record]) -> dict[str, int]:
        """How many requests missed each limit; `failed` for those that failed. One may count for several."""
        counts = {"failed": sum(not record.ok for record in records)}
        for name, limit in self.limits.items():
            values = [_METRICS[name](record) for record in records if record.ok]
            counts[name] = sum(value is not None and value > limit for value in values)
        return counts


@dataclass(frozen=True)
class Verdict:
    """`more_requests`: without a further miss, so many more would pass; 0 when decided, None when out of reach."""

    result: Literal["pass", "fail", "undecided"]
    more_requests: int | None = 0


def parse_slo(text: str, target: float = 0.9) -> Slo:
    """`ttft=1s,tpot=50ms`. Raises ConfigError."""
    limits = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or name not in _METRICS:
            known = list(_METRICS)
            raise ConfigError(f"--slo {part!r}", hint=f"{nearest(name, known)}; write it as ttft=1s,tpot=50ms")
        limits[name] = parse_duration(value)
    if not 0 < target < 1:
        raise ConfigError(f"an attainment of {target:g}", hint="a share above 0 and below 1, as in 0.9")
    return Slo(limits, target)


def verdict(num_requests: int, num_misses: int, target: float, confidence: float = CONFIDENCE) -> Verdict:
    """Of independent requests. `num_misses` of `num_requests` missed."""
    doubt, miss_rate = 1 - confidence, 1 - target
    if num_requests and _at_most(num_misses, num_requests, miss_rate) <= doubt:
        return Verdict("pass")
    if num_misses and 1 - _at_most(num_misses - 1, num_requests, miss_rate) <= doubt:
        return Verdict("fail")
    return Verdict("undecided", _more(num_requests, num_misses, miss_rate, doubt))


def _more(num_requests: int, num_misses: int, miss_rate: float, doubt: float) -> int | None:
    """By bisection: with the misses fixed, the probability falls as requests are added."""
    low, high = num_requests, max(1, 2 * num_requests)
    while _at_most(num_misses, high, miss_rate) > doubt:
        low, high = high, 2 * high
        if high > _MOST_REQUESTS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _at_most(num_misses, middle, miss_rate) <= doubt else (middle, high)
    return high - num_requests


def _at_most(k: int, n: int, p: float) -> float:
    """P(X <= k) of n trials."""
    if k >= n:
        return 1.0
    return next(total for i, total in enumerate(accumulate(metrics.binomial_pmf(n, p))) if i == k)
