"""Usable cores: the lowest of affinity and every control-group quota above the process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ridgeline.cost.cores import CoreGrant, core_grant, shares_by_session, usable_cores


def fake_root(root: Path, membership: str, files: dict[str, str]) -> Path:
    for name, text in {"proc/self/cgroup": membership, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)


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


@pytest.mark.parametrize(
    ("affinity", "quota", "grant"),
    [
        (8, None, CoreGrant(8, "all 8 cores")),
        (2, None, CoreGrant(2, "this process may run on 2 of the machine's 8 cores (affinity)")),
        (8, "250000 100000\n", CoreGrant(2, "a control group's quota of 2.5 cores, the machine has 8")),
        (2, "250000 100000\n", CoreGrant(2, "this process may run on 2 of the machine's 8 cores (affinity)")),
        (2, "50000 100000\n", CoreGrant(1, "a control group's quota of 0.5 cores, the machine has 8")),
    ],
)
def test_the_reason_is_what_binds(tmp_path, monkeypatch, affinity, quota, grant):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(affinity)))
    files = {"sys/fs/cgroup/a/cpu.max": quota} if quota else {}
    assert core_grant(fake_root(tmp_path, "0::/a\n", files)) == grant


@pytest.mark.parametrize(
    ("enabled", "membership", "by_session"),
    [
        ("1\n", "0::/\n", True),
        ("1\n", "4:memory:/x\n1:cpu,cpuacct:/\n0::/\n", True),
        ("0\n", "0::/\n", False),
        ("1\n", "0::/user.slice\n", False),  # a control group has a share of its own
        ("1\n", "1:cpu,cpuacct:/docker/x\n0::/\n", False),
    ],
)
def test_niceness_counts_within_a_session_where_the_scheduler_groups_them(tmp_path, enabled, membership, by_session):
    files = {"proc/sys/kernel/sched_autogroup_enabled": enabled}
    assert shares_by_session(fake_root(tmp_path, membership, files)) == by_session


def test_without_groups_of_sessions_niceness_counts_everywhere(tmp_path):
    assert not shares_by_session(tmp_path)
