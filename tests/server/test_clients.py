"""Requests as real clients send them: the openai package, and recorded bytes of curl, Java's HttpClient and others."""

from __future__ import annotations

import gzip
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from ridgeline.server.transport import gunzip
from scripted_server import BOS, CONTEXT_LEN, CONTROL, DEADLINE_S, EOS, LiveServer, Start, chat, events_of

PATH = "/v1/chat/completions"

CURL = (
    "POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUser-Agent: curl/7.88.1\r\nAccept: */*\r\n"
    "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"
    "Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
)  # curl --http2
JAVA = (
    "POST {path} HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nContent-Length: {length}\r\n"
    "Host: 127.0.0.1:{port}\r\nHTTP2-Settings: AAEAAEAAAAIAAAAAAAMAAAAAAAQBAAAAAAUAAEAAAAYABgAA\r\nUpgrade: h2c\r\n"
    "User-Agent: Java-http-client/17.0.15\r\nContent-Type: application/json\r\n\r\n"
)  # java.net.http.HttpClient of Java 17: the body is a packet of its own
CURL_10 = (
    "POST {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\nUser-Agent: curl/7.88.1\r\nAccept: */*\r\n"
    "Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
)  # curl --http1.0
NGINX = CURL_10.replace("User-Agent: curl/7.88.1", "Connection: close")  # a default proxy_pass


def recorded(server: LiveServer, head: str, body: dict[str, Any], *, closes: bool = True) -> tuple[str, bytes]:
    """The answer's head, in lower case, and body. `closes`: the client asks for nothing after this."""
    data = json.dumps(body).encode()
    head = head.format(path=PATH, port=server.state.port, length=len(data))
    if not closes:
        head = head.replace("Connection: Upgrade", "Connection: close, Upgrade")
    answered, _, content = server.exchange(head.encode(), data).partition(b"\r\n\r\n")
    return answered.decode().lower(), content


@pytest.mark.parametrize("head", [CURL, JAVA], ids=["curl --http2", "Java's HttpClient"])
def test_an_offer_of_http2_is_answered_in_http1(
    server: LiveServer, head: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        answered, content = recorded(server, head, chat("say:ok"), closes=False)
    assert answered.startswith("http/1.1 200 ")
    assert json.loads(content)["choices"][0]["message"]["content"] == "ok"
    assert not caplog.records


@pytest.mark.parametrize("head", [CURL_10, NGINX], ids=["curl --http1.0", "nginx"])
def test_an_http10_client_gets_a_stream_that_ends_with_the_connection(server: LiveServer, head: str) -> None:
    answered, content = recorded(server, head, chat("say:ok", stream=True))
    assert answered.startswith("http/1.1 200 ")
    assert "transfer-encoding" not in answered
    assert "connection: close" in answered
    assert content.startswith(b"data: {")
    assert content.endswith(b"}\n\ndata: [DONE]\n\n")
    answered, content = recorded(server, head, chat("say:ok"))
    assert f"content-length: {len(content)}" in answered
    assert json.loads(content)["choices"][0]["message"]["content"] == "ok"


@pytest.fixture
def client(server: LiveServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=DEADLINE_S)


def shown_to_the_model(server: LiveServer, messages: list[Any]) -> str:
    response = server.post("/tokenize", {"messages": messages})
    assert response.status_code == 200, response.text
    return bytes(response.json()["tokens"][1:]).decode()


@pytest.mark.parametrize("helper", ["create", "parse", "stream"])
def test_the_openai_packages_own_messages_come_back(server: LiveServer, client: openai.OpenAI, helper: str) -> None:
    messages: list[Any] = [{"role": "user", "content": "say:fine"}]
    completions = client.chat.completions
    if helper == "stream":
        with completions.stream(model="scripted", messages=messages) as stream:
            answer = stream.get_final_completion()
    else:
        answer = getattr(completions, helper)(model="scripted", messages=messages)
    messages += [answer.choices[0].message, {"role": "user", "content": "say:again"}]
    second = completions.create(model="scripted", messages=messages)
    assert second.choices[0].message.content == "again"
    dumped = [m if isinstance(m, dict) else m.model_dump() for m in messages]
    assert shown_to_the_model(server, dumped) == "[user]say:fine[assistant]fine[user]say:again"


ECHOED = {  # with all that openai 3's stream(), vLLM and LiteLLM put beside an answer
    "role": "assistant",
    "content": None,
    "refusal": None,
    "annotations": [{"type": "url_citation", "url_citation": {"url": "https://example.com"}}],
    "audio": None,
    "function_call": None,
    "reasoning": None,
    "reasoning_content": "hm",
    "reasoning_details": [{"type": "reasoning.text", "text": "hm"}],
    "provider_specific_fields": {"refusal": None},
    "parsed": {"sum": 4},
    "tool_calls": [
        {
            "index": 0,
            "id": "c1",
            "type": None,
            "function": {"name": "add", "arguments": '{"a": 2}', "parsed_arguments": {"a": 2}, "strict": None},
            "whatever": None,
        }
    ],
    "whatever": None,
}


def test_an_echoed_answer_with_all_its_helper_fields(server: LiveServer) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "2", "x": None}], "parsed": None}, ECHOED]
    assert shown_to_the_model(server, messages) == "[user]2[assistant]c1:add{'a': 2}"
    body = {**chat("say:ok"), "messages": [*messages, *chat("say:ok")["messages"]], "whatever": None, "tools": None}
    body |= {"stream_options": {"x": None}, "chat_template_kwargs": {"messages": None, "x": None}}
    assert server.post(PATH, body).status_code == 200


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"refusal": "no"}, "messages[0].refusal"),
        ({"audio": {"id": "a1"}}, "messages[0].audio"),
        ({"whatever": 0}, "messages[0].whatever"),
        ({"role": "user", "content": "x", "tool_calls": None}, "messages[0].annotations"),
    ],
)
def test_what_would_change_the_answer_is_still_refused(server: LiveServer, change: dict[str, Any], param: str) -> None:
    response = server.post(PATH, {"messages": [{**ECHOED, **change}]})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("fields", [{"messages": chat("x" * 600)["messages"]}, {"max_tokens": CONTEXT_LEN}])
def test_an_overflow_is_recognized_by_litellm_and_langchain(client: openai.OpenAI, fields: dict[str, Any]) -> None:
    """By the message: the openai package shows nothing else of an error as text."""
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{**chat("say:ok"), **fields})
    assert caught.value.code == "context_length_exceeded"
    assert "context_length_exceeded" in str(caught.value)  # where LangChain looks
    assert f"this model's maximum context length is {CONTEXT_LEN} tokens" in str(caught.value).lower()  # LiteLLM
    assert caught.value.body["context_len"] == CONTEXT_LEN  # type: ignore[index]


@pytest.mark.parametrize("path", [PATH, "/v1/completions"])
@pytest.mark.parametrize("model", [{}, {"model": None}])
def test_a_request_without_a_model_means_the_one_that_is_served(
    start: Start, path: str, model: dict[str, None]
) -> None:
    server = start(served_model_names=("alias",))
    text = {"messages": chat("say:ok")["messages"]} if path == PATH else {"prompt": "say:ok"}
    assert server.post(path, {**text, **model}).json()["model"] == "alias"
    first, *_ = events_of(server.post(path, {**text, **model, "stream": True}))
    assert first["model"] == "alias"


def test_a_gzip_body(server: LiveServer) -> None:
    packed = gzip.compress(json.dumps(chat("say:ok")).encode())
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    half = len(packed) // 2
    for body in (packed, gzip.compress(b" ") + packed, iter([packed[:half], packed[half:]])):
        answer = server.http.post(PATH, content=body, headers=headers)
        assert answer.json()["choices"][0]["message"]["content"] == "ok"


@pytest.mark.parametrize(
    ("encoding", "body", "status", "code"),
    [
        ("gzip", gzip.compress(b"0" * 9_000_000), 413, "body_too_large"),
        ("gzip", gzip.compress(b"0" * 6_000_000) * 2, 413, "body_too_large"),
        ("gzip", b'{"messages": []}', 400, "invalid_gzip"),
        ("gzip", gzip.compress(b"{}")[:-1], 400, "invalid_gzip"),
        ("gzip", gzip.compress(b"{}") + b"more", 400, "invalid_gzip"),
        ("gzip", b"", 400, "invalid_json"),
        ("br", b"x", 415, "unsupported_content_encoding"),
        ("gzip, gzip", b"x", 415, "unsupported_content_encoding"),
    ],
)
def test_bodies_that_cannot_be_unpacked(server: LiveServer, encoding: str, body: bytes, status: int, code: str) -> None:
    headers = {"content-type": "application/json", "content-encoding": encoding}
    response = server.http.post(PATH, content=body, headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)


def test_unpacking_holds_no_more_than_the_limit() -> None:
    assert gunzip(gzip.compress(b"x" * 1000), 1000) == b"x" * 1000
    with pytest.raises(Exception, match="at least 1,001 bytes"):
        gunzip(gzip.compress(b"x" * 1_000_000), 1000)


def test_a_request_id_comes_back(server: LiveServer) -> None:
    for path in ("/health", "/nowhere", "/v1/models"):
        assert server.get(path, headers={"x-request-id": "job-7/a=b;c"}).headers["x-request-id"] == "job-7/a=b;c"
    ids = {server.get("/health").headers["x-request-id"] for _ in range(2)}
    assert len(ids) == 2


def test_two_requests_of_one_id_stay_apart(server: LiveServer) -> None:
    headers = {"x-request-id": "same"}
    server.executor.gate.close()
    with ThreadPoolExecutor() as pool:
        answers = [pool.submit(server.post, PATH, chat(f"say:{word}"), headers=headers) for word in ("one", "two")]
        server.wait_for(lambda body: body["running"] + body["waiting"] == 2)
        server.executor.gate.open()
        bodies = [answer.result(DEADLINE_S).json() for answer in answers]
    assert [body["choices"][0]["message"]["content"] for body in bodies] == ["one", "two"]
    assert bodies[0]["id"] != bodies[1]["id"]


@pytest.mark.parametrize("given", ["", "x" * 513, "a b", "é"])
def test_a_request_id_that_cannot_be_repeated_is_refused(server: LiveServer, given: str) -> None:
    response = server.get("/health", headers=[("x-request-id", given.encode("latin-1"))])
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_request_id")
    assert response.headers["x-request-id"] != given


@pytest.mark.parametrize(
    ("method", "path", "words"),
    [
        ("POST", "/v1/responses", PATH),
        ("GET", "/v1/responses/resp_1", PATH),
        ("POST", "/v1/messages", PATH),
        ("POST", "/v1/messages/count_tokens", "/tokenize"),
        ("POST", "/v1/embeddings", "no embeddings"),
        ("POST", "/api/chat", PATH),
        ("POST", "/api/generate", "/v1/completions"),
        ("GET", "/api/tags", "/v1/models"),
        ("POST", "/api/embed", "no embeddings"),
        ("GET", "/api/whatever", "Ollama"),
        ("POST", "/completion", "/v1/completions"),
        ("GET", "/props", "/v1/models"),
        ("POST", "/v1/v1/chat/completions", "one /v1"),
        ("POST", "/chat/completions", f"use {PATH}"),
        ("GET", "/models", "use /v1/models"),
        ("POST", f"{PATH}/", f"use {PATH}"),
        ("POST", f"/{PATH}", f"use {PATH}"),
        ("POST", "/v1/tokenize", "did you mean '/tokenize'"),
        ("GET", "/", "/v1"),
    ],
)
def test_other_servers_paths_are_told_what_to_ask_here(server: LiveServer, method: str, path: str, words: str) -> None:
    response = server.http.request(method, path)
    assert response.status_code == 404
    assert words in response.json()["error"]["message"]


def test_lm_evals_remote_tokenizer(server: LiveServer) -> None:
    """The calls of lm_eval 0.4.13's RemoteTokenizer."""
    info = server.get("/tokenizer_info", headers={"content-type": "application/json"}).json()
    assert (info["eos_token"], info["bos_token"]) == (CONTROL[EOS], CONTROL[BOS])
    assert "messages" in info["chat_template"]
    for token, token_id in ((info["eos_token"], EOS), (info["bos_token"], BOS)):
        assert server.post("/tokenize", {"prompt": token, "add_special_tokens": False}).json()["tokens"] == [token_id]
    assert server.post("/detokenize", {"tokens": [*b"hi"]}).json()["prompt"] == "hi"


def test_prometheus_scrapes_with_a_key_of_its_own(start: Start) -> None:
    """As its `authorization: {credentials: ...}` sends it (docs/handbook/serving.md)."""
    server = start(api_keys=("people", "scraper"))
    refused = server.get("/metrics")
    assert refused.status_code == 401
    assert "authorization: {credentials: KEY}" in refused.json()["error"]["message"]
    accept = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.5,*/*;q=0.2"
    headers = {"authorization": "Bearer scraper", "accept": accept, "user-agent": "Prometheus/3.5.0"}
    scraped = server.get("/metrics", headers=headers)
    assert scraped.status_code == 200
    assert "vllm:num_requests_running" in scraped.text
