"""What doctor says is wrong: each fault planted alone into the report of a machine where nothing is."""

import copy

import pytest

from ridgeline.doctor.findings import find

_PLACE = {"path": "~/x", "files": 1, "bytes": 1, "stale_files": 0, "stale_bytes": 0, "free_bytes": 10**11,
          "writable": True}  # fmt: skip
HEALTHY = {
    "machine": {
        "processor": "Fast CPU 9000", "installed_cores": 4, "affinity_cores": 4, "quota_cores": None, "usable_cores": 4,
        "governor": "performance", "load_average": [0.5, 0.4, 0.3], "stolen_share": 0.0,
        "memory_bytes": 32 * 10**9, "available_memory_bytes": 20 * 10**9, "swap_used_bytes": 0,
        "transparent_huge_pages": "madvise", "has_nvidia_gpu": False,
    },
    "system": {"name": "Linux"},
    "native": {"state": "ok", "problem": None, "hint": None, "isa": "avx512",
               "paths": {"amx": "this CPU has no AMX", "avx512": None, "generic": None}},
    "versions": {"dependencies": {"numpy": "2.4"}},
    "storage": {
        "packed": _PLACE, "kv_pages": None, "bench_runs": dict(_PLACE),
        "probe": {"path": "~/this.json", "problem": None, "date": "2026-12-01", "age_days": 3, "quick": False,
                  "machine": {"cpu": "Fast CPU 9000", "usable_cores": 4, "isa": "avx512"}},
    },
    "model": {"name": "smollm2-135m", "bytes": 1, "hint": None},
    "gpu": None,
    "port": {"number": 8000, "busy": False},
}  # fmt: skip

FAULTS = [  # where, what, severity, words of the problem or the advice
    ("machine.load_average", [9.0, 1.0, 1.0], "warning", "9.0 with 4 usable cores"),
    ("machine.stolen_share", 0.11, "warning", "11%"),
    ("machine.governor", "performance, powersave", "warning", "powersave"),
    ("machine.quota_cores", 1.5, "note", "1.5 of 4 cores"),
    ("machine.available_memory_bytes", 10**9, "warning", "1.00 GB"),
    ("machine.swap_used_bytes", 3 * 10**9, "warning", "swapped out"),
    ("machine.transparent_huge_pages", "never", "warning", "echo madvise"),
    ("native.paths", {"amx": None, "avx512": None}, "warning", "forces avx512, where amx could run"),
    ("native.paths.amx", "the operating system refuses this process the tiles' registers", "warning", "refuses"),
    ("versions.dependencies.numpy", None, "error", "numpy"),
    ("storage.packed.writable", False, "warning", "--packed-dir"),
    ("storage.packed.free_bytes", 10**6, "warning", "1.00 MB"),
    ("storage.packed.stale_files", 2, "note", "2 files"),
    ("storage.probe.problem", "~/this.json is damaged", "error", "ridgeline probe"),
    ("storage.probe.date", None, "note", "not measured yet"),
    ("storage.probe.quick", True, "note", "two-second"),
    ("storage.probe.age_days", 200, "note", "200 days"),
    ("storage.probe.machine.cpu", "Old CPU 1", "warning", "another machine (Old CPU 1 with 4"),
    ("storage.probe.machine.isa", "amx", "warning", "ISA path amx, avx512 runs now"),
    ("model", {"name": "smollm2-135m", "bytes": None, "hint": "pip install it"}, "note", "pip install it"),
    ("port.busy", True, "note", "--port 8001"),
    ("gpu", {"torch": "2.13.0+cpu", "cuda": None, "usable": False}, "warning", "built without CUDA"),
    ("gpu", {"torch": "2.13.0", "cuda": "13.0", "usable": False}, "warning", "driver"),
]  # fmt: skip


def planted(where, value):
    report = copy.deepcopy(HEALTHY)
    *path, last = where.split(".")
    part = report
    for name in path:
        part = part[name]
    part[last] = value
    return report


def test_nothing_is_found_where_nothing_is_wrong():
    assert find(HEALTHY) == []
    assert find(planted("gpu", {"torch": "2.13.0", "cuda": "13.0", "usable": True})) == []


@pytest.mark.parametrize(("where", "value", "severity", "words"), FAULTS)
def test_each_fault_is_found_with_what_to_do(where, value, severity, words):
    [finding] = find(planted(where, value))
    assert finding.severity == severity
    assert words in f"{finding.problem}: {finding.advice}"


def test_what_a_system_does_not_tell_is_no_fault():
    for name in ("load_average", "stolen_share", "governor", "quota_cores", "transparent_huge_pages"):
        assert find(planted(f"machine.{name}", None)) == []


@pytest.mark.parametrize(
    ("state", "system", "severity"),
    [
        ("missing", "Linux", "warning"),
        ("missing", "Darwin", "note"),  # as it is meant there
        ("foreign", "Linux", "error"),
        ("broken", "Linux", "error"),
        ("misled", "Linux", "error"),
    ],
)
def test_a_native_part_that_is_not_ready(state, system, severity):
    report = planted("native", {"state": state, "problem": "no", "hint": "do", "isa": None, "paths": {}})
    report["system"]["name"] = system
    [finding] = find(report)
    assert (finding.severity, finding.advice) == (severity, "do")


def test_the_worst_comes_first():
    report = planted("storage.probe.problem", "damaged")
    report["port"]["busy"] = True
    report["machine"]["load_average"] = [9.0, 9.0, 9.0]
    assert [finding.severity for finding in find(report)] == ["error", "warning", "note"]
