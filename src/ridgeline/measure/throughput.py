"""What a server did per second: windows, rates, and whether it kept up.

The steady-state window leaves out filling and draining. In closed loop it is while at least 90 % of the target is in
flight; in open loop it is from the start to the last dispatch. Tokens count where they arrive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ridgeline.measure.events import Record

FULL = 0.9  # share of the target concurrency that counts as steady
_STRETCHES = 10  # of an open-loop run, for the trend of its backlog
_T_95 = 2.306  # Student's t, two-sided 95 %, of _STRETCHES - 2 degrees of freedom
_NOISE = 3.0  # standard deviations of a Poisson count that a backlog must exceed


class Window(NamedTuple):
    start: float
    end: float

    @property
    def length(self) -> float:
        return self.end - self.start

    def holds(self, time: float) -> bool:
        return self.start <= time <= self.end


def whole_run(records: Sequence[Record]) -> Window | None:
    """First send to last token; None when nothing was generated."""
    ends = [record.t_last for record in records if record.t_last is not None]
    return Window(min(record.t_send for record in records), max(ends)) if ends else None


def in_flight(records: Sequence[Record]) -> list[tuple[float, int]]:
    """(time, requests in flight from then on), ascending."""
    steps = sorted(
        [(record.t_send, 1) for record in records] + [(record.t_end, -1) for record in records if record.t_end]
    )
    curve, level = [], 0
    for time, change in steps:
        level += change
        curve.append((time, level))
    return curve


def steady_window(records: Sequence[Record], concurrency: int) -> Window | None:
    """From when the target was first reached until it was last held; None when it never was, or for no time."""
    curve = in_flight(records)
    full = [i for i, (_, level) in enumerate(curve) if level >= FULL * concurrency]
    if not full:
        return None
    last = min(full[-1] + 1, len(curve) - 1)
    window = Window(curve[full[0]][0], curve[last][0])
    return window if window.length > 0 else None


def output_tokens_in(records: Sequence[Record], window: Window) -> int:
    """Of failed requests too: the server made them."""
    return sum(event.count for record in records for event in record.events if window.holds(event.time))


def prompt_tokens_in(records: Sequence[Record], window: Window) -> int:
    """Uncached, at the time of the first token."""
    return sum(
        (record.prompt_tokens or 0) - (record.cached_tokens or 0)
        for record in records
        if record.t_1 is not None and window.holds(record.t_1)
    )


def started_in(records: Sequence[Record], window: Window) -> list[Record]:
    return [record for record in records if window.holds(record.t_sched)]


def is_saturated(records: Sequence[Record], window: Window) -> bool:
    """Whether the backlog of an open-loop run grew: its trend is surely upward (95 %), and what was left at the end is
    more than chance explains. Percentiles of such a run depend on how long it was."""
    curve = in_flight(records)
    levels = [_mean_level(curve, part) for part in _stretches(window)]
    slope, margin = _trend(levels)
    early = sum(levels[: _STRETCHES // 2]) / (_STRETCHES // 2)
    return slope - margin > 0 and levels[-1] > early + _NOISE * math.sqrt(max(early, 1.0))


def _stretches(window: Window) -> list[Window]:
    step = window.length / _STRETCHES
    return [Window(window.start + i * step, window.start + (i + 1) * step) for i in range(_STRETCHES)]


def _mean_level(curve: Sequence[tuple[float, int]], part: Window) -> float:
    area, time, level = 0.0, part.start, 0
    for change, then in curve:
        if change > part.end:
            break
        if change > part.start:
            area, time = area + level * (change - time), change
        level = then
    return (area + level * (part.end - time)) / part.length


def _trend(values: Sequence[float]) -> tuple[float, float]:
    """Slope by least squares and the half-width of its 95 % interval, per step."""
    n = len(values)
    mean_x, mean_y = (n - 1) / 2, sum(values) / n
    spread_x = sum((x - mean_x) ** 2 for x in range(n))
    slope = sum((x - mean_x) * (y - mean_y) for x, y in enumerate(values)) / spread_x
    residual = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in enumerate(values))
    return slope, _T_95 * math.sqrt(residual / (n - 2) / spread_x)
