"""The highest rate that a server sustains under an SLO."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

_LOWEST = 1 / 64  # of the first rate: a server that cannot do even that was asked the wrong question


@dataclass
class Capacity:
    """Requests per second. `best`: the highest that met the target, None when not even the lowest did; `broken`: the
    lowest that did not, None when the search ended before."""

    best: float | None = None
    broken: float | None = None

    def next_rate(self, start: float, resolution: float) -> float | None:
        """Doubled (or halved) from `start` until both sides are known, then bisected; None: they are close enough, or
        there is no such rate."""
        if self.best is None:
            if self.broken is None:
                return start
            return self.broken / 2 if self.broken > _LOWEST * start else None
        if self.broken is None:
            return 2 * self.best
        return (self.best + self.broken) / 2 if self.broken - self.best > resolution * self.best else None


async def find_capacity(
    meets: Callable[[float], Awaitable[bool]], start: float, *, resolution: float = 0.05, most_points: int = 16
) -> Capacity:
    """Measures at most `most_points` rates; `best` and `broken` end within `resolution` of each other."""
    found = Capacity()
    for _ in range(most_points):
        rate = found.next_rate(start, resolution)
        if rate is None:
            break
        if await meets(rate):
            found.best = rate
        else:
            found.broken = rate
    return found
