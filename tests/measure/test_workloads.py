"""Lengths, shared parts and traces; what the prompts have in common."""

from __future__ import annotations

import asyncio
import json
from itertools import takewhile
from pathlib import Path

import pytest

from fakes_endpoint import OVERHEAD_TOKENS, Answer, FakeEndpoint, as_asked
from ridgeline.errors import ConfigError
from ridgeline.measure.endpoints import GenerationRequest, connect, detect
from ridgeline.measure.unique_prompt import LINE_WORDS
from ridgeline.measure.workloads import (
    UNEVEN_LENS,
    Block,
    Session,
    TokenRate,
    Workload,
    Writer,
    fit_token_rate,
    load_trace,
    longest,
)

WORDS = TokenRate(per_word=1.0, overhead=float(LINE_WORDS))


def length(request: GenerationRequest) -> int:
    """In words, which are the tokens of WORDS."""
    if request.prompt is not None:
        return len(request.prompt.split())
    assert request.messages is not None
    return sum(len(message["content"].split()) for message in request.messages)


def common_words(one: str, other: str) -> int:
    pairs = zip(one.split(), other.split(), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def test_fixed_lengths() -> None:
    sessions = Workload("fixed", 100, 20).sessions(5, seed=0)
    assert sessions == [Session(100, 20)] * 5
    request = Writer(WORDS, chat=False, seed=1).first(sessions[0])
    assert length(request) == request.prompt_tokens == 100
    assert (request.max_tokens, request.ignore_eos, request.cache) == (20, True, False)


@pytest.mark.parametrize("name", ["uniform", "lognormal"])
def test_random_lengths_keep_their_mean_and_follow_from_the_seed(name: str) -> None:
    workload = Workload(name, 1000, 200)
    sessions = workload.sessions(3000, seed=4)
    assert sum(s.input_len for s in sessions) / 3000 == pytest.approx(1000, rel=0.05)
    assert sum(s.output_len for s in sessions) / 3000 == pytest.approx(200, rel=0.05)
    assert len({s.input_len for s in sessions}) > 100
    assert sessions == workload.sessions(3000, seed=4)
    assert sessions != workload.sessions(3000, seed=5)


def test_uneven_outputs_repeat() -> None:
    assert [s.output_len for s in Workload("uneven").sessions(8, 0)] == list(UNEVEN_LENS) * 2


@pytest.mark.parametrize("chat", [False, True])
def test_no_two_prompts_begin_alike(chat: bool) -> None:
    writer = Writer(WORDS, chat=chat, seed=1)
    requests = [writer.first(Session(200, 10)) for _ in range(30)]
    heads = [r.prompt or r.messages[0]["content"] for r in requests]  # type: ignore[index]
    for i, head in enumerate(heads):
        for other in heads[:i]:
            assert common_words(head, other) < LINE_WORDS


def test_the_shared_part_is_shared_and_the_rest_is_not() -> None:
    workload = Workload("shared-prefix", 100, 10, shared_share=0.6)
    assert workload.shares
    writer = Writer(WORDS, chat=False, seed=1, cache=True)
    first, second = (writer.first(session).prompt for session in workload.sessions(2, 0))
    assert first is not None
    assert second is not None
    common = common_words(first, second)
    assert 60 <= common < 60 + LINE_WORDS
    assert length(GenerationRequest(prompt=first)) == 100


def test_a_chat_repeats_all_that_was_said() -> None:
    session = Workload("chat", 50, 10, num_turns=3).sessions(1, 0)[0]
    assert session.num_turns == 3
    writer = Writer(WORDS, chat=True, seed=1, cache=True)
    first = writer.first(session)
    second = writer.next_turn(session, first, "an answer")
    assert first.messages is not None
    assert second.messages is not None
    assert second.messages[: len(first.messages)] == first.messages
    assert second.messages[-2] == {"role": "assistant", "content": "an answer"}
    assert len(second.messages[-1]["content"].split()) == 50
    raw = Writer(WORDS, chat=False, seed=1).first(session)
    longer = writer.next_turn(session, raw, " an answer")
    assert longer.prompt is not None
    assert longer.prompt.startswith(f"{raw.prompt} an answer")
    assert longest([session]) == 180


def test_natural_answers_may_end() -> None:
    assert not Workload("natural").has_exact_outputs


def test_what_is_no_workload() -> None:
    with pytest.raises(ConfigError, match="--workload"):
        Workload("heavy")
    with pytest.raises(ConfigError, match="--shared-prefix"):
        Workload("shared-prefix", shared_share=1.0)


def test_mooncake_traces(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 2000, "input_length": 600, "output_length": 7, "hash_ids": [4, 9]},
        {"timestamp": 500, "input_length": 30, "output_length": 5},
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    early, late = load_trace(path, time_scale=0.5)
    assert early == Session(30, 5, time=0.25)
    assert late == Session(600, 7, (Block(4, 512), Block(9, 88)), time=1.0)
    writer = Writer(WORDS, chat=False, seed=1, cache=True)
    one = writer.first(Session(1100, 1, (Block(4, 512), Block(5, 512))))
    two = writer.first(Session(1100, 1, (Block(4, 512), Block(6, 512))))
    assert length(one) == 1100
    assert 512 <= common_words(one.prompt or "", two.prompt or "") < 520


@pytest.mark.parametrize(
    "line",
    ["[]", "{", '{"timestamp": 1}', '{"timestamp": -1, "input_length": 3, "output_length": 3}', '"x"',
     '{"timestamp": 1, "input_length": 3, "output_length": 3, "hash_ids": [1, 2]}'],
)  # fmt: skip
def test_bad_traces_name_the_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 1, "input_length": 3, "output_length": 3}\n' + line)
    with pytest.raises(ConfigError, match=r"trace\.jsonl:2"):
        load_trace(path)


def test_missing_and_empty_traces(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ConfigError, match="holds no request"):
        load_trace(tmp_path / "empty")
    with pytest.raises(ConfigError, match="nowhere"):
        load_trace(tmp_path / "nowhere")


async def fitted(url: str, *, chat: bool) -> TokenRate:
    async with connect(await detect(url)) as client:
        return await fit_token_rate(client, chat=chat)


@pytest.mark.parametrize("chat", [False, True])
def test_lengths_are_fitted_to_the_servers_count(chat: bool) -> None:
    with FakeEndpoint() as server:
        rate = asyncio.run(fitted(server.url, chat=chat))
        assert rate.is_known
        assert rate.per_word == pytest.approx(1.0)
        request = Writer(rate, chat=chat, seed=1).first(Session(300, 5))
    assert as_asked({"prompt": "x " * length(request), "max_tokens": 1}).prompt_tokens == 300
    assert length(request) == 300 - OVERHEAD_TOKENS


def test_a_server_that_does_not_count_is_taken_at_an_estimate() -> None:
    with FakeEndpoint(answers=[Answer()]) as server:
        assert not asyncio.run(fitted(server.url, chat=False)).is_known


def test_a_server_that_refuses_is_quoted() -> None:
    answer = Answer(status=404, error={"error": {"message": "no such model"}})
    with FakeEndpoint(answers=[answer]) as server, pytest.raises(ConfigError, match="no such model"):
        asyncio.run(fitted(server.url, chat=False))
