"""How many cores this process may keep busy: CPU affinity, lowered by a control group's quota.

A container with a quota of two cores on a 64-core machine sees 64 of them; threads beyond the quota are throttled all
at once, which a pool of spinning threads pays for at every barrier. So a fraction of a core is left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class CoreGrant:
    """`cores` is at least 1; `reason` says what grants them."""

    cores: int
    reason: str


def usable_cores(root: Path = Path("/")) -> int:
    """At least 1. `root` is where `proc` and `sys` are looked for."""
    return core_grant(root).cores


def core_grant(root: Path = Path("/")) -> CoreGrant:
    """As `usable_cores`, with the reason."""
    machine, allowed, quota = os.cpu_count() or 1, affinity_cores(), quota_cores(root)
    if quota is not None and quota < allowed:
        cores = max(1, int(quota))
        return CoreGrant(cores, f"a control group's quota of {quota:.4g} cores, the machine has {machine}")
    if allowed < machine:
        return CoreGrant(allowed, f"this process may run on {allowed} of the machine's {machine} cores (affinity)")
    return CoreGrant(allowed, f"all {allowed} cores" if allowed > 1 else "the machine's one core")


def affinity_cores() -> int:
    """Cores on which the system may run this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def quota_cores(root: Path = Path("/")) -> float | None:
    """The least that a control group above this process grants, in cores; None: none of them limits."""
    return min(_quotas(root), default=None)


def _quotas(root: Path) -> Iterator[float]:
    """Cores granted by each limit above this process, for control groups of version 1 and 2."""
    for controllers, path in _memberships(root):
        if not controllers:  # version 2: one hierarchy
            mount = root / "sys/fs/cgroup"
        elif "cpu" in controllers:
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


def shares_by_session(root: Path = Path("/")) -> bool:
    """Whether this process's session is a group to the scheduler (Linux, sched(7): autogroup). Niceness then counts
    among processes of that session alone. Control groups of a processor share come before it."""
    enabled = root / "proc/sys/kernel/sched_autogroup_enabled"
    if not enabled.exists() or enabled.read_text().strip() != "1":
        return False
    return all(path == "/" for controllers, path in _memberships(root) if _holds_shares(controllers))


def _memberships(root: Path) -> Iterator[tuple[list[str], str]]:
    """Each control group of this process: its controllers (none: version 2) and its path."""
    membership = root / "proc/self/cgroup"
    if membership.exists():  # Linux
        for line in membership.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            yield [name for name in controllers.split(",") if name], path


def _holds_shares(controllers: list[str]) -> bool:
    return not controllers or "cpu" in controllers
