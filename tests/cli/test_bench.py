"""`ridgeline bench` against a fake server, and once against a real Ridgeline with a tiny checkpoint."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from checkpoints import make_hf
from fakes_endpoint import Answer, FakeEndpoint, Piece, as_asked, words
from ridgeline.cli import INTERRUPTED, main
from ridgeline.cli.bench_view import remarks

DEADLINE_S = 120.0
ELSEWHERE = Path(__file__).parents[1] / "other_system"
SMALL = ["--requests", "8", "--input", "40", "--output", "6"]
POINT_KEYS = {
    "requests", "completed", "failed", "duration_s", "output_tokens_per_s", "ttft_s", "tpot_s", "itl_s", "chunk_gap_s",
    "e2e_s", "ttft_send_s", "output_tokens_per_s_whole_run", "goodput_rps", "attainment", "low_samples", "predicted",
    "token_source", "valid", "invalid_reasons",
}  # fmt: skip


@pytest.fixture(autouse=True)
def data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path / "ridgeline" / "bench"


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    status = main(["bench", *arguments, "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_closed_loop_json(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeEndpoint() as server:
        status, result = as_json(capsys, server.url, *SMALL, "--concurrency", "1,2", "--slo", "ttft=30s,tpot=10s")
    assert [point["concurrency"] for point in result["points"]] == [1, 2]
    for point in result["points"]:
        assert point.keys() >= POINT_KEYS
        assert point["ttft_s"].keys() == {"mean", "p50", "p90", "p99", "count"}
        assert (point["requests"], point["completed"], point["failed"]) == (8, 8, 0)
        assert (point["token_source"], point["attainment"], point["output_tokens"]) == ("usage", 1.0, 48)
        assert "ttft_s.p99" in point["low_samples"]
        assert point["predicted"]["tpot_floor_s"] is None
        assert "--spec" in point["predicted"]["reason"]
        assert point["prompt_tokens_mean"] == point["prompt_tokens_wanted_mean"] == 40
    assert status == (0 if result["valid"] else 1)


def test_predictions_are_stored_beside_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--spec", "llama-3.1-8b", "--hardware", "h100-sxm", "--concurrency", "4"]
    with FakeEndpoint() as server:
        _, result = as_json(capsys, server.url, *SMALL, *arguments)
        main(
            [
                "plan",
                "llama-3.1-8b",
                "--hardware",
                "h100-sxm",
                "--input",
                "40",
                "--output",
                "6",
                "--batch",
                "4",
                "--json",
            ]
        )
    plan = json.loads(capsys.readouterr().out)
    predicted = result["points"][0]["predicted"]
    assert predicted["batch"] == 4
    assert predicted["ttft_floor_s"] == plan["ttft_floor_s"]
    assert predicted["output_tokens_per_s"] == plan["batch_throughput_tokens_per_s"]


def test_open_loop_trace_and_barrier(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(f'{{"timestamp": {t}, "input_length": 30, "output_length": 4}}\n' for t in (0, 20, 25)))
    with FakeEndpoint() as server:
        for load, rate, count in (
            (["--rate", "200", "--arrivals", "gamma", "--burstiness", "0.5"], 200.0, 8),
            (["--trace", str(trace), "--time-scale", "2"], None, 3),
            (["--concurrency", "4", "--barrier"], None, 8),
        ):
            _, result = as_json(capsys, server.url, *SMALL, *load)
            (point,) = result["points"]
            assert (point["rate"], point["completed"]) == (rate, count)


def test_the_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeEndpoint("ollama") as server:
        main(["bench", server.url, *SMALL, "--concurrency", "2", "--slo", "ttft=30s"])
        assert server.bodies[0]["raw"] is True
    shown = capsys.readouterr().out
    told = ("2 at once", "8/8", "TTFT P50", "100.0%", "undecided, ", "rests on few samples", "native", "of a core at")
    for words_ in told:
        assert words_ in shown


def test_a_cache_that_was_to_be_defeated_makes_the_run_invalid(capsys: pytest.CaptureFixture[str]) -> None:
    def cached(body: dict[str, Any]) -> Answer:
        limit = body["max_tokens"]
        return words(limit, prompt_tokens=len(body["prompt"].split()), cached_tokens=20)

    with FakeEndpoint(answers=cached) as server:
        status, result = as_json(capsys, server.url, *SMALL)
        assert status == 1
        assert not result["valid"]
        assert any("prefix cache" in reason for reason in result["points"][0]["invalid_reasons"])
        main(["bench", server.url, *SMALL])
        assert "INVALID: 160 of 320 prompt tokens (50.0%)" in capsys.readouterr().out


def test_check_turns_a_missed_slo_into_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    missed = ["--slo", "ttft=1us"]
    with FakeEndpoint() as server:
        status, result = as_json(capsys, server.url, *SMALL, *missed)
        assert status == (0 if result["valid"] else 1)
        assert result["points"][0]["attainment"] == 0.0
        assert as_json(capsys, server.url, *SMALL, *missed, "--check")[0] == 1


def test_a_storm_of_429(capsys: pytest.CaptureFixture[str]) -> None:
    def storm(body: dict[str, Any]) -> Answer:
        busy = Answer(status=429, error={"error": {"message": "slow down"}})
        return as_asked(body) if len(server.bodies) < 6 else busy

    with FakeEndpoint(answers=storm) as server:
        status, result = as_json(capsys, server.url, *SMALL, "--concurrency", "2", "--slo", "ttft=30s")
    (point,) = result["points"]
    assert point["errors"] == {"http_429": 7}
    assert point["attainment"] <= 1 / 8
    assert status == (0 if result["valid"] else 1)


@pytest.mark.parametrize(
    ("arguments", "words_"),
    [
        (["--rate", "1", "--concurrency", "2"], "exclude each other"),
        (["--rate", "1", "--barrier"], "exclude each other"),
        (["--concurrency", "0"], "--concurrency"),
        (["--concurrency", "1.5"], "whole numbers"),
        (["--rate", "fast"], "--rate"),
        (["--find-capacity", "--slo", "ttft=1s"], "does nothing without --rate"),
        (["--check"], "does nothing without --slo"),
        (["--arrivals", "gamma"], "does nothing without --rate"),
        (["--rate", "1", "--burstiness", "2"], "does nothing without --arrivals gamma"),
        (["--time-scale", "2"], "does nothing without --trace"),
        (["--workload", "chat", "--shared-prefix", "0.5"], "chat and shared-prefix exclude each other"),
        (["--workload", "uneven", "--output", "5"], "lengths of their own"),
        (["--slo", "speed=1s"], "speed"),
        (["--workload", "heavy"], "heavy"),
        (["--schedulers", "static"], "for a MODEL"),
        (["--schedulers", "fast"], "static, continuous"),
        (["--report", "chart.pdf"], ".html"),
    ],
)
def test_what_makes_no_sense(capsys: pytest.CaptureFixture[str], arguments: list[str], words_: str) -> None:
    assert main(["bench", "127.0.0.1:1", *arguments]) == 1
    assert words_ in capsys.readouterr().err


def test_servers_that_cannot_be_measured(capsys: pytest.CaptureFixture[str]) -> None:
    status, result = as_json(capsys, "http://127.0.0.1:1", *SMALL)
    assert status == 1
    assert result["error"]["hint"] == "is the server running there?"
    with FakeEndpoint(answers=[Answer(html=True)]) as server:
        status, result = as_json(capsys, server.url, *SMALL)
        assert (status, "HTML" in result["error"]["message"]) == (1, True)
    with FakeEndpoint(api_key="secret") as server:
        status, result = as_json(capsys, server.url, *SMALL)
        assert (status, "--api-key" in result["error"]["hint"]) == (1, True)
        assert as_json(capsys, server.url, *SMALL, "--api-key", "secret")[1]["points"][0]["completed"] == 8


def test_a_strict_gateway_that_lists_no_models(capsys: pytest.CaptureFixture[str]) -> None:
    """What it refuses is left out from the first small request on, and told."""

    def answer(body: dict[str, Any]) -> Answer:
        if "stream_options" in body:
            return Answer(status=422, error={"detail": [{"loc": ["body", "stream_options"], "msg": "Extra inputs"}]})
        return Answer([Piece(f"w{i} ") for i in range(body["max_tokens"])])

    with FakeEndpoint(answers=answer, pages={"/v1/models": {}}) as server:
        status = main(["bench", server.url, "--model", "m", *SMALL, "--concurrency", "2", "--json"])
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert (result["server"], result["model"]) == ("unknown", "m")
    assert result["concessions"] == [
        "the server refuses stream_options: sent without, it may not count its tokens then"
    ]
    assert f"note: {result['concessions'][0]}" in printed.err
    (point,) = result["points"]
    assert (point["completed"], point["token_source"]) == (8, "chunks")
    assert status == (0 if result["valid"] else 1)
    assert sum("stream_options" in body for body in server.bodies) == 1


def test_a_refusal_is_not_taken_for_a_missing_model(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeEndpoint(answers=[Answer(status=422, error={"detail": "user: Field required"})]) as server:
        assert main(["bench", server.url, *SMALL, "--concurrency", "1"]) == 1
    error = capsys.readouterr().err
    assert "user: Field required" in error
    assert "refuses the request itself" in error
    assert "loaded" not in error


def test_capacity(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--rate", "1000", "--find-capacity", "--slo", "ttft=1us"]
    with FakeEndpoint() as server:
        _, result = as_json(capsys, server.url, "--requests", "1", "--input", "40", "--output", "2", *arguments)
    assert (result["capacity"]["rate"], result["capacity"]["verdict"]) == (None, None)
    assert [point["rate"] for point in result["points"]][-1] == 1000 / 64


def test_stored_runs_are_listed_and_compared(capsys: pytest.CaptureFixture[str], data_directory: Path) -> None:
    with FakeEndpoint() as server:
        ids = [as_json(capsys, server.url, *SMALL)[1]["id"] for _ in range(2)]
    assert len((data_directory / f"{ids[0]}.jsonl").read_text().splitlines()) == 8
    status, result = as_json(capsys, "list")
    assert (status, [run["id"] for run in result["runs"]]) == (0, ids)
    status, result = as_json(capsys, "compare", *ids)
    assert status == 0
    assert result["points"][0]["ttft_s"]["verdict"] in ("slower", "faster", "no difference shown")
    assert main(["bench", "compare", "last-1", "last"]) == 0
    assert main(["bench", "list"]) == 0
    shown = capsys.readouterr().out
    assert all(run_id in shown for run_id in ids)
    assert as_json(capsys, "compare", ids[0])[0] == 1
    assert as_json(capsys, "compare", ids[0], "1999")[0] == 1


@pytest.mark.parametrize("python_path", ["", str(ELSEWHERE)], ids=["here", "without signal handlers of the loop"])
def test_ctrl_c_keeps_what_was_measured(data_directory: Path, python_path: str) -> None:
    reached = threading.Event()

    def stalls_at_last(body: dict[str, Any]) -> Answer:
        if len(server.bodies) < 9:  # two to fit, one to warm up, five that are measured
            return as_asked(body)
        reached.set()
        return Answer([Piece("a")], stalls=True)

    with FakeEndpoint(answers=stalls_at_last) as server:
        command = [sys.executable, "-m", "ridgeline.cli", "bench", server.url, *SMALL, "--json"]
        environment = os.environ | {"XDG_DATA_HOME": str(data_directory.parent.parent), "PYTHONPATH": python_path}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert reached.wait(DEADLINE_S)
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == INTERRUPTED
    result = json.loads(output)
    (point,) = result["points"]
    assert result["partial"]
    assert (point["completed"], point["interrupted"]) == (5, 1)
    assert (data_directory / f"{result['id']}.jsonl").exists()


def test_a_real_server_under_both_schedulers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """MODEL instead of URL: the server is started for each scheduler, measured and stopped."""
    checkpoint = str(make_hf(tmp_path / "model", "llama"))
    serve = "--threads 1 --kv-memory 8MB --max-requests 2"
    work = ["--requests", "8", "--input", "150", "--output", "6", "--workload", "fixed", "--concurrency", "2"]
    arguments = [*work, "--schedulers", "static,continuous", "--serve-options", serve, "--hardware", "h100-sxm"]
    status, result = as_json(capsys, checkpoint, *arguments)
    assert [point["scheduler"] for point in result["points"]] == ["static", "continuous"]
    assert result["server"] == "ridgeline"
    for point in result["points"]:
        assert (point["completed"], point["failed"], point["output_tokens"]) == (8, 0, 48)
        assert (point["cached_tokens"], point["hit_rate"], point["token_source"]) == (0, 0.0, "usage")
        assert point["predicted"]["tpot_floor_s"] > 0
        assert point["predicted"]["tpot_floor_s"] < point["e2e_s"]["p50"]  # tokens of so small a model come at once
        assert point["slowest"][0]["server"].keys() >= {"queue_s", "prefill_s", "decode_s"}
        assert not any("cache" in reason for reason in point["invalid_reasons"])
    assert status == (0 if result["valid"] else 1)


def test_what_continuous_batching_gains() -> None:
    def point(scheduler: str, tokens_per_s: float, ttft: float) -> dict[str, Any]:
        figures = {"output_tokens_per_s_whole_run": tokens_per_s, "ttft_s": {"p50": ttft}, "output_tokens_per_s": None}
        judged = {"predicted": {}, "notes": [], "invalid_reasons": [], "low_samples": []}
        return {"load": "closed", "concurrency": 4, "rate": None, "scheduler": scheduler, **figures, **judged}

    points = [point("static", 100.0, 3.0), point("continuous", 180.0, 0.5)]
    told = "4 at once, continuous: 1.80 times the throughput of static, TTFT P50 6.00 times lower"
    assert remarks({"points": points, "capacity": None}) == [told]
    sure = {"rate": 2.0, "missed_at": 4.0, "verdict": "pass", "more_requests": 0}
    assert remarks({"points": points[1:], "capacity": sure}) == ["the SLO is met up to 2 requests/s, and missed at 4"]
    [told] = remarks({"points": points[1:], "capacity": sure | {"verdict": "undecided", "more_requests": 12}})
    assert "it may be luck: 12 more without a miss would make 99 % sure), and missed at 4" in told


def test_a_model_that_does_not_start_is_quoted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, result = as_json(capsys, str(tmp_path / "nothing"), *SMALL)
    assert status == 1
    assert "did not start" in result["error"]["message"]
    assert "nothing" in result["error"]["message"]
