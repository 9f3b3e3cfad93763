"""What a cached prefix saves: TTFT of a 2,000-token prompt, over HTTP.

    python benchmarks/prefix_ttft.py [--model smollm2-135m] [--rounds 7] [--threads N]

Each round is a server process of its own, warmed up, and measures in random order a prompt of which nothing is
cached, one whose first 1,500 tokens are (1,472 in whole pages), and one whose first 1,500 tokens an earlier process
computed and kept in --cache-dir; the files are dropped from the page cache before, so that the disk is read.
Printed are medians, their ratio to cold, and the ratio that `ridgeline plan --cached 1472` predicts; for the restart
the time of a plain read of the same files, measured in each round, is added to the prediction. The receipts are
checked: a figure whose `cached_tokens` is not what it should be ends the run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx

from ridgeline.cost.memory import PAGE_SIZE

PROMPT_TOKENS, PREFIX_TOKENS = 2000, 1500
CACHED_TOKENS = PREFIX_TOKENS // PAGE_SIZE * PAGE_SIZE
VOCABULARY = range(1000, 40_000)  # plain tokens of any model that this is run with
TIMEOUT_S = 300.0
MOST_OVER_PLAN = 1.15
CLI = [sys.executable, "-m", "ridgeline.cli"]


def main() -> int:
    options = _options()
    times: dict[str, list[float]] = {"cold": [], "cached": [], "restarted": [], "disk": []}
    with tempfile.TemporaryDirectory() as directory:
        kept: list[int] | None = None
        for number in range(options.rounds + 1):
            kept = _round(options, Path(directory), random.Random(number), kept, times)
    _print(options, times)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    return parser.parse_args()


def _round(
    options: argparse.Namespace,
    directory: Path,
    chance: random.Random,
    kept: list[int] | None,
    times: dict[str, list[float]],
) -> list[int]:
    """Measures each case once; the first round has nothing to restart from, and warms up. The prefix it leaves."""
    if kept is not None:
        times["disk"].append(_plain_read_s(directory))
    _drop_from_page_cache(directory)
    prefix = _tokens(chance, PREFIX_TOKENS)
    tail = PROMPT_TOKENS - PREFIX_TOKENS
    with _server(options, directory) as url, httpx.Client(base_url=url, timeout=TIMEOUT_S) as client:
        _ttft_s(client, _tokens(chance, PROMPT_TOKENS), cached=0, loaded=0)  # a process is slower at first
        _ttft_s(client, prefix, cached=0, loaded=0)
        if kept is not None:
            cases = [
                ("cold", _tokens(chance, PROMPT_TOKENS), 0, 0),
                ("cached", prefix + _tokens(chance, tail), CACHED_TOKENS, 0),
                ("restarted", kept + _tokens(chance, tail), CACHED_TOKENS, CACHED_TOKENS),
            ]
            for case, prompt, cached, loaded in chance.sample(cases, k=len(cases)):
                times[case].append(_ttft_s(client, prompt, cached=cached, loaded=loaded))
    return prefix


def _tokens(chance: random.Random, count: int) -> list[int]:
    return chance.choices(VOCABULARY, k=count)


@contextlib.contextmanager
def _server(options: argparse.Namespace, directory: Path) -> Iterator[str]:
    command = [*CLI, "serve", options.model, "--json", "--port", "0", "--threads", str(options.threads)]
    command += ["--kv-memory", "500MB", "--max-batch-tokens", str(PROMPT_TOKENS), "--cache-dir", str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()
            process.wait(TIMEOUT_S)


def _ttft_s(client: httpx.Client, prompt: Sequence[int], *, cached: int, loaded: int) -> float:
    """From sending the request to the first event that carries a token; the receipt has to be as told."""
    model = client.get("/models").json()["data"][0]["id"]
    body = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0, "ignore_eos": True, "stream": True}
    first_s, usage = None, {}
    start_s = time.perf_counter()
    with client.stream("POST", "/completions", json=body | {"stream_options": {"include_usage": True}}) as response:
        for line in response.iter_lines():
            if first_s is None and line.startswith("data: {"):
                first_s = time.perf_counter() - start_s
            if line.startswith("data: {"):
                usage = json.loads(line[6:]).get("usage") or usage
    details = usage["prompt_tokens_details"]
    found = (details["cached_tokens"], details["loaded_tokens"])
    if first_s is None or found != (cached, loaded):
        raise SystemExit(f"cached and loaded tokens are {found}, not {(cached, loaded)}: nothing was measured")
    return first_s


def _drop_from_page_cache(directory: Path) -> None:
    os.sync()
    for file in directory.glob("*/*.page"):
        with open(file, "rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _plain_read_s(directory: Path) -> float:
    """Reading as many bytes as the restart takes up, file by file, when none of them is in the page cache."""
    _drop_from_page_cache(directory)
    files = sorted(directory.glob("*/*.page"), key=lambda file: file.stat().st_mtime)[-CACHED_TOKENS // PAGE_SIZE :]
    start_s = time.perf_counter()
    for file in files:
        file.read_bytes()
    return time.perf_counter() - start_s


def _predicted_share(model: str) -> float:
    """Floor of the TTFT with the prefix cached, as a share of that without."""

    def floor_s(*cached: str) -> float:
        command = [*CLI, "plan", model, "--input", str(PROMPT_TOKENS), *cached, "--json"]
        output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=TIMEOUT_S).stdout
        return float(json.loads(output)["ttft_floor_s"])

    return floor_s("--cached", str(CACHED_TOKENS)) / floor_s()


def _print(options: argparse.Namespace, times: dict[str, list[float]]) -> None:
    share = _predicted_share(options.model)
    medians_s = {case: statistics.median(values) for case, values in times.items()}
    cold_s = medians_s["cold"]
    predicted = {"cold": 1.0, "cached": share, "restarted": share + medians_s["disk"] / cold_s}
    print(f"{options.model}, {PROMPT_TOKENS} prompt tokens, {CACHED_TOKENS} of them cached; "
          f"{options.threads} threads, {platform.machine()}, Python {platform.python_version()}")  # fmt: skip
    print(f"medians of {options.rounds} rounds; target: at most {MOST_OVER_PLAN} x the prediction; "
          f"a plain read of the pages takes {medians_s['disk'] * 1e3:.0f} ms")  # fmt: skip
    print(f"{'case':<10} {'TTFT':>9} {'min':>9} {'max':>9} {'of cold':>8} {'predicted':>10} {'ratio':>6}")
    for case, share in predicted.items():
        values, of_cold = times[case], medians_s[case] / cold_s
        print(f"{case:<10} {medians_s[case] * 1e3:6.0f} ms {min(values) * 1e3:6.0f} ms {max(values) * 1e3:6.0f} ms "
              f"{of_cold:8.3f} {share:10.3f} {of_cold / share:6.2f}")  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
