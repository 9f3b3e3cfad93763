"""How fast this machine reads memory: the denominator of every floor.

The figure depends on the working-set size, since a small model may sit in a cache that a large one does not fit. So it
is measured with a buffer as large as what the model reads per step, and taken as the best of several passes: a
floor must never exceed a time that was really measured.
"""

from __future__ import annotations

from ridgeline.cost.cores import usable_cores
from ridgeline.native_part import native_part

_MIN_BYTES = 1 << 20  # below this a pass is too short for the clock


def read_bandwidth(working_set_bytes: int, *, threads: int | None = None, seconds: float = 1.0) -> float:
    """Bytes per second that `threads` (None: all usable cores) read from a buffer of `working_set_bytes`. Raises
    NativePartError where there is none."""
    rate: float = native_part().read_bandwidth(max(working_set_bytes, _MIN_BYTES), threads or usable_cores(), seconds)
    return rate
