"""Memory: what the machine has, what weights and KV pages take, how many sequences fit.

The engine's admission, `plan` and the loader use these same functions, so that what is predicted is what is allocated
(invariant 6). Sizes are bytes.

What is free is MemAvailable, never MemFree: MemFree leaves out the page cache, which the kernel gives back on demand,
and a machine that has read a checkpoint has little else. In a container the control group's limit may be lower.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ridgeline.errors import ConfigError
from ridgeline.model.spec import ModelSpec
from ridgeline.quant.formats import kv_format

BYTES_PER_VALUE = {"fp32": 4, "bf16": 2}
PAGE_SIZE = 32  # tokens
KV_SHARE = 0.8  # of the memory that weights leave free: the rest is for activations, the server and the page cache


def bytes_per_value(dtype: str) -> int:
    if dtype not in BYTES_PER_VALUE:
        raise ConfigError(f"number format {dtype!r} is unknown", hint="known: " + ", ".join(BYTES_PER_VALUE))
    return BYTES_PER_VALUE[dtype]


def weight_bytes(spec: ModelSpec, dtype: str) -> int:
    """All unique parameters in `dtype`."""
    return spec.num_parameters * bytes_per_value(dtype)


def kv_bytes_per_token(spec: ModelSpec, kv_dtype: str) -> int:
    """2 (K and V) x layers x KV heads x (head dimension x bytes per value, and those of a scale in int8)."""
    return 2 * spec.num_layers * kv_format(kv_dtype).size(spec.num_kv_heads, spec.head_dim)


def kv_budget(memory_bytes: int, weights_bytes: int) -> int:
    """Bytes for KV pages on a device with `memory_bytes` before the weights are loaded; 0 when those do not fit."""
    return max(0, int(KV_SHARE * (memory_bytes - weights_bytes)))


def kv_pages(budget_bytes: int, spec: ModelSpec, kv_dtype: str, page_size: int) -> int:
    """Whole pages of `page_size` tokens in `budget_bytes`, the null page among them."""
    return budget_bytes // (page_size * kv_bytes_per_token(spec, kv_dtype))


def pages_needed(num_tokens: int, page_size: int) -> int:
    return -(-num_tokens // page_size)


def admissible_requests(num_pages: int, page_size: int, final_len: int) -> int:
    """How many requests of `final_len` tokens (prompt and output) run at once in `num_pages` usable pages."""
    return num_pages // pages_needed(final_len, page_size)


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that this process may still take: MemAvailable, or what is left under a control group's limit if less.

    `root` is where `proc` and `sys` are looked for.
    """
    return min([_mem_available(root), *_cgroup_remainders(root)])


def _mem_available(root: Path) -> int:
    meminfo = root / "proc/meminfo"
    if not meminfo.exists():  # not Linux
        import psutil

        return int(psutil.virtual_memory().available)
    for line in meminfo.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.removesuffix("kB")) * 1024
    raise ConfigError(f"{meminfo} has no MemAvailable", hint="Linux 3.14 or newer has; else set --kv-memory")


def _cgroup_remainders(root: Path) -> Iterator[int]:
    """What is left under each memory limit above this process, for control groups of version 1 and 2."""
    membership = root / "proc/self/cgroup"
    if not membership.exists():
        return
    for line in membership.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2: one hierarchy
            mount, limit, usage, stat = "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            mount, limit = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
            usage, stat = "memory.usage_in_bytes", "total_inactive_file"
        else:
            continue
        for group in _ancestors(root / mount, path):
            remainder = _remainder(group / limit, group / usage, group / "memory.stat", stat)
            if remainder is not None:
                yield remainder


def _ancestors(mount: Path, path: str) -> Iterator[Path]:
    """The group's directory and those above it, up to the mount point.

    A container sees its own group at the mount point while `path` is the host's: directories that are not there are
    skipped.
    """
    group = mount / path.lstrip("/")
    while group != mount:
        yield group
        group = group.parent
    yield mount


def _remainder(limit: Path, usage: Path, stat: Path, inactive_key: str) -> int | None:
    """Limit - usage, where file cache that nobody has touched lately counts as free. None: no limit here."""
    if not (limit.exists() and usage.exists()):
        return None
    text = limit.read_text().strip()
    if text == "max":
        return None
    inactive_bytes = 0
    if stat.exists():
        fields = dict(line.split() for line in stat.read_text().splitlines())
        inactive_bytes = int(fields.get(inactive_key, 0))
    return max(0, int(text) - int(usage.read_text()) + inactive_bytes)
