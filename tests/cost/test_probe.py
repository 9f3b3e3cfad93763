"""The probe on a machine of known speed: it measures what it should, keeps the best, and is kept as `this`."""

import dataclasses
import json
import types

import pytest

from ridgeline.cost import probe as probe_module
from ridgeline.cost.probe import FULL, QUICK, ROWS, last_level_cache, measure, thread_counts, working_sets
from ridgeline.cost.this import from_probe, load_this, load_this_gpu, save, saved_path
from ridgeline.errors import ConfigError

CACHE = 64 << 20


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(probe_module, "usable_cores", lambda: 6)
    monkeypatch.setattr(probe_module, "available_memory", lambda: 8 << 30)
    monkeypatch.setattr(probe_module, "last_level_cache", lambda: CACHE)
    monkeypatch.setattr(probe_module, "_with_torch", lambda *arguments: None)


@pytest.fixture
def meters():
    """40 GB/s within the cache, 10 beyond; every second reading is a tenth slower."""
    calls = []

    def read_bandwidth(num_bytes, threads, seconds):
        calls.append((num_bytes, threads))
        return (40e9 if num_bytes <= CACHE else 10e9) * (0.9 if len(calls) % 2 else 1.0)

    def matmul_flops(dtype, rows, inner, outputs, threads, seconds):
        assert threads == 6
        return {"fp32": 1e11, "bf16": 4e11, "int8": 8e11}[dtype] * min(rows, 64)

    return types.SimpleNamespace(
        read_bandwidth=read_bandwidth, matmul_flops=matmul_flops, isa=lambda: "avx2", calls=calls
    )


def test_the_whole_probe(meters):
    stages = []
    probe = measure(FULL, progress=lambda stage, share: stages.append(share), meters=meters)
    assert list(probe.by_threads) == [1, 2, 4, 6]
    assert {(dtype, rows) for dtype, rows in probe.matmul} == {(d, r) for d in ("fp32", "bf16", "int8") for r in ROWS}
    assert max(probe.by_working_set) == 1 << 30  # beyond the cache
    assert all(reading.best == 10e9 for reading in probe.by_threads.values())  # the best of the repeats
    assert all(reading.spread == pytest.approx(0.1) for reading in probe.by_threads.values())
    assert 0 <= probe.spread <= 0.1
    assert probe.compute("bf16") == 64 * 4e11
    assert stages == sorted(stages)
    assert stages[-1] == 1.0


def test_a_probe_becomes_the_hardware_this(meters):
    assert load_this() is None
    save(measure(FULL, meters=meters).as_json())
    this = load_this()
    assert (this.name, this.bandwidth) == ("this", 10e9)
    assert this.bandwidth_for(CACHE) == 40e9
    assert this.bandwidth_for(1 << 40) == 10e9
    assert this.compute == {"fp32": 64e11, "bf16": 256e11, "int8": 512e11}
    assert this.memory_bytes > 0
    assert "measured, spread" in this.confidence
    assert "probed 20" in this.source


def test_a_disturbed_reading_is_not_believed(meters):
    report = measure(QUICK, meters=meters).as_json()
    report["bandwidth_by_working_set"] = [
        {"bytes": n, "bytes_per_s": rate} for n, rate in ((1, 8.0), (2, 3.0), (3, 5.0))
    ]
    assert from_probe(report).bandwidth_by_working_set == ((1, 8.0), (2, 5.0), (3, 5.0))


def test_a_quick_one_is_labelled_and_measures_less(meters):
    report = measure(QUICK, meters=meters).as_json()
    assert "two seconds" in from_probe(report).confidence
    quick = len(meters.calls)
    measure(FULL, meters=meters)
    assert quick < (len(meters.calls) - quick) / 3


def test_a_slow_machine_gets_fewer_repeats_not_a_longer_probe(meters):
    hurried = dataclasses.replace(FULL, budget_s=0.0)
    probe = measure(hurried, meters=meters)
    assert len(meters.calls) == len(probe.by_threads) - 1 + len(probe.by_working_set)  # the last ones are the same
    assert probe.spread is None
    save(probe.as_json())
    assert load_this().confidence == "measured"


def test_thread_counts():
    assert [thread_counts(n) for n in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


def test_working_sets_reach_beyond_the_cache_but_not_beyond_memory():
    sizes = working_sets(300 << 20, 64 << 30, is_quick=False)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == 1200 << 20
    assert working_sets(300 << 20, 1 << 30, is_quick=False)[-1] == 256 << 20
    assert len(working_sets(300 << 20, 64 << 30, is_quick=True)) <= 4


def test_the_last_level_cache(tmp_path):
    assert last_level_cache(tmp_path) == 0
    for index, size in enumerate(("48K", "2048K", "307200K")):
        folder = tmp_path / f"sys/devices/system/cpu/cpu0/cache/index{index}"
        folder.mkdir(parents=True)
        (folder / "size").write_text(size + "\n")
    assert last_level_cache(tmp_path) == 300 << 20


def test_an_isa_path_that_is_not_there_is_told_before_anything_is_measured(monkeypatch):
    monkeypatch.setenv("RIDGELINE_ISA", "sse9")
    with pytest.raises(ConfigError, match="RIDGELINE_ISA: unknown ISA path 'sse9'"):
        measure(QUICK)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"date": "x"}'])
def test_a_damaged_file_says_what_to_do(text):
    saved_path().parent.mkdir(parents=True)
    saved_path().write_text(text)
    with pytest.raises(ConfigError, match="damaged") as caught:
        load_this()
    assert "ridgeline probe" in caught.value.hint


def test_a_gpu_is_hardware_of_its_own(meters):
    with pytest.raises(ConfigError, match="no GPU"):
        load_this_gpu()
    report = measure(FULL, meters=meters).as_json()
    gpu = {"name": "G", "memory_bytes": 80, "bytes_per_s": 3e12, "compute": {"bf16": 9e14, "fp32": 5e13}}
    save(json.loads(json.dumps(report | {"gpu": gpu})))
    found = load_this_gpu()
    assert (found.memory_bytes, found.bandwidth_for(10), found.compute["bf16"]) == (80, 3e12, 9e14)
