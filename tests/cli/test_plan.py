"""`ridgeline plan` as people call it: what it prints, its JSON, its refusals."""

import json
import re

import pytest

from ridgeline.cli import main, plan_input
from ridgeline.cost.plan import Plan
from ridgeline.model.catalog import catalog_entry
from ridgeline.native_part import NativePartError

GPU = ("--hardware", "example-gpu")


@pytest.fixture(autouse=True)
def no_probe_of_this_machine(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


def test_json(run_json):
    status, report = run_json("plan", "example-8b", *GPU, "--input", "2000", "--output", "500", "--batch", "32")
    assert status == 0
    assert set(report) >= set(Plan.__dataclass_fields__)
    assert report["headline"] == "exact"
    assert report["textbook"]["speedup"] == pytest.approx(19.3, abs=0.05)


def test_for_people(capsys):
    assert main(["plan", "example-8b", *GPU]) == 0
    printed = capsys.readouterr().out
    for text in ("8,028,164,096", "131,072 bytes", "290 ms", "320 ms", "97 (77 in the engine's pages)", "█", "why"):
        assert text in printed
    assert printed.index("exact") < printed.index("textbook")


def test_textbook_first(run_json, capsys):
    assert run_json("plan", "example-8b", *GPU, "--textbook")[1]["headline"] == "textbook"
    main(["plan", "example-8b", *GPU, "--textbook"])
    printed = capsys.readouterr().out
    assert printed.index("textbook") < printed.index("exact")


def test_token_counts_take_k_and_sizes_are_decimal(run_json):
    _, report = run_json(
        "plan", "example-8b", "--bandwidth", "1000", "--compute", "100", "--memory", "48", "--context", "32k"
    )
    assert report["hardware"] == "custom"
    assert report["kv_bytes_total"] == 32_768 * 131_072
    assert report["memory_free_after_weights_bytes"] == 48 * 10**9 - 16_056_328_192
    assert report["ridge_intensity"] == 100


def test_devices_and_formats(run_json):
    _, report = run_json("plan", "example-8b", *GPU, "--devices", "2", "--dtype", "INT4", "--kv-dtype", "fp8")
    assert (report["devices"], report["dtype"], report["kv_bytes_per_token"]) == (2, "int4", 65_536)
    assert "talk for free" in " ".join(report["assumptions"])
    stored = run_json("plan", "deepseek-v3", *GPU)[1]
    assert stored["weight_bytes"] < 1.05 * stored["parameters"]  # released in fp8, which auto takes


def test_show_work(run_json, capsys):
    main(["plan", "example-8b", *GPU, "--show-work"])
    assert "2 x 32 x 8 x 128 x 2 = 131,072 bytes" in capsys.readouterr().out
    report = run_json("plan", "example-8b", *GPU, "--show-work")[1]
    assert set(report["work"]) >= {"ttft_floor_s", "tpot_floor_s", "max_concurrent_requests", "textbook.tpot_s"}


def test_speculation(run_json):
    report = run_json("plan", "example-8b", *GPU, "--speculate", "4,0.7,draft:qwen3-0.6b")[1]["speculation"]
    assert (report["num_drafts"], report["draft"]) == (4, "qwen3-0.6b")
    assert 1 < report["speedup"] < report["tokens_per_step"]
    assert report["break_even_batch"] > 1


def test_slo_and_price(run_json, capsys):
    arguments = ("plan", "example-8b", *GPU, "--slo", "tpot=50ms,ttft=1s", "--rate", "5", "--price-per-hour", "$2")
    service = run_json(*arguments)[1]["service"]
    assert (service["binds"], service["replicas"]) == ("tpot", 4)
    assert service["prices"]["output_to_input_ratio"] > 1
    main(list(arguments))
    assert "tpot binds (memory 77" in capsys.readouterr().out


def test_what_to_change_when_nothing_fits(run_json, capsys):
    arguments = ("plan", "example-8b", "--hardware", "rtx-4070")
    assert any(line.startswith("--dtype int4") for line in run_json(*arguments)[1]["advice"])
    main(list(arguments))
    printed = capsys.readouterr().out
    assert "too large" in printed
    assert "nothing fits; what would" in printed


def test_devices_are_ranked(run_json, capsys):
    arguments = ("plan", "example-8b", "--compare", "l40s,h100-sxm", "--slo", "tpot=50ms", "--price-per-hour", "1,3")
    report = run_json(*arguments)[1]
    assert report["compared"] == "hardware"
    costs = [entry["service"]["prices"]["output_per_million"] for entry in report["plans"]]
    assert costs == sorted(costs)
    assert report["ranked_by"] == "dollars per million output tokens"
    by_speed = run_json("plan", "example-8b", "--compare", "l40s,h100-sxm")[1]
    assert [entry["name"] for entry in by_speed["plans"]] == ["h100-sxm", "l40s"]
    main(list(arguments))
    assert "ranked by dollars" in capsys.readouterr().out


def test_a_device_that_cannot_serve_ranks_last(run_json):
    report = run_json("plan", "llama-2-70b", "--compare", "l4,h200", "--slo", "tpot=80ms", "--price-per-hour", "0.5,4")[
        1
    ]
    assert [entry["name"] for entry in report["plans"]] == ["h200", "l4"]


def test_formats_and_models_side_by_side(run_json):
    separate = run_json("plan", "example-8b", *GPU, "--dtype", "int4", "--head-dtype", "int8-g64")[1]
    assert separate["dtype"] == "int4+int8-g64"
    formats = run_json("plan", "example-8b", *GPU, "--compare", "bf16,int4")[1]
    assert [entry["dtype"] for entry in formats["plans"]] == ["bf16", "int4"]
    models = run_json("plan", "example-8b", *GPU, "--compare", "qwen3-0.6b")[1]
    assert [entry["model"] for entry in models["plans"]] == ["example-8b", "qwen3-0.6b"]


def test_emit(capsys, run_json):
    assert main(["plan", "example-8b", *GPU, "--emit", "vllm"]) == 0
    assert capsys.readouterr().out.startswith("vllm serve example-8b")
    assert run_json("plan", "example-8b", *GPU, "--emit", "vllm")[1]["command"].startswith("vllm serve")


@pytest.mark.parametrize(("suffix", "magic"), [("png", b"\x89PNG"), ("svg", b"<svg"), ("html", b"<!DOCTYPE html>")])
def test_charts(suffix, magic, tmp_path, capsys):
    path = tmp_path / f"chart.{suffix}"
    assert main(["plan", "example-8b", *GPU, "--chart", str(path)]) == 0
    assert path.read_bytes().lstrip().startswith(magic)
    if suffix == "svg":
        for text in ("prefill 2,000", "decode x 32", "example-gpu: 48 GB", "weights: 16.1 GB"):
            assert text in path.read_text()


def test_listing(run_json, capsys):
    report = run_json("plan", "--list")[1]
    assert {"qwen3-0.6b", "llama-3.1-8b", "example-8b"} <= set(report["models"])
    assert len(report["hardware"]) == 96
    main(["plan", "--list"])
    assert "h100-sxm-80gb" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--hardware", "h100"], "h100-sxm-80gb, h100-pcie-80gb, h100-nvl-94gb"),
        (["--hardware", "h100-sxn"], "h100-sxm-80gb"),
        ([*GPU, "--batch", "-1"], "--batch"),
        ([*GPU, "--batch", "0"], "--batch is 0"),
        ([*GPU, "--input", "1e9"], "--input"),
        ([*GPU, "--output", "9999999999999"], "--output"),
        ([*GPU, "--cached", "2000"], "--cached"),
        (["--bandwidth", "nan"], "--bandwidth"),
        (["--bandwidth", "-1"], "--bandwidth"),
        (["--memory", "0"], "--memory"),
        (["--compute", "1e40"], "--compute"),
        ([*GPU, "--dtype", "int3"], "int3"),
        ([*GPU, "--kv-dtype", "fp3"], "fp3"),
        ([*GPU, "--slo", "tpot=50"], "50ms"),
        ([*GPU, "--rate", "3"], "--slo"),
        ([*GPU, "--speculate", "4"], "--speculate"),
        ([*GPU, "--speculate", "4,1.5"], "1.5"),
        ([*GPU, "--emit", "vlm"], "vllm"),
        ([*GPU, "--chart", "x.gif"], ".png"),
        ([*GPU, "--compare", "h100,l40s"], "ambiguous"),
        ([*GPU, "--compare", "no-such-thing"], "no-such-thing"),
        (["--compare", "l4,l40s", "--price-per-hour", "1,2,3"], "3 prices for 2 devices"),
        ([*GPU, "--price-per-hour", "1,2"], "--compare"),
        ([*GPU, "--price-per-hour", "-1"], "--price-per-hour"),
        ([*GPU, "--compare", "bf16,int8", "--emit", "vllm"], "--emit"),
        ([*GPU, "--compare", ""], "unknown"),
        (["--compare", "h100-sxn,l40s"], "h100-sxm-80gb"),
        ([*GPU, "--compare", "int8,int3"], "int3"),
    ],
)
def test_bad_input_is_one_line_that_says_what_to_do(arguments, words, capsys):
    assert main(["plan", "example-8b", *arguments]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    error, *hint = captured.err.splitlines()
    assert error.startswith("error: ")
    assert len(hint) <= 1
    assert words in captured.err


@pytest.mark.parametrize("model", ["/no/such/config.json", "exampel-8b", "config"])
def test_a_model_that_is_not_there(model, run_json):
    status, report = run_json("plan", model, *GPU)
    assert status == 1
    assert report["error"]["code"] == "config_error"


def test_a_config_without_layers(tmp_path, run_json):
    config = catalog_entry("example-8b")["config"]
    del config["num_hidden_layers"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    status, report = run_json("plan", str(tmp_path / "config.json"), *GPU)
    assert status == 1
    assert "num_hidden_layers" in report["error"]["message"] + str(report["error"]["hint"])


def test_no_model_is_a_usage_error(capsys):
    assert main(["plan"]) == 2
    assert "MODEL is missing" in re.sub(r"\s+", " ", capsys.readouterr().err)


class TestThisMachine:
    """Without --hardware, and without a probe."""

    PROBE = {  # noqa: RUF012
        "date": "2026-01-02T03:04:05+00:00", "quick": True, "spread": 0.1,
        "machine": {"cpu": "C", "usable_cores": 2},
        "bandwidth_by_working_set": [{"bytes": 1 << 20, "bytes_per_s": 5e10}, {"bytes": 1 << 30, "bytes_per_s": 1e10}],
        "compute": {"fp32": 1e11, "bf16": 4e11},
        "gpu": None,
    }  # fmt: skip

    def test_a_quick_look_is_taken_once_and_labelled(self, monkeypatch, capsys):
        looks = []

        def measure(effort):
            looks.append(effort.is_quick)
            return type("Probe", (), {"as_json": lambda self: TestThisMachine.PROBE})()

        monkeypatch.setattr("ridgeline.cost.probe.measure", measure)
        for _ in range(2):
            assert main(["plan", "example-8b", "--json"]) == 0
        captured = capsys.readouterr()
        assert looks == [True]
        assert "`ridgeline probe` does it well" in captured.err
        report = json.loads(captured.out.splitlines()[-1])
        assert report["hardware"] == "this"
        assert report["tpot_floor_s"] == pytest.approx(15_007_760_384 / 1e10)
        assert "measured in two seconds" in " ".join(report["assumptions"])

    def test_a_machine_that_cannot_be_measured_leaves_nulls_and_says_why(self, monkeypatch, capsys):
        def native_part():
            raise NativePartError("no native part", hint="build it", state="missing")

        monkeypatch.setattr("ridgeline.cost.ask.native_part", native_part)
        assert main(["plan", "example-8b", "--json"]) == 0
        captured = capsys.readouterr()
        assert "not measured (no native part)" in captured.err
        report = json.loads(captured.out)
        assert report["hardware"] is report["tpot_floor_s"] is report["max_concurrent_requests"] is None
        assert report["weight_bytes"] == 16_056_328_192


@pytest.mark.parametrize(("text", "value"), [("1000", 1e12), ("3.35TB/s", 3.35e12), ("1000 GB/s", 1e12), ("1e3", 1e12)])
def test_bandwidth(text, value):
    assert plan_input.parse_bandwidth(text) == pytest.approx(value)


@pytest.mark.parametrize(("text", "value"), [("48", 48 * 10**9), ("48GB", 48 * 10**9), ("48GiB", 48 << 30)])
def test_memory(text, value):
    assert plan_input.parse_memory(text) == value
