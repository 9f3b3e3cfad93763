"""The client's claim to a core that it shares with the server: real-time priority for the event loop's thread.

A server that computes on every core leaves its client waiting for the scheduler's next tick, and the client then
measures its own lateness: 4 ms at P99 beside busy cores, 0.2 ms with this priority. What the client computes is the
same either way; how much that is stands in every run (`client.cpu_share`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

_LOWEST = 1  # of the real-time priorities: above all ordinary processes, below what the system itself put there


@contextlib.contextmanager
def real_time() -> Iterator[bool]:
    """For this thread, during the block, where the system knows and allows it (Linux; root or CAP_SYS_NICE). Gives
    whether it did. Processes and threads that are started meanwhile do not inherit it."""
    if not hasattr(os, "sched_setscheduler"):
        yield False
        return
    before, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(_LOWEST))
    except PermissionError:
        yield False
        return
    try:
        yield True
    finally:
        os.sched_setscheduler(0, before, parameters)
