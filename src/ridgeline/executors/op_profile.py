"""Where the time of steps goes: each op's seconds beside the bytes and FLOPs that it had to move and do.

The core times its ops (what thread 0 sees, waiting for the slowest thread included) and tells what each of them does
per step, row and key; here both are summed over ops of the same kind, shape and format, apart for steps of few and
many rows. What the ops leave of a step, sampling first of all, is a line of its own: the lines sum to the steps' time.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from ridgeline.cost.hardware import Hardware
from ridgeline.cost.roofline import compute_rate
from ridgeline.engine.plan import StepPlan

REST = "sampling and the rest"


@dataclass
class OpLine:
    """Sums over `calls` of one op, or of several alike. `rows`: the fewest and the most of a call."""

    kind: str
    shape: str
    format: str
    rows: tuple[int, int]
    calls: int = 0
    seconds: float = 0.0
    bytes_moved: float = 0.0
    flops: float = 0.0

    def floor_s(self, hardware: Hardware, weight_bytes: float) -> float | None:
        """The roofline's time for all calls. The whole model passes between two calls, so weights and KV come from
        where `weight_bytes` fit; what rows pass on stays as near as it fits itself."""
        is_passed_on = self.flops == 0
        bandwidth = hardware.bandwidth_for(self.bytes_moved / max(1, self.calls) if is_passed_on else weight_bytes)
        compute = compute_rate(hardware, self.format) if self.format else None
        bounds = [self.bytes_moved / bandwidth] if bandwidth else []
        bounds += [self.flops / compute] if compute else []
        return max(bounds) if bounds and self.kind != REST else None


@dataclass(frozen=True)
class _Amounts:
    """Of one step. Pairs and keys by window: several layers may see fewer keys."""

    rows: int
    logit_rows: int
    keys: dict[int, int]
    pairs: dict[int, int]


class Profile:
    """Of one core, from now on. `add` after each step with what it computed."""

    def __init__(self, core: Any) -> None:
        self._core = core
        self._works = core.op_works
        self._windows = {work.window for work in self._works if work.key_bytes}
        self._places = {
            _name(work): -i for i, work in enumerate(reversed(self._works))
        }  # its first place in the program
        self._lines: dict[tuple[str, str, str, int], OpLine] = {}
        self.weight_bytes = float(core.weight_bytes)
        self.num_steps = 0
        core.profile(True)
        self._before = np.asarray(core.op_seconds) if core.op_seconds else np.zeros(len(self._works))

    def add(self, plan: StepPlan, duration_s: float) -> None:
        amounts, now = _amounts(plan, self._windows), np.asarray(self._core.op_seconds)
        spent, self._before = now - self._before, now
        self.num_steps += 1
        for work, seconds in zip(self._works, spent.tolist(), strict=True):
            rows = amounts.logit_rows if work.per_logit_row else amounts.rows
            if rows:
                line = self._line(*_name(work), rows)
                line.seconds += seconds
                line.bytes_moved += _bytes(work, rows, amounts)
                line.flops += work.row_flops * rows + work.pair_flops * amounts.pairs.get(work.window, 0)
        self._line(REST, "", "", amounts.rows).seconds += duration_s - float(spent.sum())

    @property
    def lines(self) -> list[OpLine]:
        """By rows, then in the order of the program."""
        return [self._lines[key] for key in sorted(self._lines, key=lambda key: (key[3], self._places.get(key[:3], 1)))]

    @property
    def seconds(self) -> float:
        return sum(line.seconds for line in self._lines.values())

    def _line(self, kind: str, shape: str, format: str, rows: int) -> OpLine:
        key = (kind, shape, format, rows.bit_length())  # 1, 2-3, 4-7, 8-15, ... rows
        line = self._lines.setdefault(key, OpLine(kind, shape, format, (rows, rows)))
        line.rows = (min(line.rows[0], rows), max(line.rows[1], rows))
        line.calls += 1
        return line


def _name(work: Any) -> tuple[str, str, str]:
    return work.kind, work.shape, work.format


def _bytes(work: Any, rows: int, amounts: _Amounts) -> float:
    keys = amounts.keys.get(work.window, 0) if work.key_bytes else 0
    return float(work.step_bytes + work.row_bytes * rows + work.key_bytes * keys)


def _amounts(plan: StepPlan, windows: set[int]) -> _Amounts:
    """A row sees the keys up to its own position; a sequence's keys are read once, whatever its rows."""
    seen, query_len = plan.positions + 1, np.diff(plan.query_start)
    keys, pairs = defaultdict(int), defaultdict(int)
    for window in windows:
        keys[window] = int(np.minimum(plan.context_len, window + query_len - 1 if window else plan.context_len).sum())
        pairs[window] = int((np.minimum(seen, window) if window else seen).sum())
    return _Amounts(len(plan.token_ids), len(plan.logit_rows), dict(keys), dict(pairs))
