"""The machine: processor, cores, memory, load, and the system on it.

Linux tells most of it in /proc and /sys; psutil tells memory and swap anywhere. What a system does not tell is None.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import psutil

from ridgeline.cost.cores import affinity_cores, quota_cores, usable_cores
from ridgeline.cost.memory import available_memory
from ridgeline.cost.probe import cpu_name, last_level_cache

_CONTAINER_MARKS = (".dockerenv", "run/.containerenv", "var/run/secrets/kubernetes.io")
_NVIDIA = "dev/nvidiactl"


def machine_facts(root: Path = Path("/")) -> dict[str, Any]:
    """Sizes in bytes. `root` is where `proc`, `sys`, `etc` and `dev` are looked for."""
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    return {
        "processor": cpu_name(root),
        "architecture": platform.machine(),
        "last_level_cache_bytes": last_level_cache(root) or None,
        "installed_cores": os.cpu_count(),
        "affinity_cores": affinity_cores(),
        "quota_cores": quota_cores(root),
        "usable_cores": usable_cores(root),
        "governor": _governor(root),
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "stolen_share": _stolen_share(root),
        "memory_bytes": memory.total,
        "available_memory_bytes": available_memory(root),
        "swap_bytes": swap.total,
        "swap_used_bytes": swap.used,
        "transparent_huge_pages": _huge_pages(root),
        "has_nvidia_gpu": (root / _NVIDIA).exists(),
    }


def system_facts(root: Path = Path("/")) -> dict[str, Any]:
    return {
        "name": platform.system(),
        "release": platform.release(),
        "distribution": _distribution(root),
        "libc": " ".join(platform.libc_ver()).strip() or None,
        "in_container": any((root / mark).exists() for mark in _CONTAINER_MARKS),
    }


def _governor(root: Path) -> str | None:
    """Of all cores: one name, or those that there are."""
    files = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    return ", ".join(sorted({file.read_text().strip() for file in files})) or None


def _huge_pages(root: Path) -> str | None:
    """`always`, `madvise` or `never`: the one in brackets."""
    text = _read(root / "sys/kernel/mm/transparent_hugepage/enabled")
    return None if text is None else text.partition("[")[2].partition("]")[0] or None


def _stolen_share(root: Path) -> float | None:
    """The share of all processor time since the machine's start that its host gave to others."""
    text = _read(root / "proc/stat")
    if text is None or not text.startswith("cpu "):
        return None
    times = [int(word) for word in text.splitlines()[0].split()[1:9]]  # user .. steal; guests are counted in user
    return times[7] / sum(times) if len(times) == 8 and sum(times) else None


def _distribution(root: Path) -> str | None:
    text = _read(root / "etc/os-release") or ""
    names = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    return names.get("PRETTY_NAME", "").strip('"') or None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None
