"""Measures this machine's ceilings with our own kernels: what memory delivers, what matrix products reach.

A ceiling is the best of several repeats, since a floor must never exceed a time that was really measured (invariant 6);
the spread between the repeats says how quiet the machine was. Bandwidth is measured by 1, 2, 4 ... threads beyond the
last-level cache, and by all of them over working sets from a cache's size upwards. Matrix throughput is measured at
the row counts of decoding (1, 4, 16) and of prefill (64, 512): fp32, bf16, and int8 weights by int8 activations.
"""

from __future__ import annotations

import datetime
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast

from ridgeline.cost.cores import usable_cores
from ridgeline.cost.memory import available_memory
from ridgeline.errors import ConfigError
from ridgeline.native_part import native_part

Progress = Callable[[str, float], None]
Task = Callable[[float], None]  # repeats its reading until the time given

DTYPES = ("fp32", "bf16", "int8")
_TORCH_DTYPES = ("fp32", "bf16")
ROWS = (1, 4, 16, 64, 512)
_INNER = _OUTPUTS = 2048  # a matrix of 8 MiB in bf16: what an MLP of a small model multiplies
_MIB = 1 << 20
_SMALLEST_BEYOND = 1 << 30  # where the size of the last-level cache is unknown or small


class Meters(Protocol):
    """What the native module has."""

    def read_bandwidth(self, num_bytes: int, threads: int, seconds: float) -> float: ...
    def matmul_flops(self, dtype: str, rows: int, inner: int, outputs: int, threads: int, seconds: float) -> float: ...
    def isa(self) -> str: ...


@dataclass(frozen=True)
class Effort:
    """How thorough a probe is. Every reading is taken at least once, and again while its share of `budget_s` lasts: a
    slow or busy machine gets fewer repeats, not a longer probe."""

    repeats: int  # at most
    seconds: float  # per repeat
    budget_s: float
    is_quick: bool


FULL = Effort(repeats=4, seconds=0.12, budget_s=22.0, is_quick=False)
QUICK = Effort(repeats=2, seconds=0.08, budget_s=1.8, is_quick=True)


@dataclass(frozen=True)
class Reading:
    """`best` of the repeats in bytes/s or FLOP/s; `spread` = (best - worst) / best, None of a single one."""

    best: float
    spread: float | None


@dataclass
class Probe:
    """What was measured; `as_json` is what is saved as the hardware `this`."""

    machine: dict[str, Any]
    is_quick: bool
    date: str
    by_threads: dict[int, Reading] = field(default_factory=dict)  # beyond the last-level cache
    by_working_set: dict[int, Reading] = field(default_factory=dict)  # bytes -> reading, all threads
    matmul: dict[tuple[str, int], Reading] = field(default_factory=dict)  # (dtype, rows)
    torch_matmul: dict[str, Reading] = field(default_factory=dict)  # at the most rows; a cross-check
    gpu: dict[str, Any] | None = None

    def compute(self, dtype: str) -> float:
        return max(reading.best for (kind, _), reading in self.matmul.items() if kind == dtype)

    @property
    def spread(self) -> float | None:
        """The median of the readings' spreads: how quiet the machine was."""
        readings = [*self.by_threads.values(), *self.by_working_set.values(), *self.matmul.values()]
        spreads = [reading.spread for reading in readings if reading.spread is not None]
        return statistics.median(spreads) if spreads else None

    def as_json(self) -> dict[str, Any]:
        return {
            "name": "this",
            "date": self.date,
            "quick": self.is_quick,
            "spread": self.spread,
            "machine": self.machine,
            "bandwidth_by_threads": [
                {"threads": n, "bytes_per_s": r.best, "spread": r.spread} for n, r in self.by_threads.items()
            ],
            "bandwidth_by_working_set": [
                {"bytes": n, "bytes_per_s": r.best, "spread": r.spread} for n, r in self.by_working_set.items()
            ],
            "matmul": [
                {"dtype": dtype, "rows": rows, "flops_per_s": r.best, "spread": r.spread}
                for (dtype, rows), r in self.matmul.items()
            ],
            "torch_matmul": [
                {"dtype": dtype, "flops_per_s": r.best, "spread": r.spread} for dtype, r in self.torch_matmul.items()
            ],
            "compute": {dtype: self.compute(dtype) for dtype in DTYPES},
            "gpu": self.gpu,
        }


def measure(effort: Effort, *, progress: Progress | None = None, meters: Meters | None = None) -> Probe:
    """Under 30 s for FULL, about two for QUICK. `meters` None: the native part. Raises NativePartError without one."""
    if meters is None:
        meters = cast(Meters, native_part())
    report = progress or (lambda stage, share: None)
    cores = usable_cores()
    probe = Probe(
        _machine(meters, cores), effort.is_quick, datetime.datetime.now().astimezone().isoformat("T", "seconds")
    )
    tasks = list(_tasks(probe, effort, meters, cores))
    start = time.monotonic()
    for index, (name, task) in enumerate(tasks):
        report(name, index / len(tasks))
        task(start + effort.budget_s * (index + 1) / len(tasks))
    probe.by_threads[cores] = probe.by_working_set[max(probe.by_working_set)]
    report("done", 1.0)
    return probe


def _tasks(probe: Probe, effort: Effort, meters: Meters, cores: int) -> Iterator[tuple[str, Task]]:
    sizes = working_sets(last_level_cache(), available_memory(), is_quick=effort.is_quick)

    def read(into: dict[int, Reading], key: int, num_bytes: int, threads: int, deadline: float) -> None:
        meter = partial(meters.read_bandwidth, num_bytes, threads, effort.seconds)
        into[key] = _repeat(effort.repeats, deadline, meter)

    def multiply(dtype: str, rows: int, deadline: float) -> None:
        meter = partial(meters.matmul_flops, dtype, rows, _INNER, _OUTPUTS, cores, effort.seconds)
        probe.matmul[dtype, rows] = _repeat(effort.repeats, deadline, meter)

    for threads in [] if effort.is_quick else thread_counts(cores)[:-1]:  # all of them: the last working set below
        name = f"memory, {threads} thread{'s' * (threads > 1)}"
        yield name, partial(read, probe.by_threads, threads, sizes[-1], threads)
    for size in sizes:
        yield f"working set of {size // _MIB:,} MiB", partial(read, probe.by_working_set, size, size, cores)
    for dtype in DTYPES:
        for rows in (64, 512) if effort.is_quick else ROWS:
            yield f"{dtype} products, {rows} rows", partial(multiply, dtype, rows)
    if not effort.is_quick:
        yield "torch, as a cross-check", partial(_with_torch, probe, effort, cores)


def _repeat(repeats: int, deadline: float, meter: Callable[[], float]) -> Reading:
    rates = [meter()]
    while len(rates) < repeats and time.monotonic() < deadline:
        rates.append(meter())
    return Reading(max(rates), 1 - min(rates) / max(rates) if len(rates) > 1 else None)


def thread_counts(cores: int) -> list[int]:
    """1, 2, 4 ... and all of them."""
    return sorted({1 << n for n in range(cores.bit_length()) if 1 << n <= cores} | {cores})


def working_sets(cache_bytes: int, free_bytes: int, *, is_quick: bool) -> list[int]:
    """Buffer sizes from 1 MiB, by factors of two (quick: of sixteen), to beyond the last-level cache."""
    beyond = max(_SMALLEST_BEYOND // 2, 2 * cache_bytes) if is_quick else max(_SMALLEST_BEYOND, 4 * cache_bytes)
    beyond = min(beyond, free_bytes // 4)
    sizes, size = [], _MIB
    while size < beyond:
        sizes.append(size)
        size *= 16 if is_quick else 2
    return [*sizes, beyond]


def last_level_cache(root: Path = Path("/")) -> int:
    """Bytes of the largest cache of CPU 0; 0: unknown. `root` is where `sys` is looked for."""
    files = (root / "sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    return max((int(file.read_text().strip().removesuffix("K")) * 1024 for file in files), default=0)


def _machine(meters: Meters, cores: int) -> dict[str, Any]:
    return {
        "cpu": cpu_name(),
        "usable_cores": cores,
        "installed_cores": os.cpu_count(),
        "isa": _isa(meters),
        "last_level_cache_bytes": last_level_cache(),
        "memory_available_bytes": available_memory(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _isa(meters: Meters) -> str:
    try:
        return meters.isa()
    except ValueError as error:  # RIDGELINE_ISA names none, or not one of this CPU
        raise ConfigError(f"this machine cannot be measured: {error}") from error


def cpu_name(root: Path = Path("/")) -> str:
    cpuinfo = root / "proc/cpuinfo"
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _with_torch(probe: Probe, effort: Effort, cores: int, deadline: float) -> None:
    """The same products through torch on the CPU, and an NVIDIA GPU's ceilings; nothing when torch is not there."""
    try:
        from ridgeline.cost.torch_probe import measure_cpu, measure_gpu
    except ImportError:
        return
    for dtype in _TORCH_DTYPES:
        probe.torch_matmul[dtype] = _repeat(
            effort.repeats, deadline, partial(measure_cpu, dtype, max(ROWS), _INNER, cores)
        )
    probe.gpu = measure_gpu()
