"""When requests are sent in open loop: fixed before the run, from a seed, whatever the server does.

Times are seconds after the run's start, each after a gap, so that the time of the last request is the length of n gaps
and n divided by it is the rate.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import accumulate

from ridgeline.errors import ConfigError

KINDS = ("poisson", "gamma", "constant")


def arrival_times(kind: str, rate: float, num_requests: int, *, seed: int, burstiness: float = 1.0) -> list[float]:
    """`num_requests` times at `rate` requests per second on average.

    `burstiness` shapes gamma gaps as vLLM's benchmark does: 1 is Poisson, below 1 comes in bursts, above 1 more evenly.
    """
    _check(kind, rate, burstiness)
    rng = random.Random(seed)
    gaps: dict[str, Callable[[], float]] = {
        "poisson": lambda: rng.expovariate(rate),
        "gamma": lambda: rng.gammavariate(burstiness, 1 / (rate * burstiness)),
        "constant": lambda: 1 / rate,
    }
    return list(accumulate(gaps[kind]() for _ in range(num_requests)))


def num_arrivals(rate: float, duration_s: float) -> int:
    """How many requests to schedule for a run of about so long."""
    return max(1, round(rate * duration_s))


def _check(kind: str, rate: float, burstiness: float) -> None:
    if kind not in KINDS:
        raise ConfigError(f"--arrivals {kind!r}", hint="one of " + ", ".join(KINDS))
    if not rate > 0 or not burstiness > 0:
        raise ConfigError(f"a rate of {rate:g} with burstiness {burstiness:g}", hint="both must be above 0")
