from __future__ import annotations

import re
from typing import Any

import pytest

from scripted_server import CONTEXT_LEN, BracketTemplate, LiveServer, chat, events_of

PATH = "/v1/chat/completions"


def streamed(server: LiveServer, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The chunks of a stream that ends well."""
    response = server.post(PATH, {**body, "stream": True, "stream_options": {"include_usage": True}})
    assert response.status_code == 200, response.text
    *chunks, done = events_of(response)
    assert done is None
    return chunks


def text_of(chunks: list[dict[str, Any]], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content", "") for choice in choices)


def counts(usage: dict[str, Any]) -> dict[str, Any]:
    """Usage without what the prefix cache spared, which differs when the same is asked again."""
    return {name: count for name, count in usage.items() if name != "prompt_tokens_details"}


@pytest.mark.parametrize(
    ("prompt", "fields"),
    [
        ("say:👋 삼겹살 ďábelské", {}),  # arrives byte by byte
        ("say:one STOP two", {"stop": "STOP"}),
        ("babble", {"max_tokens": 40, "seed": 3}),
        ("babble", {"max_tokens": 20, "seed": 3, "n": 3}),
    ],
)
def test_stream_and_whole_answer_agree(server: LiveServer, prompt: str, fields: dict[str, Any]) -> None:
    whole = server.post(PATH, chat(prompt, **fields)).json()
    chunks = streamed(server, chat(prompt, **fields))
    assert chunks[-1]["choices"] == []
    assert counts(chunks[-1]["usage"]) == counts(whole["usage"])
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    for choice in whole["choices"]:
        assert text_of(chunks, choice["index"]) == choice["message"]["content"]
        reasons = [c["finish_reason"] for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        assert [reason for reason in reasons if reason] == [choice["finish_reason"]]


def test_characters_are_whole_in_every_chunk(server: LiveServer) -> None:
    chunks = streamed(server, chat("say:👋 삼겹살 ďábelské"))
    assert text_of(chunks) == "👋 삼겹살 ďábelské"
    assert not any("�" in choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"])
    assert chunks[-1]["usage"]["completion_tokens"] == len("👋 삼겹살 ďábelské".encode()) + 1  # the end token


def test_first_chunk_brings_the_role_and_the_last_the_reason(server: LiveServer) -> None:
    first, *_, last, _usage = streamed(server, chat("say:Hi"))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": "H"}
    assert last["choices"][0]["delta"] == {}
    assert last["choices"][0]["finish_reason"] == "stop"
    assert {first["object"], last["object"]} == {"chat.completion.chunk"}
    assert first["id"] == last["id"]


def test_no_part_of_a_stop_string_leaks(server: LiveServer) -> None:
    chunks = streamed(server, chat("say:before <|stop|> after", stop=["<|stop|>", "never"]))
    assert text_of(chunks) == "before "
    assert chunks[-2]["choices"][0]["stop_reason"] == "<|stop|>"
    with_it = server.post(PATH, chat("say:before <|stop|> after", stop="<|stop|>", include_stop_str_in_output=True))
    assert with_it.json()["choices"][0]["message"]["content"] == "before <|stop|>"


def test_what_began_like_a_stop_string_comes_at_last(server: LiveServer) -> None:
    assert text_of(streamed(server, chat("say:not <|sto", stop="<|stop|>"))) == "not <|sto"


def test_choices_differ_and_repeat_with_the_seed(server: LiveServer) -> None:
    texts = []
    for _ in range(2):
        answer = server.post(PATH, chat("babble", n=3, seed=11, max_tokens=12)).json()
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
        texts.append([choice["message"]["content"] for choice in answer["choices"]])
    assert texts[0] == texts[1]
    assert len(set(texts[0])) == 3
    alone = server.post(PATH, chat("babble", seed=11, max_tokens=12)).json()
    assert alone["choices"][0]["message"]["content"] == texts[0][0]
    assert answer["usage"]["completion_tokens"] == 36
    assert answer["usage"]["prompt_tokens"] == alone["usage"]["prompt_tokens"]


def test_left_out_limit_is_the_rest_of_the_context(server: LiveServer) -> None:
    answer = server.post(PATH, chat("babble")).json()
    assert answer["usage"]["total_tokens"] == CONTEXT_LEN
    assert answer["choices"][0]["finish_reason"] == "length"


def test_logprobs(server: LiveServer) -> None:
    answer = server.post(PATH, chat("say:é", logprobs=True, top_logprobs=2)).json()
    tokens = answer["choices"][0]["logprobs"]["content"]
    assert [token["bytes"] for token in tokens] == [[0xC3], [0xA9], list(b"<|end|>")]
    assert tokens[0]["logprob"] == -0.5
    assert [(top["token"], top["logprob"]) for top in tokens[0]["top_logprobs"]] == [("a", -1.0), ("b", -2.0)]
    chunks = streamed(server, chat("say:é", logprobs=True, top_logprobs=2))
    parts = [choice["logprobs"] for chunk in chunks for choice in chunk["choices"] if choice["logprobs"]]
    assert [token for part in parts for token in part["content"]] == tokens
    none = server.post(PATH, chat("say:é", logprobs=True)).json()["choices"][0]["logprobs"]["content"]
    assert [token["top_logprobs"] for token in none] == [[], [], []]


def test_usage_can_come_with_every_chunk(server: LiveServer) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, _done = events_of(server.post(PATH, chat("say:abc", stream=True, stream_options=options)))
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (1, 4)


def test_timings_add_up(server: LiveServer) -> None:
    timings = server.post(PATH, chat("say:abc")).json()["timings"]
    parts = [timings[f"{part}_s"] for part in ("prepare", "queue", "prefill", "decode")]
    assert sum(parts) == pytest.approx(timings["e2e_s"])
    assert min(parts) >= 0
    assert timings["ttft_s"] == pytest.approx(sum(parts[:3]))
    *_, last, _done = events_of(server.post(PATH, chat("say:abc", stream=True)))
    assert last["timings"].keys() == timings.keys()
    assert "usage" not in last


def test_model_defaults_hold_where_the_request_says_nothing(server: LiveServer) -> None:
    server.post(PATH, chat("say:a", top_k=-1, max_completion_tokens=1))
    server.post(PATH, chat("say:a", temperature=0, max_tokens=1))
    setups = server.executor.setups[-2:]
    assert [(setup.temperature, setup.top_k) for setup in setups] == [(0.5, 0), (0.0, 7)]


def test_messages_reach_the_template_in_plain_form(server: LiveServer) -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "assistant", "content": None, "tool_calls": [], "refusal": None},
        {"role": "user", "content": [{"type": "text", "text": "sa"}, {"type": "text", "text": "y:ok"}], "name": "Ann"},
    ]
    body = {"model": "scripted", "messages": messages, "chat_template_kwargs": {"preamble": "<<"}}
    answer = server.post(PATH, body).json()
    assert answer["choices"][0]["message"]["content"] == "ok"
    tokens = server.post("/tokenize", {"messages": messages, "chat_template_kwargs": {"preamble": "<<"}}).json()[
        "tokens"
    ]
    assert bytes(tokens[1:]) == b"<<[system]Be brief.[assistant][user]say:ok"
    assert answer["usage"]["prompt_tokens"] == len(tokens)


HISTORY_WITH_TOOLS = [
    {"role": "user", "content": "2+2?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": [2, 2]}'}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "4"},
]


def test_tool_calls_of_a_history_reach_the_template_with_arguments_as_objects(server: LiveServer) -> None:
    tokens = server.post("/tokenize", {"messages": HISTORY_WITH_TOOLS}).json()["tokens"]
    assert bytes(tokens[1:]) == b"[user]2+2?[assistant]c1:add{'a': [2, 2]}[tool]4c1"


def test_a_template_without_tool_calls_gets_none(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BracketTemplate, "takes_tools", False)
    server = start()
    for messages, place in ((HISTORY_WITH_TOOLS, "[1].tool_calls"), (HISTORY_WITH_TOOLS[2:], "[0].role")):
        error = server.post(PATH, {"model": "scripted", "messages": messages}).json()["error"]
        assert (error["code"], error["param"]) == ("unsupported_parameter", f"messages{place}")


def test_answer_names_request_and_model(start: Any) -> None:
    server = start(served_model_names=("alias",))
    response = server.post(PATH, chat("say:a") | {"model": "alias"})
    assert response.json()["model"] == "alias"
    assert response.json()["id"] == "chatcmpl-" + response.headers["x-request-id"]
    assert re.fullmatch("[0-9a-f]{32}", response.headers["x-request-id"])
    cards = server.get("/v1/models").json()["data"]
    assert [card["id"] for card in cards] == ["alias", "scripted"]
    card = server.get("/v1/models/scripted").json()
    assert card["max_model_len"] == CONTEXT_LEN
    assert (card["dtype"], card["kv_dtype"]) == ("fp32", "fp32")
