"""`ridgeline measure` from its arguments to its output, on a scripted server, and once on a real one."""

import asyncio
import json
import signal

import pytest

from checkpoints import make_hf
from fakes_endpoint import FakeEndpoint
from ridgeline.cli import main
from ridgeline.cli.measure_run import Options, looks_like_url, served
from ridgeline.cost.hardware import find_device
from ridgeline.measure.events import Failure
from ridgeline.measure.local_servers import ollama_url
from scripted_latency import ScriptedServer, endpoint, patch_command_line, tpot_s

URL = "http://127.0.0.1:8000"
SMALL = ["--repeats", "3", "--output", "16", "--lengths", "256,1k", "--length-repeats", "2"]
LIMITED = ["--spec", "example-8b", "--hardware", "h100-sxm", "--dtype", "bf16"]
PROMISED_KEYS = {
    "limit_tpot_s", "limit_tpot_weights_s", "tpot_median_s", "tpot_p90_s", "efficiency", "explanation", "points",
    "valid", "invalid_reasons",
}  # fmt: skip
POINT_KEYS = {"prompt_tokens", "cached_tokens", "ttft_median_s", "ttft_p90_s", "tpot_median_s"}


@pytest.fixture
def measure(monkeypatch, capsys):
    def run(*arguments, server=None, target=None, **pages):
        patch_command_line(monkeypatch, target or endpoint(), server or ScriptedServer(), **pages)
        status = main(["measure", URL, *SMALL, *arguments])
        return status, capsys.readouterr()

    return run


def test_json_has_the_promised_keys_and_the_limit_of_the_cost_model(measure):
    status, printed = measure(*LIMITED, "--json")
    result = json.loads(printed.out)
    assert status == 0
    assert set(result) >= PROMISED_KEYS
    assert all(set(point) >= POINT_KEYS for point in result["points"])
    assert [point["prompt_tokens"] for point in result["points"]] == [256, 1024]
    context = result["repeats"]["prompt_tokens"] + 8
    assert result["tpot_median_s"] == pytest.approx(tpot_s(context))
    kv_bytes = 131_072 * context
    bandwidth = find_device("h100-sxm").bandwidth
    extra = result["limit_tpot_s"] - result["limit_tpot_weights_s"]
    assert extra == pytest.approx(kv_bytes / bandwidth, rel=0.01)
    assert result["efficiency"] == pytest.approx(result["limit_tpot_s"] / result["tpot_median_s"])
    assert result["points"][0]["server_prefill_s"] == pytest.approx(result["points"][0]["ttft_median_s"] - 0.001)
    assert f"is {1 / result['efficiency']:.2f}x the limit" in result["explanation"]
    assert len(result["slopes"]) == 2
    assert any(line.startswith("q8 instead of bf16") for line in result["counterfactuals"])


def test_the_expected_duration_is_told_on_stderr_and_json_is_alone_on_stdout(measure):
    _, printed = measure("--json")
    assert printed.err.startswith("measuring: expected to take ")
    assert len(printed.out.splitlines()) == 1


def test_another_host_has_no_limit_but_a_reason(measure):
    status, printed = measure("--json", target=endpoint(url="http://gpu.example:8000", model="example-8b"))
    result = json.loads(printed.out)
    assert status == 0
    assert [result[key] for key in ("limit_tpot_s", "limit_tpot_weights_s", "efficiency")] == [None] * 3
    assert "--hardware" in result["limit_reason"]
    assert result["limit_reason"] in result["explanation"]
    assert result["tpot_median_s"] > 0


def test_a_model_on_a_gpu_never_gets_the_cpus_limit(measure):
    running = {"models": [{"name": "scripted", "size": 10, "size_vram": 6}]}
    status, printed = measure("--json", "--spec", "example-8b", target=endpoint("ollama", server="ollama"), ps=running)
    result = json.loads(printed.out)
    assert status == 0
    assert result["limit_tpot_s"] is None
    assert "GPU" in result["limit_reason"]
    assert any(cause.startswith("40% of the model") for cause in result["causes"])


def test_requests_of_others_are_told(measure):
    busy = [{"id": 0, "is_processing": True}, {"id": 1, "is_processing": False}]
    _, printed = measure("--json", target=endpoint("llamacpp", server="llama.cpp"), slots=busy)
    assert any("busy with 1 request of others" in cause for cause in json.loads(printed.out)["causes"])
    _, printed = measure("--json", target=endpoint("llamacpp", server="llama.cpp"), slots={"error": "no slots here"})
    assert json.loads(printed.out)["causes"] == []


def test_of_ollamas_models_the_one_in_memory_is_measured(measure):
    running = {"models": [{"name": "in-use:latest", "size": 10, "size_vram": 0}]}
    _, printed = measure("--json", target=endpoint("ollama", server="ollama"), ps=running)
    assert json.loads(printed.out)["model"] == "in-use:latest"
    _, printed = measure("--json", "--model", "wanted", target=endpoint("ollama", server="ollama"), ps=running)
    assert json.loads(printed.out)["model"] == "wanted"


def test_an_invalid_run_prints_its_figures_and_exits_1(measure):
    status, printed = measure("--json", server=ScriptedServer(cached=100))
    result = json.loads(printed.out)
    assert (status, result["valid"]) == (1, False)
    assert "prefix cache" in result["invalid_reasons"][0]
    assert result["tpot_median_s"] > 0
    status, printed = measure(server=ScriptedServer(cached=100))
    assert status == 1
    assert "not valid: the prefix cache" in printed.out


def test_nothing_measured_still_is_one_json_object(measure, tmp_path):
    """All repeats and lengths fail: figures are null, there is nothing to draw, and both are said."""
    pytest.importorskip("altair")
    failures = {number: Failure("timeout", "silent") for number in range(2, 100)}
    path = tmp_path / "a.svg"
    status, printed = measure("--json", "--report", str(path), *LIMITED, server=ScriptedServer(failures=failures))
    result = json.loads(printed.out)
    assert status == 1
    assert (result["tpot_median_s"], result["efficiency"], result["points"]) == (None, None, [])
    assert "3 of 3 requests failed: timeout 3" in result["invalid_reasons"]
    assert "no report: nothing was measured" in printed.err
    assert not path.exists()


def test_a_server_that_counts_nothing(measure):
    server = ScriptedServer(counts=False, cached=None, token_source="chunks")
    status, printed = measure("--json", *LIMITED, server=server)
    result = json.loads(printed.out)
    assert status == 0
    assert [point["prompt_tokens"] for point in result["points"]] == [None, None]
    assert (result["cache"], result["token_source"], result["limit_tpot_s"]) == ("unverified", "chunks", None)
    assert result["limit_tpot_weights_s"] > 0
    assert result["explanation"].startswith("Reading the weights takes 4.48 ms; the server does not count")
    notes = " ".join(result["notes"])
    assert "lengths are not known" in notes
    assert "chunks were counted" in notes


@pytest.mark.parametrize("columns", [60, 120])
def test_the_terminal_shows_the_table_bars_and_sentences(measure, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    status, printed = measure(*LIMITED)
    assert status == 0
    lines = printed.out.splitlines()
    assert max(map(len, lines)) <= columns
    heading = next(line for line in lines if line.startswith("limit"))
    assert heading.split()[:6] == ["limit", "median", "TPOT", "P90", "TPOT", "ratio"]
    assert "50 tokens/s of 223 tokens/s, TPOT is 4.49x its limit" in " ".join(printed.out.split())
    assert sum("▒" in line for line in lines) >= 6
    for title in ("slopes", "as the server tells it", "notes"):
        assert title in lines


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--hardware", "h1000"], "unknown hardware"),
        (["--spec", "nobody-knows-me"], "unknown model"),
        (["--spec", "example-8b", "--dtype", "q17"], "number format"),
        (["--lengths", "8"], "--lengths 8"),
        (["--output", "1"], "--output 1"),
        (["--report", "a.pdf"], "--report a.pdf"),
        (["--report", "no/such/place/a.html"], "no directory"),
    ],
)
def test_what_is_misspelt_is_told_before_anything_is_measured(measure, arguments, words):
    server = ScriptedServer()
    status, printed = measure(*arguments, server=server)
    assert status == 1
    assert words in printed.err
    assert server.requests == []


def test_ctrl_c_keeps_what_was_measured_and_marks_it(measure):
    class Interrupted(ScriptedServer):
        async def send(self, request):
            if len(self.requests) == 6:
                signal.raise_signal(signal.SIGINT)
                await asyncio.sleep(3600)
            return await super().send(request)

    status, printed = measure("--json", server=Interrupted())
    result = json.loads(printed.out)
    assert status == 1
    assert result["invalid_reasons"] == ["partial: ended after 3 of 9 requests"]
    assert result["repeats"]["requests"] == 3
    assert result["tpot_median_s"] > 0


def test_no_server_and_no_language_model(capsys):
    assert main(["measure", "127.0.0.1:1", "--json"]) == 1
    assert "is the server running" in json.loads(capsys.readouterr().out)["error"]["hint"]


def test_over_http_with_a_key(capsys):
    with FakeEndpoint("openai", api_key="secret") as fake:
        assert main(["measure", fake.url, *SMALL]) == 1
        assert "--api-key" in capsys.readouterr().err
        main(["measure", fake.url, *SMALL, "--api-key", "secret", "--json"])
        result = json.loads(capsys.readouterr().out)
    assert [point["prompt_tokens"] for point in result["points"]] == [256, 1024]
    assert result["server"] == "vllm"


def test_targets(monkeypatch, tmp_path):
    assert all(map(looks_like_url, ["http://a", "localhost:80", "127.0.0.1:8000/v1", "[::1]:8000"]))
    assert not any(map(looks_like_url, ["smollm2-135m", "ollama:qwen3:8b", str(tmp_path), "org/model"]))
    monkeypatch.delenv("OLLAMA_HOST", raising=False)
    with served("ollama:qwen3:8b", Options()) as (url, options):
        assert (url, options.model) == ("http://127.0.0.1:11434", "qwen3:8b")
    with served("localhost:80", Options(model="m")) as (url, options):
        assert (url, options.model) == ("localhost:80", "m")
    for host, url in {
        "0.0.0.0": "http://127.0.0.1:11434",
        "box:1234": "http://box:1234",
        "https://box:1": "https://box:1",
    }.items():
        monkeypatch.setenv("OLLAMA_HOST", host)
        assert ollama_url() == url


def test_a_model_is_served_and_measured(tmp_path, capsys):
    """A real server process on a tiny checkpoint: its tokens, its cache and its formats are as reported."""
    model = str(make_hf(tmp_path / "tiny", "llama", max_position_embeddings=2048))
    status = main(["measure", model, *SMALL, "--lengths", "256,512", "--hardware", "h100-sxm", "--json"])
    result = json.loads(capsys.readouterr().out)
    assert result["server"] == "ridgeline"
    assert (result["dtype"], result["cache"], result["token_source"]) == ("fp32", "cold", "usage")
    # a unique line takes 27 to 39 tokens of so small a vocabulary
    assert [point["prompt_tokens"] for point in result["points"]] == pytest.approx([256, 512], abs=30)
    assert all(point["cached_tokens"] == 0 and point["failed"] == 0 for point in result["points"])
    if result["tpot_median_s"]:  # a model this small may give its tokens at once
        assert result["efficiency"] > 0
    else:
        assert (result["efficiency"], result["explanation"]) == (None, "No time per output token was measured.")
    assert status == (0 if result["valid"] else 1)
