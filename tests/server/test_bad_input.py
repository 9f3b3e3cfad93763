"""Whatever is wrong with a request: an error that names the field and gives the numbers, before any header of a stream,
and nobody else notices."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from scripted_server import CONTEXT_LEN, VOCAB_SIZE, LiveServer, chat, completion, events_of

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
NAN, INFINITY = float("nan"), float("inf")
IMAGE = [{"type": "image_url", "image_url": {"url": "data:"}}]


def called(**changes: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": "{}"}} | changes]}


# message, the place of it that is at fault
TOOLS: list[tuple[dict[str, Any], str]] = [
    ({"role": "assistant", "tool_calls": {"id": "c1"}}, "tool_calls"),
    (called() | {"role": "user", "content": "x"}, "tool_calls"),
    (called(id=None), "tool_calls[0].id"),
    (called(type="custom"), "tool_calls[0].type"),
    (called(place=0), "tool_calls[0].place"),
    (called(function=None), "tool_calls[0].function"),
    (called(function={"arguments": "{}"}), "tool_calls[0].function.name"),
    (called(function={"name": "f", "arguments": {}}), "tool_calls[0].function.arguments"),
    (called(function={"name": "f", "arguments": "{"}), "tool_calls[0].function.arguments"),
    (called(function={"name": "f", "arguments": "[]"}), "tool_calls[0].function.arguments"),
    ({"role": "tool", "content": "4"}, "tool_call_id"),
    ({"role": "user", "content": "4", "tool_call_id": "c1"}, "tool_call_id"),
]

# path, body, param, extra keys of the error
BAD: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    (CHAT, chat("x" * 600), "messages", {"code": "context_length_exceeded", "context_len": CONTEXT_LEN}),
    (COMPLETIONS, completion("x" * 600), "prompt", {"num_prompt_tokens": 601, "context_len": CONTEXT_LEN}),
    (CHAT, chat("x", max_tokens=600), "max_tokens", {"max_tokens": 600}),
    (CHAT, chat("x", max_completion_tokens=600), "max_completion_tokens", {"max_tokens": 600}),
    (CHAT, chat("x", max_completion_tokens=6, max_tokens=5), "max_tokens", {}),
    (COMPLETIONS, completion("x", max_tokens=600), "max_tokens", {"kv_pool_tokens": 1024}),
    (COMPLETIONS, completion("x", max_tokens=0), "max_tokens", {}),
    (COMPLETIONS, completion(""), "prompt", {}),
    (COMPLETIONS, completion([]), "prompt", {}),
    (COMPLETIONS, completion([[]]), "prompt", {}),
    (COMPLETIONS, completion(["a", ""]), "prompt[1]", {}),
    (COMPLETIONS, completion([[5], [VOCAB_SIZE]]), "prompt[1]", {"token_id": VOCAB_SIZE, "position": 0}),
    (COMPLETIONS, completion(["a", "x" * 600]), "prompt[1]", {"code": "context_length_exceeded"}),
    (COMPLETIONS, completion(["a", 1]), "prompt[0]", {}),
    (COMPLETIONS, completion([1, True]), "prompt[1]", {}),
    (COMPLETIONS, completion(7), "prompt", {}),
    (COMPLETIONS, completion("\ud83d"), "prompt", {}),
    (COMPLETIONS, completion([5, VOCAB_SIZE]), "prompt", {"token_id": VOCAB_SIZE, "position": 1}),
    (COMPLETIONS, completion([-1]), "prompt", {"vocab_size": VOCAB_SIZE}),
    (CHAT, chat("x", temperature=NAN), "temperature", {}),
    (CHAT, chat("x", temperature=INFINITY), "temperature", {}),
    (CHAT, chat("x", temperature=-1), "temperature", {}),
    (CHAT, chat("x", temperature="hot"), "temperature", {}),
    (CHAT, chat("x", top_p=-0.1), "top_p", {}),
    (CHAT, chat("x", min_p=2), "min_p", {}),
    (CHAT, chat("x", top_k=-2), "top_k", {}),
    (CHAT, chat("x", repetition_penalty=0), "repetition_penalty", {}),
    (CHAT, chat("x", presence_penalty=9), "presence_penalty", {}),
    (CHAT, chat("x", seed=2**70), "seed", {}),
    (CHAT, chat("x", seed=1.5), "seed", {}),
    (CHAT, chat("x", max_tokens=-3), "max_tokens", {}),
    (CHAT, chat("x", n=0), "n", {}),
    (CHAT, chat("x", n=1000), "n", {}),
    (CHAT, chat("x", stop=["a"] * 17), "stop", {}),
    (CHAT, chat("x", stop=[""]), "stop", {}),
    (CHAT, chat("x", stop=[3]), "stop", {}),
    (CHAT, chat("x", logit_bias={"900": 1}), "logit_bias", {}),
    (CHAT, chat("x", logit_bias={"90": NAN}), "logit_bias", {}),
    (CHAT, chat("x", stop_token_ids=[900]), "stop_token_ids", {}),
    (CHAT, chat("x", logprobs=True, top_logprobs=21), "top_logprobs", {}),
    (CHAT, chat("x", top_logprobs=2), "top_logprobs", {}),
    (CHAT, chat("x", logprobs=2), "logprobs", {}),
    (COMPLETIONS, completion("x", logprobs=6), "logprobs", {}),
    (CHAT, chat("x", repetition_penalty=1e-300), "repetition_penalty", {}),
    (CHAT, chat("x", min_tokens=10**12), "min_tokens", {"context_len": CONTEXT_LEN}),
    (CHAT, chat("x", cache_ttl=10**400), "cache_ttl", {}),
    (CHAT, chat("x", chat_template_kwargs={"messages": []}), "chat_template_kwargs.messages", {}),
    (CHAT, chat("x", chat_template_kwargs={"tools": []}), "chat_template_kwargs.tools", {}),
    (CHAT, chat([{"type": "text", "text": "x", "txet": 1}]), "messages[0].content[0].txet", {}),
    (CHAT, chat("x", **{"\ud800": 1}), "\\ud800", {"code": "unknown_parameter"}),
    (CHAT, chat("x", stream_options={"\ud800": True}), "stream_options.\\ud800", {"code": "unknown_parameter"}),
    (COMPLETIONS, completion("x", logprobs=True), "logprobs", {}),
    (CHAT, chat("x", stream="yes"), "stream", {}),
    (CHAT, chat("x", stream_options={"include_usage": True}), "stream_options", {}),
    (CHAT, chat("x", stream=True, stream_options={"usage": 1}), "stream_options.usage", {"code": "unknown_parameter"}),
    (CHAT, chat("x", priority=-1), "priority", {}),
    (CHAT, {"model": "scripted"}, "messages", {"code": "missing_required_parameter"}),
    (COMPLETIONS, {"model": "scripted"}, "prompt", {"code": "missing_required_parameter"}),
    (CHAT, {"model": "scripted", "messages": []}, "messages", {}),
    (CHAT, {"model": "scripted", "messages": ["x"]}, "messages[0]", {}),
    (CHAT, {"model": "scripted", "messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", {}),
    (CHAT, {"model": "scripted", "messages": [{"role": "user"}]}, "messages[0].content", {}),
    (CHAT, {"model": "scripted", "messages": [{"role": "user", "content": IMAGE}]}, "messages[0].content[0].type", {}),
    (CHAT, {"model": "scripted", "messages": [{"role": "user", "content": "x", "nam": "A"}]}, "messages[0].nam", {}),
    *((CHAT, {"model": "scripted", "messages": [message]}, f"messages[0].{place}", {}) for message, place in TOOLS),
    (CHAT, chat("{{ broken"), "messages", {}),
    (CHAT, chat("x", tempreature=1), "tempreature", {"code": "unknown_parameter"}),
    (CHAT, chat("x", tools=[{"type": "function"}]), "tools", {"code": "unsupported_parameter"}),
    (CHAT, chat("x", response_format={"type": "json_object"}), "response_format", {"code": "unsupported_parameter"}),
    (CHAT, chat("x", modalities=["audio"]), "modalities", {"code": "unsupported_parameter"}),
    (COMPLETIONS, completion("x", suffix="y"), "suffix", {"code": "unsupported_parameter"}),
    (COMPLETIONS, completion("x", best_of=3), "best_of", {"code": "unsupported_parameter"}),
    ("/tokenize", {}, "prompt", {}),
    ("/tokenize", {"prompt": "a", "messages": []}, "prompt", {}),
    ("/detokenize", {"tokens": [900]}, "tokens", {"token_id": 900}),
]


def post(server: LiveServer, path: str, body: Any) -> httpx.Response:
    """As Python writes JSON: NaN and half surrogates are let through."""
    headers = {"content-type": "application/json"}
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return server.http.post(path, content=content, headers=headers)


def describe(case: Any) -> str:
    return case if isinstance(case, str) else ""


def may_stream(path: str, body: dict[str, Any]) -> bool:
    return path.startswith("/v1/") and not body.keys() & {"stream", "stream_options"}


STREAMED = [(path, body | {"stream": True}, param, extra) for path, body, param, extra in BAD if may_stream(path, body)]


@pytest.mark.parametrize(("path", "body", "param", "extra"), BAD + STREAMED, ids=describe)
def test_refused_by_name(
    server: LiveServer, path: str, body: dict[str, Any], param: str, extra: dict[str, Any]
) -> None:
    response = post(server, path, body)
    assert response.status_code == 400, response.text
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param, error
    assert error["message"]
    assert error.items() >= extra.items()
    assert server.get("/health").status_code == 200


def test_a_misspelt_field_is_told_the_right_one(server: LiveServer) -> None:
    message = post(server, CHAT, chat("x", max_token=1)).json()["error"]["message"]
    assert "'max_token'" in message
    assert "did you mean 'max_tokens'" in message


@pytest.mark.parametrize("body", [b"", b"{", b'{"model": ', b"[1]", b'"x"', b"\xff\xfe", b"[" * 100_000])
def test_broken_json(server: LiveServer, body: bytes) -> None:
    response = post(server, CHAT, body)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_json"


def test_unknown_model(server: LiveServer) -> None:
    response = post(server, CHAT, chat("x") | {"model": "scripter"})
    assert response.status_code == 404
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "did you mean 'scripted'" in error["message"]
    assert server.get("/v1/models/scripter").status_code == 404


def test_prompt_larger_than_the_pool(start: Any) -> None:
    server = start(num_pages=5)
    response = server.post(COMPLETIONS, completion("x" * 100))
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "prompt"
    assert (error["num_prompt_tokens"], error["kv_pool_tokens"]) == (101, 64)
    answer = server.post(COMPLETIONS, completion("say:fits")).json()
    assert answer["choices"][0]["text"] == "fits"


def test_a_failing_step_fails_its_own_requests(server: LiveServer) -> None:
    for prompt, problem in (("<BROKEN>", "the step failed"), ("<NAN>", "not finite")):
        response = server.post(COMPLETIONS, completion(prompt))
        assert response.status_code == 500
        assert response.json()["error"]["type"] == "server_error"
        assert problem in response.json()["error"]["message"]
        *_, last = events_of(server.post(COMPLETIONS, completion(prompt, stream=True)))
        assert problem in last["error"]["message"]  # and no [DONE] after it
    assert server.post(COMPLETIONS, completion("say:ok")).json()["choices"][0]["text"] == "ok"
    assert server.wait_idle()["status"] == "ok"


def test_neighbours_are_untouched(server: LiveServer) -> None:
    expected = server.post(COMPLETIONS, completion("babble", seed=1, max_tokens=400)).json()["choices"][0]["text"]
    body = completion("babble", seed=1, max_tokens=400, stream=True)
    parts = []
    server.executor.gate.allow(3)
    with server.http.stream("POST", COMPLETIONS, json=body) as stream:
        lines = (line for line in stream.iter_lines() if line)
        parts.append(next(lines))
        for path, bad, _, _ in BAD:
            assert post(server, path, bad).status_code == 400
        server.executor.gate.open()
        assert server.post(COMPLETIONS, completion("<NAN>")).status_code == 500
        parts += lines
    *events, done = parts
    assert done == "data: [DONE]"
    assert "".join(json.loads(event[6:])["choices"][0]["text"] for event in events) == expected


def test_neutral_values_of_what_is_not_implemented(server: LiveServer) -> None:
    neutral = {
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "audio": None,
        "functions": None,
        "top_logprobs": None,
        "stop": None,
        "logit_bias": {},
    }
    harmless = {"user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "auto"}
    answer = server.post(CHAT, chat("say:fine", **neutral, **harmless))
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == "fine"


def test_messages_quote_no_more_than_a_line_of_what_came(server: LiveServer) -> None:
    for path, body in [
        (CHAT, chat("x", stream="y" * 100_000)),
        (CHAT, chat("x", temperature=[7] * 100_000)),
        (CHAT, chat("x", logit_bias="y" * 100_000)),
        (COMPLETIONS, completion([1, "y" * 100_000])),
    ]:
        response = server.post(path, body)
        assert response.status_code == 400
        assert len(response.content) < 600


@pytest.mark.parametrize("field", ["chat_template_kwargs", "metadata", "temperature"])
def test_deep_nesting_is_refused_wherever_it_is(server: LiveServer, field: str) -> None:
    for depth in (120, 900, 100_000):
        body = json.dumps(chat("x"))[:-1] + f', "{field}": ' + '{"a":' * depth + "1" + "}" * depth + "}"
        response = server.http.post(CHAT, content=body, headers={"content-type": "application/json"})
        assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json")


def test_top_k_beyond_the_vocabulary_is_off(server: LiveServer) -> None:
    for top_k in (VOCAB_SIZE, 2**31, 10**40):
        assert server.post(CHAT, chat("say:a", top_k=top_k)).status_code == 200
        assert server.executor.setups[-1].top_k == 0
