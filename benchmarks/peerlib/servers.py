"""The engines that serve: started, waited for, loaded by `ridgeline bench`, stopped."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from peerlib import weights
from peerlib.cases import CLIENTS, OUTPUT_TOKENS, PROMPT_TOKENS
from peerlib.engines import Engine, Setup
from peerlib.processes import stop

_REQUEST_TOKENS = 512  # room for a prompt and an answer, and for prompts that are fitted to their length
_POLL_S = 0.005
_READY_TIMEOUT_S = 400.0
_BENCH_TIMEOUT_S = 550.0
_REQUESTS_PER_CLIENT = 4


@dataclass(frozen=True)
class Server:
    """`ready_s`: from the start of its process to the first healthy answer."""

    engine: Engine
    url: str
    process: subprocess.Popen[bytes]
    ready_s: float

    def peak_rss_mib(self) -> float:
        return peak_rss_mib(self.process.pid)


@contextlib.contextmanager
def serving(setup: Setup, engine: Engine, options: dict[str, str]) -> Iterator[Server]:
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    command, variables = _command(setup, engine, options, port)
    start = time.perf_counter()
    with setup.log(engine) as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | variables)
    try:
        _wait(process, f"{url}/health", engine, setup)
        yield Server(engine, url, process, time.perf_counter() - start)
    finally:
        stop(process)


def _command(setup: Setup, engine: Engine, options: dict[str, str], port: int) -> tuple[list[str], dict[str, str]]:
    """All get the same number of threads, room for as many tokens, and no prefix cache."""
    path, threads = str(setup.path(engine)), str(setup.threads)
    if engine.kind == "llamacpp":
        command = [str(setup.environment.llama_cpp("llama-server")), "-m", path, "--port", str(port), "-t", threads]
        command += ["-np", str(CLIENTS), "-c", str(CLIENTS * _REQUEST_TOKENS), "-fa", options["flash"]]
        command += ["--no-cache-prompt", "--cache-ram", "0"]
        return command, {}
    if engine.kind == "vllm":
        command = [setup.python(engine), "-m", "vllm.entrypoints.openai.api_server", "--model", path]
        command += ["--port", str(port), "--dtype", "bfloat16", "--max-model-len", "4096", "--max-num-seqs", "64"]
        command += ["--no-enable-prefix-caching"]
        bind = f"0-{setup.threads - 1}"
        return command, {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": bind, "OMP_NUM_THREADS": threads}
    kv_memory = setup.kv_bytes(CLIENTS * _REQUEST_TOKENS)
    command = [sys.executable, "-m", "ridgeline.cli", "serve", path, "--port", str(port), "--threads", threads]
    command += ["--kv-memory", str(kv_memory), "--dtype", options["dtype"], "--no-prefix-cache"]
    return command + (["--kv-dtype", options["kv_dtype"]] if "kv_dtype" in options else []), {}


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _wait(process: subprocess.Popen[bytes], url: str, engine: Engine, setup: Setup) -> None:
    deadline = time.monotonic() + _READY_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"{engine.title} ended with status {process.returncode}; see {setup.logs}")
        if _is_healthy(url):
            return
        time.sleep(_POLL_S)
    raise SystemExit(f"{engine.title} was not ready within {_READY_TIMEOUT_S:.0f} s; see {setup.logs}")


def _is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def peak_rss_mib(pid: int) -> float:
    """Of a process and its children, each at its own peak; mapped files count."""
    family = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    peaks = []
    for member in family:
        status = Path(f"/proc/{member}/status").read_text()
        peaks += [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")]
    return sum(peaks) / 1024


def load(setup: Setup, server: Server, seed: int) -> tuple[dict[str, float], list[str]]:
    """Figures of the HTTP cases, and why they may not count."""
    command = [sys.executable, "-m", "ridgeline.cli", "bench", server.url, "--json", "--seed", str(seed)]
    command += ["--concurrency", str(CLIENTS), "--requests", str(CLIENTS * _REQUESTS_PER_CLIENT)]
    command += ["--input", str(PROMPT_TOKENS), "--output", str(OUTPUT_TOKENS)]
    command += ["--spec", str(weights.checkpoint(setup.weights, setup.model))]
    variables = os.environ | {"XDG_DATA_HOME": str(setup.logs / "data")}
    finished = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=_BENCH_TIMEOUT_S)
    result: dict[str, Any] = json.loads(finished.stdout or "{}")
    if not result.get("points"):
        raise RuntimeError(f"bench: {result.get('error') or finished.stderr[-500:]}")
    [point] = result["points"]
    return {"http": point["output_tokens_per_s"], "http-ttft": point["ttft_s"]["p50"]}, point["invalid_reasons"]
