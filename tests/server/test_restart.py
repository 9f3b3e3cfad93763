"""`--cache-dir` on a real server process with a real (tiny, random) checkpoint: stopped, killed, started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from checkpoints import make_hf
from quick import QUICK, running_server
from ridgeline.cost.memory import PAGE_SIZE

PROMPT = "the quick brown fox jumps over the lazy dog and then the other dogs run after the quick fox " * 4
TIMEOUT_S = 60.0
ADMIN = {"Authorization": "Bearer root"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_hf(tmp_path_factory.mktemp("checkpoint"), "llama"))


def ask(url: str, prompt: str = PROMPT, **fields: Any) -> tuple[str, list[float], dict[str, int], int]:
    """Text, logprobs, the receipt and the prompt's length."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 12, "temperature": 0, "logprobs": 0, **fields}
    response = httpx.post(f"{url}/completions", json=body, timeout=TIMEOUT_S)
    assert response.status_code == 200, response.text
    answer = response.json()
    (choice,), usage = answer["choices"], answer["usage"]
    return choice["text"], choice["logprobs"]["token_logprobs"], usage["prompt_tokens_details"], usage["prompt_tokens"]


def serve(checkpoint: str) -> list[str]:
    return [checkpoint, *QUICK, "--served-model-name", "tiny", "--admin-key", "root"]


def full_pages(prompt_tokens: int) -> int:
    return (prompt_tokens - 1) // PAGE_SIZE * PAGE_SIZE


def metric(url: str, name: str) -> float:
    text = httpx.get(url.removesuffix("/v1") + "/metrics", timeout=TIMEOUT_S).text
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name + "{"))


def test_a_restart_answers_the_same_from_disk(checkpoint: str, tmp_path: Path) -> None:
    options = [*serve(checkpoint), "--cache-dir", str(tmp_path / "kv"), "--cache-disk", "20MB"]
    with running_server(*options) as (url, _):
        text, logprobs, details, length = ask(url)
        assert details["cached_tokens"] == 0
        assert details["created_tokens"] == length // PAGE_SIZE * PAGE_SIZE > 0
    files = list((tmp_path / "kv").glob("*/*.page"))
    assert len(files) >= length // PAGE_SIZE
    with running_server(*options) as (url, _):
        again = ask(url, cache_salt="another")
        assert again[:2] == (text, logprobs)
        assert again[2]["cached_tokens"] == 0
        warm = ask(url)
        assert warm[:2] == (text, logprobs)
        assert warm[2]["cached_tokens"] == warm[2]["loaded_tokens"] == full_pages(length)
        assert metric(url, "vllm:external_prefix_cache_hits_total") == full_pages(length)
        assert ask(url)[2]["loaded_tokens"] == 0  # now it is in memory
        httpx.post(url.removesuffix("/v1") + "/cache/flush", headers=ADMIN, timeout=TIMEOUT_S).raise_for_status()
        assert ask(url)[2]["cached_tokens"] == 0


def test_damaged_files_are_misses_and_counted(checkpoint: str, tmp_path: Path) -> None:
    options = [*serve(checkpoint), "--cache-dir", str(tmp_path)]
    with running_server(*options) as (url, _):
        text, logprobs, *_ = ask(url)
    for number, file in enumerate(sorted(tmp_path.glob("*/*.page"))):
        data = bytearray(file.read_bytes())
        data[(number * 977) % len(data)] ^= 0xFF
        file.write_bytes(data[: len(data) - number % 3])
    with running_server(*options) as (url, _):
        answer = ask(url)
        assert answer[:2] == (text, logprobs)
        assert answer[2]["cached_tokens"] == 0
        assert metric(url, "ridgeline:disk_cache_pages_damaged_total") == 1  # what follows a miss is not looked at


def test_another_format_of_the_same_model_never_matches(checkpoint: str, tmp_path: Path) -> None:
    options = [*serve(checkpoint), "--cache-dir", str(tmp_path)]
    with running_server(*options) as (url, _):
        ask(url)
    with running_server(*options, "--dtype", "bf16") as (url, _):
        assert ask(url)[2]["cached_tokens"] == 0
        tree = httpx.get(url.removesuffix("/v1") + "/cache/tree", headers=ADMIN, timeout=TIMEOUT_S).json()
        assert tree["disk"]["num_foreign_pages"] > 0


def test_kill_9_while_writing_leaves_a_directory_that_works(checkpoint: str, tmp_path: Path) -> None:
    """Pages are written while the server is killed, several times; each next start uses what is there."""
    options = [*serve(checkpoint), "--cache-dir", str(tmp_path), "--cache-disk", "2MB"]
    command = [sys.executable, "-m", "ridgeline.cli", "serve", *options, "--port", "0"]
    prompts = [f"{number} {PROMPT}" for number in range(4)]
    for _ in range(2):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            watchdog = threading.Timer(TIMEOUT_S, process.kill)
            watchdog.start()
            assert process.stdout is not None
            url = next(process.stdout).split()[1]
            while not process.stdout.readline().lstrip().startswith("-d "):
                pass
            for prompt in [*prompts, *prompts]:  # the second hit writes
                ask(url, prompt)
            while not list(tmp_path.glob("*/*.page")):  # on a slow disk the first write has not ended yet
                ask(url, prompts[0])
            os.kill(process.pid, signal.SIGKILL)
            watchdog.cancel()
    (directory,) = (path for path in tmp_path.iterdir() if path.is_dir())
    (directory / ("ab" * 32 + ".tmp")).write_bytes(b"half")  # in case that no kill came in the middle of a page
    with running_server(*options) as (url, _):
        assert not list(tmp_path.glob("*/*.tmp"))
        for prompt in prompts:
            cold = ask(url, prompt, cache_salt="nobody else's")
            assert ask(url, prompt)[:2] == cold[:2]
        assert metric(url, "ridgeline:disk_cache_pages_damaged_total") == 0
        assert metric(url, "vllm:external_prefix_cache_hits_total") > 0
    assert sum(file.stat().st_size for file in tmp_path.glob("*/*.page")) <= 2_000_000
