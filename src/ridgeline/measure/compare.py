"""Two stored runs, point by point: by how much they differ, and whether that is more than chance.

The difference of two means comes with a bootstrap interval over requests (95 %, from a fixed seed): one that does not
hold 0 is a real difference. Lower is better for times, higher for throughput; throughput is one number per point, so
it has no interval and is no verdict.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from ridgeline.measure import metrics
from ridgeline.measure.events import Record
from ridgeline.measure.metrics import percentile

_RESAMPLES = 1_000
_CONFIDENCE = 0.95

Stored = tuple[dict[str, Any], list[list[Record]]]  # summary; records by point


_METRICS: dict[str, Callable[[Record], float | None]] = {
    "ttft_s": metrics.ttft_sched,
    "tpot_s": metrics.tpot,
    "e2e_s": metrics.e2e_sched,
}


def compare(before: Stored, after: Stored) -> list[dict[str, Any]]:
    """One entry per load that both runs have, with a comparison per metric."""
    old = {_key(point): (point, rows) for point, rows in zip(before[0]["points"], before[1], strict=True)}
    new = {_key(point): (point, rows) for point, rows in zip(after[0]["points"], after[1], strict=True)}
    return [
        {
            "load": dict(zip(("load", "concurrency", "rate"), key, strict=True)),
            "output_tokens_per_s": [old[key][0]["output_tokens_per_s"], new[key][0]["output_tokens_per_s"]],
            "valid": old[key][0]["valid"] and new[key][0]["valid"],
            **{
                name: _difference(_values(metric, old[key][1]), _values(metric, new[key][1]))
                for name, metric in _METRICS.items()
            },
        }
        for key in old
        if key in new
    ]


def _key(point: dict[str, Any]) -> tuple[Any, ...]:
    return point["load"], point["concurrency"], point["rate"]


def _values(metric: Callable[[Record], float | None], records: Sequence[Record]) -> list[float]:
    return metrics.defined(metric, (record for record in records if record.ok))


def _difference(old: list[float], new: list[float]) -> dict[str, Any]:
    """Means, the change in proportion to the old mean with its interval, and a verdict."""
    if not old or not new:
        return {"before": None, "after": None, "change": None, "interval": None, "verdict": "no data"}
    mean_old, mean_new = sum(old) / len(old), sum(new) / len(new)
    low, high = bootstrap(old, new)
    verdict = "slower" if low > 0 else "faster" if high < 0 else "no difference shown"
    return {
        "before": mean_old,
        "after": mean_new,
        "change": mean_new / mean_old - 1 if mean_old else None,
        "interval": [low / mean_old, high / mean_old] if mean_old else None,
        "verdict": verdict,
    }


def bootstrap(old: Sequence[float], new: Sequence[float]) -> tuple[float, float]:
    """An interval of mean(new) - mean(old): the middle of what resampling with replacement gives."""
    rng, tail = random.Random(0), (1 - _CONFIDENCE) / 2
    differences = sorted(
        sum(rng.choices(new, k=len(new))) / len(new) - sum(rng.choices(old, k=len(old))) / len(old)
        for _ in range(_RESAMPLES)
    )
    return percentile(differences, tail), percentile(differences, 1 - tail)
