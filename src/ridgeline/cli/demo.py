"""`make demo`: the whole way, once, with a real server and a real client.

Starts `ridgeline serve` on the bundled model as a process of its own, asks it something over HTTP, prints the answer as
it streams, and then how fast that was beside what this machine's memory allows (`cost/facts.py`):

    TTFT = first event that carries text - request sent
    TPOT = (last event - first event) / (output tokens - 1)
    share of the limit = floor TPOT / measured TPOT
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from ridgeline.cli.remote import RemoteChat
from ridgeline.cost.bandwidth import read_bandwidth
from ridgeline.cost.cores import usable_cores
from ridgeline.cost.facts import load_facts
from ridgeline.errors import RidgelineError
from ridgeline.llm import DEFAULT_MODEL
from ridgeline.native_part import native_part
from ridgeline.units import format_bytes

_DTYPE = "bf16"
_QUESTION = "Why is the sky blue? Answer in two sentences."
_MAX_TOKENS = 128
_START_TIMEOUT_S = 300.0
_STOP_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Timing:
    """Of one streamed answer. Lengths are in tokens, as the server counts them."""

    prompt_len: int
    output_len: int
    ttft_s: float
    decode_s: float  # first until last event with text

    @property
    def tpot_s(self) -> float:
        return self.decode_s / (self.output_len - 1)

    @property
    def mean_context_len(self) -> float:
        """Of the decode steps, which run at prompt_len + 1 .. prompt_len + output_len - 1 tokens."""
        return self.prompt_len + self.output_len / 2


def main() -> int:
    try:
        native_part()  # its absence is clearer than a server that does not start
        with running_server(DEFAULT_MODEL, "--dtype", _DTYPE) as url:
            print(f"\n> {_QUESTION}\n")
            timing = ask(url, _QUESTION)
        print("\n" + "\n".join(report(timing)))
        return 0
    except RidgelineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


@contextlib.contextmanager
def running_server(model: str, *options: str) -> Iterator[str]:
    """A server process for the length of the block, which gets its base URL. Stopped by its pid, also after an error.

    Raises ServerFailed, with the server's own words, when it does not come up.
    """
    port = _free_port()
    command = [sys.executable, "-m", "ridgeline.cli", "serve", model, "--port", str(port), *options]
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "server.log"
        with log.open("w") as sink:
            process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            print(f"starting the server: ridgeline {' '.join(command[3:])}")
            _wait_until_healthy(process, f"http://127.0.0.1:{port}/health", log)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            _stop(process)


class ServerFailed(RidgelineError):
    """The server process ended, or did not become ready in time; the message holds its log."""

    code = "server_failed"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_healthy(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ServerFailed(f"the server ended with status {process.returncode}; it said:\n{log.read_text()}")
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(url, timeout=1.0).is_success:
                return
        time.sleep(0.1)
    raise ServerFailed(f"the server is not ready after {_START_TIMEOUT_S:.0f} s; it said:\n{log.read_text()}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def ask(url: str, question: str) -> Timing:
    """Streams one greedy answer to stdout."""
    client = RemoteChat(url)
    params = {"temperature": 0, "max_tokens": _MAX_TOKENS, "stream_options": {"include_usage": True}}
    sent = time.perf_counter()
    first = last = 0.0
    usage: dict[str, int] = {}
    for event in client.events([{"role": "user", "content": question}], params):
        text = "".join(choice["delta"].get("content") or "" for choice in event["choices"])
        if text:
            last = time.perf_counter()
            first = first or last
            print(text, end="", flush=True)
        usage = event.get("usage") or usage
    client.close()
    print()
    if usage.get("completion_tokens", 0) < 2:
        raise ServerFailed("the answer is too short to measure")
    return Timing(usage["prompt_tokens"], usage["completion_tokens"], first - sent, last - first)


def report(timing: Timing) -> list[str]:
    """The measured times beside the floor, from a bandwidth reading of the working set that decoding goes through."""
    facts = load_facts(DEFAULT_MODEL)
    num_bytes = int(facts.decode_read_bytes(_DTYPE)) + facts.kv_read_bytes(round(timing.mean_context_len), _DTYPE)
    threads = usable_cores()
    bandwidth = read_bandwidth(num_bytes, threads=threads)
    floor_s = num_bytes / bandwidth
    return [
        f"prompt     {timing.prompt_len} tokens, answer {timing.output_len} tokens",
        f"TTFT       {timing.ttft_s * 1e3:.1f} ms",
        f"TPOT       {timing.tpot_s * 1e3:.2f} ms = {1 / timing.tpot_s:.1f} tokens/s",
        f"floor      {floor_s * 1e3:.2f} ms = {format_bytes(num_bytes)} of weights and KV per token "
        f"at {bandwidth / 1e9:.1f} GB/s ({threads} threads)",
        f"           {floor_s / timing.tpot_s:.0%} of this machine's limit",
    ]


if __name__ == "__main__":
    sys.exit(main())
