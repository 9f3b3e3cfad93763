"""What doctor reads, from directories that stand for other machines."""

import json
import os

import pytest

from ridgeline.doctor import machine, software
from ridgeline.doctor.report import hidden
from ridgeline.doctor.storage import storage_facts

CPU = "sys/devices/system/cpu"


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


def test_a_linux_machine_is_read(tmp_path, write):
    write("proc/cpuinfo", "processor : 0\nmodel name\t: Fast CPU 9000\n")
    write("proc/meminfo", "MemAvailable: 2000 kB\n")
    write("proc/self/cgroup", "0::/\n")
    write("proc/stat", "cpu  50 0 20 20 0 0 0 10 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
    write("sys/fs/cgroup/cpu.max", "150000 100000\n")
    write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n")
    write(f"{CPU}/cpu0/cpufreq/scaling_governor", "powersave\n")
    write(f"{CPU}/cpu1/cpufreq/scaling_governor", "performance\n")
    write(f"{CPU}/cpu0/cache/index3/size", "2048K\n")
    write("dev/nvidiactl", "")
    facts = machine.machine_facts(tmp_path)
    assert facts["processor"] == "Fast CPU 9000"
    assert facts["available_memory_bytes"] == 2_048_000
    assert (facts["quota_cores"], facts["usable_cores"]) == (1.5, 1)
    assert facts["stolen_share"] == 0.1
    assert facts["transparent_huge_pages"] == "never"
    assert facts["governor"] == "performance, powersave"
    assert facts["last_level_cache_bytes"] == 2 << 20
    assert facts["has_nvidia_gpu"]


def test_what_a_system_does_not_tell_is_null(tmp_path):
    facts = machine.machine_facts(tmp_path)
    unknown = {name for name, value in facts.items() if value is None}
    assert unknown == {
        "last_level_cache_bytes", "quota_cores", "governor", "stolen_share", "transparent_huge_pages",
    }  # fmt: skip
    assert facts["processor"]
    assert machine.system_facts(tmp_path)["distribution"] is None


def test_the_system_is_named(tmp_path, write):
    write("etc/os-release", 'ID=x\nPRETTY_NAME="Some Linux 3"\n')
    write(".dockerenv", "")
    facts = machine.system_facts(tmp_path)
    assert (facts["distribution"], facts["in_container"]) == ("Some Linux 3", True)


def test_caches_are_weighed_and_their_stale_files_counted(tmp_path, write, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    write("packed/a.ridge", "12345")
    os.utime(write("packed/b.ridge", "123"), (0, 0))  # unused since 1970
    os.utime(write("packed/c.tmp", "12"), (0, 0))
    write("packed/notes.txt", "not ours")
    write("pages/00/x.page", "1234567")
    facts = storage_facts(tmp_path / "pages", tmp_path / "packed")
    packed = facts["packed"]
    assert (packed["files"], packed["bytes"]) == (3, 10)
    assert (packed["stale_files"], packed["stale_bytes"]) == (2, 5)
    assert packed["writable"]
    assert (facts["kv_pages"]["files"], facts["kv_pages"]["bytes"]) == (1, 7)
    assert facts["bench_runs"]["files"] == 0  # a directory that is not there yet
    assert facts["bench_runs"]["writable"]
    assert facts["probe"]["date"] is None


def test_a_damaged_probe_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    place = tmp_path / "ridgeline" / "this.json"
    place.parent.mkdir()
    place.write_text("{")
    assert "is damaged" in storage_facts()["probe"]["problem"]
    rows = [{"bytes": 1 << 30, "bytes_per_s": 2e10, "spread": 0.0}]
    probe = {
        "date": "yesterday", "quick": True, "spread": None, "machine": {"cpu": "x", "usable_cores": 1},
        "bandwidth_by_working_set": rows, "compute": {},
    }  # fmt: skip
    place.write_text(json.dumps(probe))
    assert "yesterday" in storage_facts()["probe"]["problem"]
    place.write_text(json.dumps(probe | {"date": "2026-01-01T00:00:00"}))  # of no time zone
    assert storage_facts()["probe"]["bytes_per_s"] == 2e10


def test_versions_name_every_dependency_of_the_package():
    dependencies = software.versions()["dependencies"]
    assert {"numpy", "uvicorn", "psutil"} <= dependencies.keys()
    assert all(dependencies.values())
    assert "pytest" not in dependencies  # of an extra


def test_an_isa_path_that_cannot_run_is_told(monkeypatch):
    monkeypatch.setenv("RIDGELINE_ISA", "abacus")
    facts = software.native_facts()
    assert facts["state"] == "misled"
    assert "abacus" in facts["problem"]
    assert facts["paths"]["generic"] is None
    monkeypatch.setenv("RIDGELINE_ISA", "generic")
    assert software.native_facts()["isa"] == "generic"


def test_no_key_is_told(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_verysecret")
    monkeypatch.setenv("https_proxy", "http://anna:password@proxy:1")
    monkeypatch.setenv("RIDGELINE_ISA", "avx2")
    told = software.environment()
    assert told["RIDGELINE_ISA"] == "avx2"
    assert (told["HF_TOKEN"], told["HTTPS_PROXY"]) == ("(set)", "(set)")
    assert not any("secret" in value or "password" in value for value in told.values())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/anna/.cache/x", "~/.cache/x"),
        ("the file /home/anna", "the file ~"),
        ("/home/annabel/x", "/home/annabel/x"),
        ("/scratch/anna/x", "/scratch/USER/x"),
        (r"D:\caches\anna\x", r"D:\caches\USER\x"),
        ("anna is a name", "anna is a name"),
    ],
)
def test_nobody_is_named(text, shown):
    assert hidden(text, "/home/anna", "anna") == shown
