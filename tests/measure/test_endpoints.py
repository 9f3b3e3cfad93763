"""What each dialect's stream becomes. The fake server's clock stands still until the client has read, so times are
exact: equality, no tolerance but that of floating point."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Any

import pytest

from fakes_endpoint import Answer, FakeEndpoint, Piece, SteppedClock, words
from ridgeline.errors import ConfigError
from ridgeline.measure import metrics
from ridgeline.measure.client import Client
from ridgeline.measure.endpoints import Endpoint, GenerationRequest, connect, detect, stream
from ridgeline.measure.events import Record

RAW = GenerationRequest(prompt="Once upon a time", max_tokens=8)
CHAT = GenerationRequest(messages=({"role": "user", "content": "Hello"},), max_tokens=8)


def measured(answer: Answer, *, kind: str = "openai", request: GenerationRequest = RAW, **fake: Any) -> Record:
    clock = SteppedClock()

    async def ask() -> Record:
        endpoint = await detect(server.url)
        client = Client(endpoint, clock=clock)
        try:
            return await client.stream(request)
        finally:
            await client.close()

    with FakeEndpoint(kind, [answer], clock=clock, **fake) as server:
        return asyncio.run(ask())


def test_one_token_a_chunk() -> None:
    record = measured(
        Answer([Piece("a", 1.0), Piece("b", 1.25), Piece("c", 1.75)], output_tokens=3, prompt_tokens=7, cached_tokens=2)
    )
    assert record.error is None
    assert (record.t_send, record.t_byte, record.t_1, record.t_last) == (0.0, 1.0, 1.0, 1.75)
    assert metrics.ttft(record) == 1.0
    assert metrics.tpot(record) == 0.375
    assert metrics.e2e(record) == 1.75
    assert metrics.chunk_gaps(record) == metrics.itls(record) == [0.25, 0.5]
    assert (record.n_out, record.n_first, record.token_source) == (3, 1, "usage")
    assert (record.prompt_tokens, record.cached_tokens, record.text) == (7, 2, "abc")
    assert not record.counts_estimated


def test_chunks_of_several_tokens_are_spread_by_their_text() -> None:
    record = measured(Answer([Piece("a", 1.0), Piece("bbb", 2.0), Piece("b", 3.0)], output_tokens=5))
    assert [event.count for event in record.events] == [1, 3, 1]
    assert record.counts_estimated
    assert metrics.itls(record) == [pytest.approx(1 / 3)] * 3 + [1.0]
    assert metrics.tpot(record) == 2.0 / 4
    assert metrics.chunk_gaps(record) == [1.0, 1.0]


def test_continuous_usage_counts_exactly_the_first_chunk_too() -> None:
    pieces = [Piece("abc", 1.0, total=3), Piece("d", 2.0, total=4), Piece("ef", 3.0, total=6)]
    record = measured(Answer(pieces, output_tokens=6))
    assert [event.count for event in record.events] == [3, 1, 2]
    assert record.n_first == 3
    assert metrics.tpot(record) == 2.0 / 3
    assert not record.counts_estimated
    ttft, tpot = metrics.ttft(record), metrics.tpot(record)
    assert ttft is not None
    assert tpot is not None
    assert metrics.e2e(record) == pytest.approx(ttft + (6 - 3) * tpot)  # exactly, as defined
    assert metrics.e2e(record) != pytest.approx(ttft + 6 * tpot)  # the textbook's approximation


def test_chunks_without_a_token_are_no_events() -> None:
    role = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":0}}\n\n'
    pieces = [
        Piece(raw=b": a comment\n\n", at=0.5),
        Piece(raw=role, at=0.6),
        Piece(raw=usage, at=0.7),
        Piece("", at=0.8),
        Piece("a", at=1.0),
        Piece(raw=b"event: ping\n\n", at=1.5),
        Piece("b", at=2.0),
        Piece("", at=3.0),
    ]
    record = measured(Answer(pieces, output_tokens=2), request=CHAT)
    assert record.t_byte == 0.5
    assert [event.time for event in record.events] == [1.0, 2.0]
    assert (record.t_1, record.t_last, record.n_out) == (1.0, 2.0, 2)


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_comes_before_the_answer(name: str) -> None:
    thought = f'data: {{"choices":[{{"index":0,"delta":{{"{name}":"hm"}}}}]}}\n\n'.encode()
    record = measured(Answer([Piece(raw=thought, at=1.0), Piece("yes", 2.0)], output_tokens=2), request=CHAT)
    assert [event.channel for event in record.events] == ["reasoning", "content"]
    assert metrics.ttft(record) == 1.0
    assert metrics.ttfa(record) == 2.0
    assert (record.reasoning, record.text) == ("hm", "yes")


def test_tool_arguments_are_tokens_of_the_answer() -> None:
    record = measured(Answer([Piece('{"a"', 1.0, "tool"), Piece(":1}", 2.0, "tool")], output_tokens=2), request=CHAT)
    assert (record.t_1, record.t_ans, record.t_last) == (1.0, 1.0, 2.0)
    assert record.tool_arguments == '{"a":1}'


def test_a_line_that_arrives_in_two_parts() -> None:
    whole = b'data: {"choices":[{"index":0,"text":"a"}]}\n\n'
    record = measured(Answer([Piece(raw=whole[:20], at=1.0), Piece(raw=whole[20:], at=2.0)], output_tokens=1))
    assert (record.t_byte, record.t_1, record.text) == (1.0, 2.0, "a")
    assert metrics.tpot(record) is None  # one token: there is no time between tokens


def test_without_usage_chunks_are_counted_and_say_so() -> None:
    record = measured(Answer([Piece("a", 1.0), Piece("b", 2.0)], cached_tokens=None))
    assert (record.n_out, record.token_source) == (2, "chunks")
    assert record.prompt_tokens is None
    assert record.cached_tokens is None


def test_a_tokenizer_counts_where_the_server_does_not() -> None:
    async def ask() -> Record:
        async with connect(await detect(server.url), count_tokens=len) as client:
            return await client.stream(RAW)

    with FakeEndpoint(answers=[Answer([Piece("abc"), Piece("d")])]) as server:
        record = asyncio.run(ask())
    assert (record.n_out, record.token_source) == (4, "tokenizer")


def test_ollama() -> None:
    counters = {"load_duration": 3 * 10**9, "prompt_eval_duration": 5 * 10**8, "eval_duration": 2 * 10**9}
    answer = Answer(
        [Piece("hm", 1.0, "reasoning"), Piece("a", 2.0), Piece("b", 3.0)],
        output_tokens=3,
        prompt_tokens=9,
        cached_tokens=4,
        counters=counters,
    )
    for request in (RAW, CHAT):
        record = measured(answer, kind="ollama", request=request)
        assert record.error is None
        assert (metrics.ttft(record), metrics.ttfa(record), metrics.tpot(record)) == (1.0, 2.0, 1.0)
        assert (record.n_out, record.token_source) == (3, "native")
        assert (record.prompt_tokens, record.cached_tokens) == (9, 4)
        assert (record.load_s, record.server_prefill_s, record.server_decode_s) == (3.0, 0.5, 2.0)


def test_ollama_line_with_thought_and_answer_is_one_event() -> None:
    raw = b'{"message":{"role":"assistant","thinking":"hm","content":"yes"}}\n'
    record = measured(Answer([Piece(raw=raw, at=1.0)], output_tokens=2), kind="ollama", request=CHAT)
    assert [(event.size, event.count) for event in record.events] == [(5, 2)]
    assert (record.t_1, record.t_ans) == (1.0, 1.0)


def test_llama_cpp_timings() -> None:
    timings = {"cache_n": 3, "prompt_n": 5, "prompt_ms": 40.0, "predicted_n": 2, "predicted_ms": 100.0}
    record = measured(Answer([Piece("a", 1.0), Piece("b", 2.0)], counters=timings), kind="llamacpp")
    assert (record.n_out, record.token_source) == (2, "native")
    assert (record.prompt_tokens, record.cached_tokens) == (8, 3)
    assert (record.server_prefill_s, record.server_decode_s) == (0.04, 0.1)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Answer([Piece("a")], error={"message": "the GPU is gone"}), "stream_error"),
        (Answer([Piece("a")], ends=False), "truncated"),
        (Answer(html=True), "bad_response"),
        (Answer([Piece(raw=b"data: {broken\n\n")]), "bad_response"),
        (Answer(status=429, error={"error": {"message": "slow down"}}), "http_429"),
        (Answer(status=503, error={"detail": "loading"}), "http_503"),
    ],
)
def test_failures_are_told_apart(answer: Answer, kind: str) -> None:
    async def ask() -> Record:
        return await stream(await detect(server.url), RAW)

    with FakeEndpoint(answers=[answer]) as server:
        record = asyncio.run(ask())
    assert record.error is not None
    assert record.error.kind == kind
    assert len(record.events) == len([piece for piece in answer.pieces if piece.text])


def test_a_stream_that_stalls_times_out() -> None:
    async def ask() -> Record:
        return await stream(await detect(server.url), RAW, timeout_s=0.2)

    with FakeEndpoint(answers=[Answer([Piece("a")], stalls=True)]) as server:
        record = asyncio.run(ask())
    assert record.error is not None
    assert record.error.kind == "timeout"
    assert len(record.events) == 1


def test_a_server_that_has_gone_is_a_failed_request() -> None:
    with FakeEndpoint() as server:
        endpoint = asyncio.run(detect(server.url))
    record = asyncio.run(stream(endpoint, RAW))
    assert record.error is not None
    assert record.error.kind == "connection"


def test_mid_stream_error_of_ollama() -> None:
    record = measured(Answer([Piece("a", 1.0)], error="out of memory"), kind="ollama")
    assert record.error is not None
    assert (record.error.kind, record.error.message) == ("stream_error", "out of memory")


def found(url: str, **given: Any) -> Endpoint:
    return asyncio.run(detect(url, **given))


@pytest.mark.parametrize(
    ("fake", "server", "kind"),
    [
        ({"owner": "ridgeline"}, "ridgeline", "openai"),
        ({"owner": "vllm"}, "vllm", "openai"),
        ({"owner": "somebody"}, "unknown", "openai"),
        ({"kind": "ollama"}, "ollama", "ollama"),
        ({"kind": "llamacpp"}, "llama.cpp", "llamacpp"),
    ],
)
def test_servers_are_recognized(fake: dict[str, str], server: str, kind: str) -> None:
    with FakeEndpoint(**fake, context_len=4096) as running:
        for url in (running.url, running.url + "/v1/", running.url.removeprefix("http://")):
            endpoint = found(url)
            assert (endpoint.server, endpoint.kind, endpoint.context_len) == (server, kind, 4096)
            assert endpoint.url == running.url
            assert endpoint.model.removesuffix(":latest") == "fake"
            assert endpoint.rtt_s is not None


def test_an_unknown_server_gets_no_field_that_it_may_refuse() -> None:
    with FakeEndpoint(owner="somebody") as running:
        asyncio.run(stream(found(running.url), CHAT))
    assert set(running.bodies[0]) == {"model", "messages", "max_tokens", "temperature", "stream", "stream_options"}


def test_llama_cpp_is_asked_not_to_use_its_cache() -> None:
    with FakeEndpoint("llamacpp") as running:
        asyncio.run(stream(found(running.url), RAW))
    assert running.bodies[0]["cache_prompt"] is False
    assert running.bodies[0]["ignore_eos"] is True


@pytest.mark.parametrize(("kind", "connections"), [("openai", 1), ("llamacpp", 2)])
def test_llama_cpp_gets_a_connection_per_request(kind: str, connections: int) -> None:
    async def ask_twice() -> list[Record]:
        async with connect(await detect(running.url)) as client:
            return [await client.stream(RAW) for _ in range(2)]

    with FakeEndpoint(kind) as running:
        assert all(record.ok for record in asyncio.run(ask_twice()))
    assert len(set(running.client_ports)) == connections


def test_ollama_is_asked_in_its_own_words() -> None:
    with FakeEndpoint("ollama") as running:
        request = GenerationRequest(prompt="x", max_tokens=5, num_ctx=8192, seed=3, keep_alive="5m")
        asyncio.run(stream(found(running.url), request))
    (body,) = running.bodies
    assert body["options"] == {"num_predict": 5, "temperature": 0.0, "seed": 3, "num_ctx": 8192}
    assert (body["raw"], body["keep_alive"], body["model"]) == (True, "5m", "fake:latest")


def test_wrong_targets_are_explained() -> None:
    with FakeEndpoint(api_key="secret") as running:
        with pytest.raises(ConfigError, match="401"):
            found(running.url)
        assert found(running.url, api_key="secret").model == "fake"
        with pytest.raises(ConfigError, match="no model 'fakir'") as caught:
            found(running.url, api_key="secret", model="fakir")
        assert "fake" in str(caught.value.hint)
    with pytest.raises(ConfigError, match=re.escape(running.url)):
        found(running.url)
    with (
        FakeEndpoint("openai", pages={"/v1/models": {"nothing": "here"}}) as running,
        pytest.raises(ConfigError, match="not as a language model server"),
    ):
        found(running.url)
    with pytest.raises(ConfigError, match="no URL"):
        found("ftp://there")


def test_a_gateway_without_a_list_of_models_is_taken_at_its_word() -> None:
    with FakeEndpoint(pages={"/v1/models": {"detail": "not here"}}) as running:
        endpoint = found(running.url, model="m")
        assert (endpoint.server, endpoint.kind, endpoint.model) == ("unknown", "openai", "m")
        assert asyncio.run(stream(endpoint, CHAT)).ok
        with pytest.raises(ConfigError, match="--model"):
            found(running.url)
    assert running.bodies[0]["model"] == "m"


OPENAI = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
OPENAI_TEMPERATURE = (
    "Unsupported value: 'temperature' does not support 0 with this model. Only the default is supported."
)
PYDANTIC = {
    "detail": [{"type": "extra_forbidden", "loc": ["body", "stream_options"], "msg": "Extra inputs are not ok"}]
}


@dataclass
class Strict:
    """Refuses fields in the words of OpenAI and of pydantic; answers a body without them."""

    refused: dict[str, tuple[int, Any]]

    def __call__(self, body: dict[str, Any]) -> Answer:
        for name, (status, error) in self.refused.items():
            if name in body:
                return Answer(status=status, error=error)
        return words(2)


def test_a_refused_field_is_left_out_once_and_for_all_and_told() -> None:
    async def ask() -> list[Record]:
        async with connect(await detect(running.url), tell=told.append) as client:
            return [await client.stream(CHAT) for _ in range(2)]

    told: list[str] = []
    refused = {
        "max_tokens": (400, {"error": {"message": OPENAI, "param": "max_tokens", "code": "unsupported_parameter"}}),
        "stream_options": (422, PYDANTIC),
        "temperature": (400, {"error": {"message": OPENAI_TEMPERATURE, "code": "unsupported_value"}}),
    }
    with FakeEndpoint(answers=Strict(refused), owner="somebody") as running:
        records = asyncio.run(ask())
    assert [record.error for record in records] == [None, None]
    assert len(running.bodies) == 3 + 2
    assert running.bodies[-1].keys() == {"model", "messages", "max_completion_tokens", "stream"}
    assert running.bodies[-1]["max_completion_tokens"] == CHAT.max_tokens
    assert told == [
        "the server refuses max_tokens: sent as max_completion_tokens",
        "the server refuses stream_options: sent without, it may not count its tokens then",
        "the server refuses temperature: sent without, its own default holds",
    ]


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, {"error": {"message": "max_tokens is too large: 8 > 4"}}),
        (400, {"error": {"message": "Unknown parameter: 'messages'"}}),
        (422, {"detail": [{"type": "missing", "loc": ["body", "user"], "msg": "Field required"}]}),
        (401, {"error": {"message": "stream_options is not allowed with this key"}}),
        (500, {"error": {"message": "unexpected stream_options"}}),
    ],
)
def test_other_refusals_change_nothing(status: int, error: Any) -> None:
    with FakeEndpoint(answers=[Answer(status=status, error=error)]) as running:
        record = asyncio.run(stream(found(running.url), CHAT))
    assert record.error is not None
    assert record.error.kind == f"http_{status}"
    assert len(running.bodies) == 1


def test_the_key_never_shows() -> None:
    assert "secret" not in repr(Endpoint("openai", "http://x", "m", api_key="secret"))


def test_what_is_local() -> None:
    urls = ["http://127.0.0.1:1", "http://localhost", "http://[::1]:80", "https://api.example.com", "http://10.0.0.1:1"]
    assert [Endpoint("openai", url, "m").is_local for url in urls] == [True, True, True, False, False]


def test_words_are_one_token_each() -> None:
    assert len(words(3).pieces) == words(3).output_tokens == 3
