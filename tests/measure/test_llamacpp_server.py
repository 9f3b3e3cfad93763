"""A real llama.cpp server on a tiny GGUF file, where `llama-server` is installed (the extra `peers`)."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest

from checkpoints import make_gguf, make_hf
from ridgeline.errors import ConfigError
from ridgeline.measure import metrics
from ridgeline.measure.endpoints import Endpoint, GenerationRequest, detect, stream

pytestmark = pytest.mark.skipif(shutil.which("llama-server") is None, reason="llama.cpp's server is not installed")
DEADLINE_S = 120.0


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    directory = tmp_path_factory.mktemp("gguf")
    model = make_gguf(make_hf(directory / "hf", "llama"), directory / "tiny.gguf")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["llama-server", "-m", str(model), "--host", "127.0.0.1", "--port", str(port), "-c", "512", "-t", "1"]
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
    assert (endpoint.server, endpoint.kind, endpoint.context_len) == ("llama.cpp", "llamacpp", 512)


@pytest.mark.parametrize("chat", [False, True])
def test_a_stream_of_tokens(endpoint: Endpoint, chat: bool) -> None:
    prompt = "the quick brown fox"
    request = (
        GenerationRequest(messages=({"role": "user", "content": prompt},), max_tokens=8)
        if chat
        else GenerationRequest(prompt=prompt, max_tokens=8)
    )
    for _ in range(2):  # the second would hit the cache, were it not switched off
        record = asyncio.run(stream(endpoint, request))
        assert record.error is None
        assert (record.n_out, record.cached_tokens) == (8, 0)
        assert record.prompt_tokens
        assert record.server_prefill_s
        assert record.server_decode_s
        assert (metrics.ttft(record) or 0) < (metrics.e2e(record) or 0)
