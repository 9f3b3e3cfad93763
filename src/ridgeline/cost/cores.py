"""How many cores this process may keep busy: CPU affinity, lowered by a control group's quota.

A container with a quota of two cores on a 64-core machine sees 64 of them; threads beyond the quota are throttled all
at once, which a pool of spinning threads pays for at every barrier. So a fraction of a core is left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def usable_cores(root: Path = Path("/")) -> int:
    """At least 1. `root` is where `proc` and `sys` are looked for."""
    return max(1, int(min([affinity_cores(), *_quotas(root)])))


def affinity_cores() -> int:
    """Cores on which the system may run this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def quota_cores(root: Path = Path("/")) -> float | None:
    """The least that a control group above this process grants, in cores; None: none of them limits."""
    return min(_quotas(root), default=None)


def _quotas(root: Path) -> Iterator[float]:
    """Cores granted by each limit above this process, for control groups of version 1 and 2."""
    membership = root / "proc/self/cgroup"
    if not membership.exists():  # not Linux
        return
    for line in membership.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2: one hierarchy
            mount = root / "sys/fs/cgroup"
        elif "cpu" in controllers.split(","):
            mount = root / "sys/fs/cgroup/cpu"
        else:
            continue
        # Inside a container the mount point is the group itself, and `path` may name directories that are not there.
        relative = Path(path.lstrip("/"))
        for group in (mount / relative, *(mount / parent for parent in relative.parents)):
            quota = _quota(group)
            if quota is not None:
                yield quota


def _quota(group: Path) -> float | None:
    """Quota / period of one group's directory; None: unlimited, or nothing there."""
    if (group / "cpu.max").exists():
        quota, period = (group / "cpu.max").read_text().split()
    elif (group / "cpu.cfs_quota_us").exists():
        quota, period = (group / "cpu.cfs_quota_us").read_text(), (group / "cpu.cfs_period_us").read_text()
    else:
        return None
    return None if quota == "max" or int(quota) < 0 else int(quota) / int(period)
