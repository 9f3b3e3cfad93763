"""Usable cores: the lowest of affinity and every control-group quota above the process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ridgeline.cost.cores import usable_cores


def fake_root(root: Path, membership: str, files: dict[str, str]) -> Path:
    for name, text in {"proc/self/cgroup": membership, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


def test_affinity_alone_without_control_groups(tmp_path):
    assert usable_cores(tmp_path) == 8


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"sys/fs/cgroup/a/b/cpu.max": "350000 100000\n"}, 3),
        ({"sys/fs/cgroup/a/b/cpu.max": "max 100000\n", "sys/fs/cgroup/a/cpu.max": "200000 100000\n"}, 2),
        ({"sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),  # a container's own view; never below one core
        ({"sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, 8),
        ({"sys/fs/cgroup/a/b/cpu.max": "1600000 100000\n"}, 8),
    ],
)
def test_the_tightest_quota_of_version_2_counts(tmp_path, files, cores):
    assert usable_cores(fake_root(tmp_path, "0::/a/b\n", files)) == cores


@pytest.mark.parametrize(("quota", "cores"), [("400000\n", 4), ("-1\n", 8)])
def test_version_1(tmp_path, quota, cores):
    files = {"sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": quota, "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n"}
    assert usable_cores(fake_root(tmp_path, "4:memory:/x\n1:cpu,cpuacct:/a\n0::/\n", files)) == cores
