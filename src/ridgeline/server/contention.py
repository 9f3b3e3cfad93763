"""Whether this process gets the cores that it wants, from what the system counts (Linux).

The kernel counts for each thread how long it ran and how long it was ready to run and had no core: because of other
processes, of a control group's quota, or of our own threads, if they are more than the cores. What a hypervisor takes
shows in neither; that is `steal`, of the whole machine. Steps need no thread in particular, so the number of threads at
work follows by itself; this only says so.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path

LOOK_EVERY_S = 10.0
_LEAST_WANTED = 0.5  # cores, on average since the last look: below, the process is idle and its waiting tells nothing
_MANY = 0.25  # share of the wanted time that is told, and half of it that it is over
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CoreTimes:
    """Seconds so far: of this process's living threads, and stolen from all cores of the machine."""

    ran_s: float
    waited_s: float
    stolen_s: float


def core_times(root: Path = Path("/")) -> CoreTimes | None:
    """None where the system does not count it."""
    ran_ns = waited_ns = 0
    for task in (root / "proc/self/task").glob("*/schedstat"):
        try:
            ran, waited, _ = task.read_text().split()
        except (OSError, ValueError):  # a thread that has just ended
            continue
        ran_ns, waited_ns = ran_ns + int(ran), waited_ns + int(waited)
    stat = root / "proc/stat"
    if not ran_ns or not stat.exists():
        return None
    ticks = stat.read_text().split("\n", 1)[0].split()
    stolen = int(ticks[8]) / 100 if len(ticks) > 8 else 0.0  # in USER_HZ, which Linux keeps at 100
    return CoreTimes(ran_ns / 1e9, waited_ns / 1e9, stolen)


class ContentionWatch:
    """Says when the process begins to wait for cores, and when that is over."""

    def __init__(self) -> None:
        self._before: CoreTimes | None = None
        self._waits = False

    def look(self, now: CoreTimes, passed_s: float) -> str | None:
        """What there is to tell, `passed_s` after the last look."""
        before, self._before = self._before, now
        if before is None:
            return None
        ran_s, waited_s = now.ran_s - before.ran_s, max(0.0, now.waited_s - before.waited_s)
        wanted_s = ran_s + waited_s
        if ran_s < 0 or wanted_s < _LEAST_WANTED * passed_s:
            return None
        share = waited_s / wanted_s
        if not self._waits and share >= _MANY:
            self._waits = True
            stolen = (now.stolen_s - before.stolen_s) / passed_s
            return (
                f"the threads got {ran_s / passed_s:.1f} of the {wanted_s / passed_s:.1f} cores that they wanted: "
                f"others use this machine (the hypervisor took {stolen:.1f}); tokens come as much slower"
            )
        if self._waits and share < _MANY / 2:
            self._waits = False
            return f"the threads get their cores again: {ran_s / passed_s:.1f} of {wanted_s / passed_s:.1f}"
        return None


async def tell_contention() -> None:
    """Logs it, for ever; returns where the system does not count."""
    watch, loop = ContentionWatch(), asyncio.get_running_loop()
    looked_s = loop.time()
    while (now := core_times()) is not None:
        passed_s, looked_s = loop.time() - looked_s, loop.time()
        if message := watch.look(now, passed_s):
            _log.warning(message)
        await asyncio.sleep(LOOK_EVERY_S)
