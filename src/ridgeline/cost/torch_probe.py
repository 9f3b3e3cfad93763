"""The part of `probe` that needs torch: a cross-check of our CPU kernels, and the ceilings of an NVIDIA GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_GPU_SIDE = 8192  # of the square matrices: large enough to fill any GPU
_GPU_READ_BYTES = 1 << 31  # far beyond its caches


def measure_cpu(dtype: str, rows: int, side: int, threads: int, seconds: float = 0.15) -> float:
    """FLOP/s of [rows, side] x [side, side]."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        a, b = (torch.ones(n, side, dtype=_DTYPES[dtype]) for n in (rows, side))
        return 2.0 * rows * side * side / _best_time(lambda: torch.nn.functional.linear(a, b), seconds, lambda: None)
    finally:
        torch.set_num_threads(before)


def measure_gpu() -> dict[str, Any] | None:
    """Name, memory, read bandwidth and bf16 and fp32 throughput of the first NVIDIA GPU; None when there is none."""
    if not torch.cuda.is_available():
        return None
    buffer = torch.ones(_GPU_READ_BYTES // 4, dtype=torch.float32, device="cuda")
    read_s = _best_time(lambda: buffer.sum(), 0.5, torch.cuda.synchronize)
    compute = {}
    for dtype, kind in _DTYPES.items():
        a, b = (torch.ones(_GPU_SIDE, _GPU_SIDE, dtype=kind, device="cuda") for _ in range(2))
        compute[dtype] = 2.0 * _GPU_SIDE**3 / _best_time(partial(torch.matmul, a, b), 0.5, torch.cuda.synchronize)
    free_bytes, _ = torch.cuda.mem_get_info()
    return {
        "name": torch.cuda.get_device_name(),
        "memory_bytes": free_bytes + _GPU_READ_BYTES,
        "bytes_per_s": _GPU_READ_BYTES / read_s,
        "compute": compute,
    }


def _best_time(call: Callable[[], object], seconds: float, wait: Callable[[], None]) -> float:
    """Of all calls that fit in `seconds`, after one to warm up."""
    call()
    wait()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        call()
        wait()
        best = min(best, time.perf_counter() - start)
    return best
