"""`ridgeline probe` prints what was measured, and `plan` uses it."""

import types

import pytest

from ridgeline.cli import main
from ridgeline.cost import probe as probe_module


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    meters = types.SimpleNamespace(
        isa=lambda: "avx2", read_bandwidth=lambda *arguments: 10e9, matmul_flops=lambda *arguments: 2e11
    )
    real = probe_module.measure
    monkeypatch.setattr(
        probe_module, "measure", lambda effort, progress=None: real(effort, progress=progress, meters=meters)
    )
    monkeypatch.setattr(probe_module, "_with_torch", lambda *arguments: None)


def test_json_and_plan(run_json):
    status, report = run_json("probe")
    assert status == 0
    assert report["machine"]["isa"] == "avx2"
    assert {row["rows"] for row in report["matmul"]} == {1, 4, 16, 64, 512}
    assert report["path"].endswith("this.json")
    plan = run_json("plan", "example-8b", "--hardware", "this")[1]
    assert plan["tpot_floor_s"] == pytest.approx(15_007_760_384 / 10e9)
    assert plan["ridge_intensity"] == pytest.approx(20)


def test_for_people(capsys):
    assert main(["probe"]) == 0
    printed = capsys.readouterr().out
    assert "bf16, 512 rows" in printed
    assert "kept as the hardware `this`" in printed
