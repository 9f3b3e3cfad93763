from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from ridgeline.cost.memory import (
    admissible_requests,
    available_memory,
    kv_bytes_per_token,
    kv_pages,
    pages_needed,
    weight_bytes,
)
from ridgeline.errors import ConfigError
from ridgeline.model.spec import ModelSpec

GIB = 1 << 30
EXAMPLE_8B = ModelSpec(
    architecture="llama",
    vocab_size=128_256,
    hidden_size=4096,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    intermediate_size=14_336,
    max_context_len=32_768,
    norm_eps=1e-5,
    rope_theta=5e5,
)


def test_example_8b() -> None:
    """2 x 32 x 8 x 128 x 2 = 131,072 bytes a token; 8,030,261,248 parameters."""
    assert kv_bytes_per_token(EXAMPLE_8B, "bf16") == 131_072
    assert kv_bytes_per_token(EXAMPLE_8B, "fp32") == 262_144
    assert weight_bytes(EXAMPLE_8B, "bf16") == 2 * 8_030_261_248
    assert kv_pages(16 * GIB, EXAMPLE_8B, "bf16", 16) == 8192
    assert kv_pages(16 * GIB - 1, EXAMPLE_8B, "bf16", 16) == 8191


def test_unknown_formats_are_named() -> None:
    with pytest.raises(ConfigError, match="'int3'"):
        weight_bytes(EXAMPLE_8B, "int3")


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (16, 1), (17, 2), (2500, 157)])
def test_pages_needed(tokens: int, pages: int) -> None:
    assert pages_needed(tokens, 16) == pages


def test_admissible_requests() -> None:
    assert admissible_requests(15_231, 16, 2500) == 97
    assert admissible_requests(156, 16, 2500) == 0


MEMINFO = "MemTotal:       16777216 kB\nMemFree:          102400 kB\nMemAvailable:    8388608 kB\n"


def machine(root: Path, cgroup: str | None, files: Mapping[str, str], meminfo: str = MEMINFO) -> Path:
    """A root with /proc and /sys as a machine would show them."""
    given = {"proc/meminfo": meminfo} | dict(files)
    if cgroup is not None:
        given["proc/self/cgroup"] = cgroup
    for name, text in given.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_available_not_free_memory_counts(tmp_path: Path) -> None:
    assert available_memory(machine(tmp_path, None, {})) == 8 * GIB


def test_a_kernel_without_mem_available_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="MemAvailable"):
        available_memory(machine(tmp_path, None, {}, meminfo="MemFree: 5 kB\n"))


def test_cgroup_v2_limit_less_usage_that_cannot_be_reclaimed(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/app/"
    files = {
        group + "memory.max": f"{4 * GIB}\n",
        group + "memory.current": f"{3 * GIB}\n",
        group + "memory.stat": f"anon 5\nfile {2 * GIB}\ninactive_file {GIB}\n",
    }
    assert available_memory(machine(tmp_path, "0::/app\n", files)) == 2 * GIB


def test_cgroup_v2_without_a_limit(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/app/memory.max": "max\n", "sys/fs/cgroup/app/memory.current": "5\n"}
    assert available_memory(machine(tmp_path, "0::/app\n", files)) == 8 * GIB


def test_the_tightest_limit_above_the_process_holds(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/a/b/memory.max": f"{6 * GIB}\n",
        "sys/fs/cgroup/a/b/memory.current": "0\n",
        "sys/fs/cgroup/a/memory.max": f"{3 * GIB}\n",
        "sys/fs/cgroup/a/memory.current": f"{GIB}\n",
    }
    assert available_memory(machine(tmp_path, "0::/a/b\n", files)) == 2 * GIB


def test_cgroup_v1_and_its_way_to_say_unlimited(tmp_path: Path) -> None:
    mount = "sys/fs/cgroup/memory/"
    files = {
        mount + "memory.limit_in_bytes": "9223372036854771712\n",
        mount + "memory.usage_in_bytes": f"{2 * GIB}\n",
        mount + "job/memory.limit_in_bytes": f"{5 * GIB}\n",
        mount + "job/memory.usage_in_bytes": f"{2 * GIB}\n",
        mount + "job/memory.stat": f"cache 9\ntotal_inactive_file {GIB}\n",
    }
    root = machine(tmp_path, "9:name=systemd:/\n4:memory,hugetlb:/job\n1:cpu:/\n0::/\n", files)
    assert available_memory(root) == 4 * GIB


def test_in_a_container_the_own_group_stands_at_the_mount_point(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{GIB}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "0\n",
    }
    assert available_memory(machine(tmp_path, "4:memory:/docker/0123\n", files)) == GIB


def test_a_group_over_its_limit_has_nothing_left(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/memory.max": "100\n", "sys/fs/cgroup/memory.current": "200\n"}
    assert available_memory(machine(tmp_path, "0::/\n", files)) == 0


def test_this_machine() -> None:
    assert 0 < available_memory() < 1 << 50
