"""A real server process with a real (tiny, random) checkpoint, and the `openai` client."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from checkpoints import make_hf
from ridgeline.cost.memory import PAGE_SIZE

DEADLINE_S = 120.0
MESSAGES = [{"role": "user", "content": "Tell me all that you know about the sea."}]


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """The server, ready; it must end well at SIGTERM."""
    checkpoint = make_hf(tmp_path_factory.mktemp("checkpoint"), "llama")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "ridgeline.cli", "serve", str(checkpoint), "--port", str(port)]
    options = ["--threads", "1", "--kv-memory", "8MB", "--api-key", "secret", "--served-model-name", "tiny"]
    server = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    server.url = f"http://127.0.0.1:{port}"  # type: ignore[attr-defined]
    try:
        wait_until_ready(server)
        yield server
    finally:
        server.send_signal(signal.SIGTERM)
        output, _ = server.communicate(timeout=DEADLINE_S)
        assert server.returncode == 0, output
        assert "tiny" in output


def wait_until_ready(server: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    with httpx.Client() as client:
        while time.monotonic() < deadline:
            assert server.poll() is None, server.communicate()[0]
            try:
                if client.get(f"{server.url}/health").status_code == 200:  # type: ignore[attr-defined]
                    return
            except httpx.TransportError:
                os.sched_yield()
    raise AssertionError(f"the server was not ready in {DEADLINE_S} s")


@pytest.fixture(scope="module")
def client(process: subprocess.Popen[str]) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{process.url}/v1", api_key="secret", max_retries=0, timeout=DEADLINE_S)  # type: ignore[attr-defined]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_chat_streamed_and_whole(client: openai.OpenAI, temperature: float) -> None:
    fields = {"model": "tiny", "messages": MESSAGES, "max_tokens": 24, "temperature": temperature, "seed": 7, "n": 2}
    whole = client.chat.completions.create(**fields)  # type: ignore[call-overload]
    texts, usage = ["", ""], None
    options = {"include_usage": True}
    for chunk in client.chat.completions.create(**fields, stream=True, stream_options=options):  # type: ignore[call-overload]
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
        usage = chunk.usage
    assert texts == [choice.message.content for choice in whole.choices]
    assert usage.total_tokens == whole.usage.total_tokens
    assert usage.prompt_tokens_details.cached_tokens == (usage.prompt_tokens - 1) // PAGE_SIZE * PAGE_SIZE > 0
    assert (texts[0] == texts[1]) == (temperature == 0)


def test_logprobs_of_a_real_distribution(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=5, temperature=0, logprobs=True, top_logprobs=3
    )
    for token in answer.choices[0].logprobs.content:
        assert token.logprob == token.top_logprobs[0].logprob  # greedy takes the likeliest
        ordered = [top.logprob for top in token.top_logprobs]
        assert ordered == sorted(ordered, reverse=True)
        assert ordered[0] < 0


def test_completion_with_echo(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="The sea", max_tokens=4, echo=True, logprobs=2, seed=1)
    choice = answer.choices[0]
    assert choice.text.startswith("The sea")
    assert choice.logprobs.token_logprobs[0] is None
    assert len(choice.logprobs.tokens) == answer.usage.total_tokens


def test_clients_that_leave_cost_a_real_engine_nothing(client: openai.OpenAI, process: subprocess.Popen[str]) -> None:
    chance = random.Random(0)
    for _ in range(40):
        stream = client.completions.create(
            model="tiny",
            prompt="sea " * chance.randint(1, 60),
            max_tokens=200,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        for _ in range(chance.randint(0, 5)):
            next(iter(stream))
        stream.close()
    for _ in range(8):
        answer = client.completions.create(
            model="tiny", prompt="The sea", max_tokens=8, extra_body={"ignore_eos": True}
        )
        assert answer.usage.completion_tokens == 8
    deadline = time.monotonic() + DEADLINE_S
    while (health := httpx.get(f"{process.url}/health").json())["running"]:  # type: ignore[attr-defined]
        assert time.monotonic() < deadline
    assert health["free_pages"] + health["cached_pages"] == health["total_pages"]


def test_a_server_that_is_stopped_and_continued_goes_on(client: openai.OpenAI, process: subprocess.Popen[str]) -> None:
    """As by a debugger or a job control, wherever in a step it happens; nothing hangs, nothing is lost."""
    fields = {"model": "tiny", "prompt": "The sea", "max_tokens": 300, "seed": 3, "extra_body": {"ignore_eos": True}}
    expected = client.completions.create(**fields).choices[0].text  # type: ignore[call-overload]
    pieces: list[str] = []
    for chunk in client.completions.create(**fields, stream=True):  # type: ignore[call-overload]
        pieces.append(chunk.choices[0].text)
        if len(pieces) % 20 == 1:
            process.send_signal(signal.SIGSTOP)
            _, status = os.waitpid(process.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
            process.send_signal(signal.SIGCONT)
    assert "".join(pieces) == expected
    assert httpx.get(f"{process.url}/health").status_code == 200  # type: ignore[attr-defined]


def test_a_client_that_is_stopped_holds_up_nobody_and_gets_the_rest(
    client: openai.OpenAI, process: subprocess.Popen[str]
) -> None:
    body = {"model": "tiny", "prompt": "The sea", "max_tokens": 400, "stream": True, "seed": 1, "ignore_eos": True}
    reader = (
        "import httpx\n"
        f"with httpx.stream('POST', '{process.url}/v1/completions', json={body!r}, timeout={DEADLINE_S},\n"  # type: ignore[attr-defined]
        "                  headers={'Authorization': 'Bearer secret'}) as reply:\n"
        "    for line in reply.iter_lines():\n"
        "        print(line, flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", reader], stdout=subprocess.PIPE, text=True) as stopped:
        assert stopped.stdout is not None
        first = stopped.stdout.readline()
        stopped.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(stopped.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        other = client.completions.create(model="tiny", prompt="The sea", max_tokens=8, extra_body={"ignore_eos": True})
        assert other.usage.completion_tokens == 8
        stopped.send_signal(signal.SIGCONT)
        rest, _ = stopped.communicate(timeout=DEADLINE_S)
    assert "data: {" in first + rest
    assert rest.rstrip().endswith("data: [DONE]")


def test_errors_are_the_clients_own(client: openai.OpenAI, process: subprocess.Popen[str]) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="huge", messages=MESSAGES)
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=client.base_url, api_key="guess", max_retries=0).models.list()


def test_models(client: openai.OpenAI) -> None:
    assert next(iter(client.models.list())).id == "tiny"


def test_the_tokenizer_of_a_real_checkpoint_is_told(client: openai.OpenAI, process: subprocess.Popen[str]) -> None:
    headers = {"Authorization": "Bearer secret"}
    info = httpx.get(f"{process.url}/tokenizer_info", headers=headers, timeout=DEADLINE_S).json()  # type: ignore[attr-defined]
    assert "{%" in info["chat_template"] or "{{" in info["chat_template"]
    body = {"prompt": info["eos_token"], "add_special_tokens": False}
    tokens = httpx.post(f"{process.url}/tokenize", json=body, headers=headers, timeout=DEADLINE_S).json()["tokens"]  # type: ignore[attr-defined]
    assert len(tokens) == 1


def test_a_busy_port_ends_a_second_server_with_one_line(process: subprocess.Popen[str], tmp_path: Path) -> None:
    port = process.url.rpartition(":")[2]  # type: ignore[attr-defined]
    command = [sys.executable, "-m", "ridgeline.cli", "serve", str(tmp_path), "--port", port]
    second = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert second.returncode == 1
    assert f"port {port} on 127.0.0.1 is in use" in second.stderr
    assert "Traceback" not in second.stderr
