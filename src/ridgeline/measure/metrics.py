"""Timestamps in, figures out: pure functions of records.

TTFT = t_1 - t_send. TPOT = (t_last - t_1) / (n_out - n_first), so E2E = TTFT + (n_out - n_first) x TPOT exactly.
`itls` divides each gap by the tokens of the later chunk, once per token; `chunk_gaps` are the gaps themselves, what a
reader sees as a stall. Percentiles interpolate linearly between order statistics (numpy's default, type 7).
What is undefined is None and is left out of statistics, never counted as 0.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import TypedDict

from ridgeline.measure.events import Record

SAMPLES_PER_TAIL = 5  # a percentile is trusted when at least so many samples lie beyond it: P99 needs 500


class Summary(TypedDict):
    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None
    count: int


def ttft(record: Record) -> float | None:
    return None if record.t_1 is None else record.t_1 - record.t_send


def ttft_sched(record: Record) -> float | None:
    """From the scheduled time: a request that the client or a full server held back has waited all the same."""
    return None if record.t_1 is None else record.t_1 - record.t_sched


def ttfa(record: Record) -> float | None:
    """Time to the first token of the answer, after any reasoning."""
    return None if record.t_ans is None else record.t_ans - record.t_send


def tpot(record: Record) -> float | None:
    if record.t_1 is None or record.t_last is None or record.n_out is None or record.n_out <= record.n_first:
        return None
    return (record.t_last - record.t_1) / (record.n_out - record.n_first)


def e2e(record: Record) -> float | None:
    return None if record.t_last is None else record.t_last - record.t_send


def e2e_sched(record: Record) -> float | None:
    return None if record.t_last is None else record.t_last - record.t_sched


def norm_latency(record: Record) -> float | None:
    """E2E per output token: what GuideLLM calls TPOT."""
    whole = e2e(record)
    return whole / record.n_out if whole is not None and record.n_out else None


def queue_client(record: Record) -> float:
    return record.t_send - record.t_sched


def chunk_gaps(record: Record) -> list[float]:
    times = [event.time for event in record.events]
    return [later - earlier for earlier, later in pairwise(times)]


def longest_gap(record: Record) -> float | None:
    """The worst stall of one answer."""
    return max(chunk_gaps(record), default=None)


def itls(record: Record) -> list[float]:
    """One value per token after the first event's. A chunk of no token of its own (counts estimated) adds none."""
    return [
        gap / event.count
        for gap, event in zip(chunk_gaps(record), record.events[1:], strict=True)
        for _ in range(event.count)
    ]


def defined(metric: Callable[[Record], float | None], records: Iterable[Record]) -> list[float]:
    """The metric's values of the records that have one."""
    return [value for record in records if (value := metric(record)) is not None]


def pooled(metric: Callable[[Record], list[float]], records: Iterable[Record]) -> list[float]:
    return [value for record in records for value in metric(record)]


def percentile(ordered: Sequence[float], share: float) -> float:
    """Of values in ascending order, at least one; `share` in [0, 1]."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def median(values: Iterable[float]) -> float | None:
    ordered = sorted(values)
    return percentile(ordered, 0.5) if ordered else None


def summarize(values: Iterable[float]) -> Summary:
    ordered = sorted(values)
    if not ordered:
        return Summary(mean=None, p50=None, p90=None, p99=None, count=0)
    return Summary(
        mean=math.fsum(ordered) / len(ordered),
        p50=percentile(ordered, 0.5),
        p90=percentile(ordered, 0.9),
        p99=percentile(ordered, 0.99),
        count=len(ordered),
    )


def samples_needed(share: float) -> int:
    """How many samples the percentile needs to be more than one unlucky request."""
    return math.ceil(SAMPLES_PER_TAIL / (1 - share) - 1e-9)


def interval(values: Iterable[float], share: float, confidence: float = 0.95) -> tuple[float, float] | None:
    """An interval of the true percentile, from order statistics: no assumption about the distribution.

    The number of samples below the percentile is binomial. None when there are too few samples to bound both sides.
    """
    ordered, tail = sorted(values), (1 - confidence) / 2
    below = list(accumulate(binomial_pmf(len(ordered), share)))  # below[k] = P(at most k samples lie below it)
    low = bisect_right(below, tail)  # the highest rank that is above the percentile with probability <= tail
    high = bisect_left(below, 1 - tail)
    return (ordered[low - 1], ordered[high]) if low > 0 and high < len(ordered) else None


def binomial_pmf(n: int, p: float) -> Iterator[float]:
    """P(X = k) for k = 0 ... n, of n trials with probability p in (0, 1)."""
    for k in range(n + 1):
        logarithm = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
        yield math.exp(logarithm + k * math.log(p) + (n - k) * math.log1p(-p))
