"""What Ridgeline keeps on disks: packed weights, cached KV pages, measured runs, and the ceilings of this machine."""

from __future__ import annotations

import contextlib
import datetime
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ridgeline.cost.this import load_probe, saved_path
from ridgeline.errors import ConfigError
from ridgeline.measure.store import data_directory
from ridgeline.model.packed import packed_directory

_STALE_DAYS = 90
_DAY_S = 86_400.0
_UNFINISHED = ".tmp"


def storage_facts(cache_dir: Path | None = None, packed_dir: Path | None = None) -> dict[str, Any]:
    """`cache_dir`, `packed_dir`: as given to `serve`."""
    packed = packed_dir or packed_directory()
    return {
        "packed": _directory(packed, (".ridge", _UNFINISHED)),
        "kv_pages": None if cache_dir is None else _directory(cache_dir, (".page", _UNFINISHED)),
        "bench_runs": _directory(data_directory(), (".jsonl", ".sqlite")),
        "probe": _probe(),
    }


def _directory(path: Path, suffixes: tuple[str, ...]) -> dict[str, Any]:
    """Its files with one of `suffixes`; `stale`: unfinished since yesterday, or unused for months."""
    now = time.time()
    files = [(file, status) for file, status in _files(path) if file.suffix in suffixes]
    stale = [
        status
        for file, status in files
        if now - status.st_mtime > (1 if file.suffix == _UNFINISHED else _STALE_DAYS) * _DAY_S
    ]
    place = next((parent for parent in (path, *path.parents) if parent.exists()), None)
    return {
        "path": str(path),
        "files": len(files),
        "bytes": sum(status.st_size for _, status in files),
        "stale_files": len(stale),
        "stale_bytes": sum(status.st_size for status in stale),
        "free_bytes": None if place is None else shutil.disk_usage(place).free,
        "writable": place is not None and os.access(place, os.W_OK),
    }


def _files(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for directory, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):  # it is gone by now
                file = Path(directory, name)
                yield file, file.stat()


def _probe() -> dict[str, Any]:
    """The saved ceilings: bytes/s beyond the caches, FLOP/s by input type; `problem` when they cannot be read."""
    path = saved_path()
    try:
        probe = load_probe()
        if probe is None:
            return {"path": str(path), "problem": None, "date": None}
        age = datetime.datetime.now().astimezone() - datetime.datetime.fromisoformat(probe["date"]).astimezone()
    except (ConfigError, ValueError) as error:
        return {"path": str(path), "problem": getattr(error, "message", str(error)), "date": None}
    return {
        "path": str(path),
        "problem": None,
        "date": probe["date"],
        "age_days": max(0, age.days),
        "quick": probe["quick"],
        "spread": probe["spread"],
        "bytes_per_s": max(probe["bandwidth_by_working_set"], key=lambda row: row["bytes"])["bytes_per_s"],
        "flops_per_s": probe["compute"],
        "machine": probe["machine"],
    }
