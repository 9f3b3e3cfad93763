"""The prefix cache over HTTP: receipts, explanations, isolation, and who may look inside."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from ridgeline.config import EngineConfig
from scripted_server import DEADLINE_S, LiveServer, Start, chat, completion, events_of

PATH = "/v1/completions"
PROMPT = "The quick brown fox jumps over the lazy dog and runs to the sea. say:ok"  # 71 characters and BOS: 72 tokens
SYSTEM = "You are a careful assistant who answers in one short sentence. "


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def ask(server: LiveServer, prompt: str = PROMPT, headers: dict[str, str] | None = None, **fields: Any) -> Any:
    response = server.post(PATH, completion(prompt, **fields), headers=headers or {})
    assert response.status_code == 200, response.text
    assert response.json()["choices"][0]["text"] == "ok"
    return response.json()


def tree(server: LiveServer) -> dict[str, Any]:
    """Of a server whose admin key is `root`."""
    return server.get("/cache/tree", headers=bearer("root")).json()


def details(answer: dict[str, Any]) -> dict[str, int]:
    return answer["usage"]["prompt_tokens_details"]


def explained(server: LiveServer, prompt: str = PROMPT, **options: Any) -> dict[str, Any]:
    (explanation,) = ask(server, prompt, explain_cache=True, **options)["cache_explanation"]
    return explanation


def test_a_receipt(start: Start) -> None:
    server = start()
    assert details(ask(server)) == {
        "cached_tokens": 0, "loaded_tokens": 0, "created_tokens": 64, "expired_tokens": 0
    }  # fmt: skip
    assert details(ask(server)) == {"cached_tokens": 64, "loaded_tokens": 0, "created_tokens": 0, "expired_tokens": 0}
    assert details(ask(server, "X" + PROMPT[1:]))["cached_tokens"] == 0
    assert details(ask(server, PROMPT[:-4] + "!say:ok"))["cached_tokens"] == 64
    twice = server.post(PATH, completion([PROMPT, PROMPT], n=2)).json()
    assert details(twice)["cached_tokens"] == 128
    assert "cache_explanation" not in twice


def test_a_stream_has_receipt_and_explanation_too(start: Start) -> None:
    server = start()
    ask(server)
    body = completion(PROMPT, stream=True, stream_options={"include_usage": True})
    *_, finish, usage, end = events_of(server.post(PATH, body, headers={"x-cache-explain": "1"}))
    assert end is None
    assert details(usage)["cached_tokens"] == 64
    assert finish["cache_explanation"][0]["cached_tokens"] == 64


def test_explanations(start: Start) -> None:
    server = start()
    first = explained(server)
    assert (first["cached_tokens"], first["matching_tokens"], first["first_difference"]) == (0, 0, 0)
    assert first["reasons"] == ["no stored prompt begins like this one: it is the first, or was evicted or flushed"]
    assert explained(server)["reasons"] == ["every full page hit; the other 8 tokens are always computed"]
    other = explained(server, PROMPT.replace("lazy dog", "lazy cat"))
    at = 1 + PROMPT.index("dog")
    assert (other["matching_tokens"], other["first_difference"], other["cached_tokens"]) == (at, at, at // 16 * 16)
    assert other["text_before"].endswith("the lazy ")
    assert other["text_after"].startswith("cat and runs")
    assert other["reasons"][0] == f"the prompt goes on differently at token {at}"
    assert other["reasons"][1] == f"whole pages of 16 tokens hit: {at} matching tokens fill {at // 16} of them"
    assert "shorter than one page: 7 tokens" in explained(server, "say:ok")["reasons"][0]
    assert "ends at token 5" in explained(server, PROMPT[:4] + PROMPT)["reasons"][0]


def test_a_clock_in_the_system_prompt_is_pointed_out(start: Start) -> None:
    server = start()
    for clock, wanted in [("09:41:07", False), ("09:41:32", True), ("09:43:32", True)]:
        answer = explained(server, f"{SYSTEM}It is {clock} now. {PROMPT}")
        assert ("a timestamp in the system prompt" in answer["reasons"][0]) == wanted
    assert answer["text_before"].endswith("It is 09:4")
    counted = [explained(server, f"{SYSTEM}Room {number}. {PROMPT}") for number in (4, 5)]
    assert "goes on differently" in counted[1]["reasons"][0]


def test_an_explanation_quotes_nobody_else(start: Start) -> None:
    server = start()
    ask(server, PROMPT.replace("lazy dog", "SECRET!!"))
    assert "SECRET" not in str(explained(server))


def test_expiry_is_told(start: Start) -> None:
    server = start(admin_key="root")
    ask(server, cache_ttl="0.05s")
    deadline = time.monotonic() + DEADLINE_S
    while tree(server)["nodes"][-1]["expires_in_s"] > 0:
        assert time.monotonic() < deadline
    answer = ask(server, explain_cache=True)
    assert details(answer)["cached_tokens"] == 0
    assert details(answer)["expired_tokens"] == 64
    assert re.match(r"expired \d+ s ago", answer["cache_explanation"][0]["reasons"][0])


def test_retention_and_ttl(start: Start) -> None:
    server = start(engine=EngineConfig(prefix_ttl_s=60.0), admin_key="root")
    for fields, expires_in_s in [
        ({}, 60), ({"prompt_cache_retention": "in_memory", "prompt_cache_key": "k"}, 60), ({"cache_ttl": "5m"}, 300),
        ({"cache_ttl": 1800}, 1800), ({"cache_ttl": "1h"}, 3600), ({"prompt_cache_retention": "24h"}, 86400),
    ]:  # fmt: skip
        ask(server, cache_salt=str(expires_in_s), **fields)
        nodes = tree(server)["nodes"]
        (node,) = [n for n in nodes if n["salt"] == f"salt:{expires_in_s}" and n["pages"]]
        assert expires_in_s - 10 < node["expires_in_s"] <= expires_in_s


def test_salts_never_share(start: Start) -> None:
    server = start()
    ask(server, cache_salt="a")
    for fields in ({"cache_salt": "b"}, {}):
        answer = ask(server, explain_cache=True, **fields)
        assert details(answer)["cached_tokens"] == 0
        assert answer["cache_explanation"][0]["matching_tokens"] == 0
        assert any("other salt" in reason for reason in answer["cache_explanation"][0]["reasons"]) == bool(fields)
    assert details(ask(server, cache_salt="a"))["cached_tokens"] == 64


def test_several_api_keys_never_share_unless_they_agree_on_a_salt(start: Start) -> None:
    server = start(api_keys=("one", "two"))
    ask(server, headers=bearer("one"))
    assert details(ask(server, headers=bearer("two")))["cached_tokens"] == 0
    assert details(ask(server, headers=bearer("one")))["cached_tokens"] == 64
    ask(server, headers=bearer("one"), cache_salt="team")
    assert details(ask(server, headers=bearer("two"), cache_salt="team"))["cached_tokens"] == 64


def test_one_api_key_is_one_cache(start: Start) -> None:
    server = start(api_keys=("one",), admin_key="root")
    ask(server, headers=bearer("one"))
    assert [n["salt"] for n in tree(server)["nodes"]] == ["", ""]


def test_tree_and_flush(start: Start) -> None:
    server = start(admin_key="root")
    ask(server)
    ask(server, PROMPT.replace("lazy dog", "lazy cat"))
    ask(server)
    stored = tree(server)
    assert (stored["page_size"], stored["disk"]) == (16, None)
    root, trunk, *branches = stored["nodes"]
    assert (root["parent"], root["pages"], trunk["parent"]) == (None, 0, root["id"])
    assert {branch["parent"] for branch in branches} == {trunk["id"]}
    assert (trunk["tokens"], trunk["pages"], trunk["users"]) == (32, 2, 0)
    assert trunk["hits"] == 2
    assert trunk["text"] == "<|start|>The quick brown"[: len("<|start|>") + 15]
    assert sum(node["pages"] for node in stored["nodes"]) == stored["num_pages_cached"]
    assert server.post("/cache/flush", {}, headers=bearer("root")).json() == {
        "flushed_pages": stored["num_pages_cached"]
    }
    assert tree(server)["nodes"] == []
    assert details(ask(server))["cached_tokens"] == 0


def test_without_the_prefix_cache_nothing_is_kept(start: Start) -> None:
    server = start(engine=EngineConfig(prefix_cache=False), admin_key="root")
    ask(server)
    assert details(ask(server)) == dict.fromkeys(
        ("cached_tokens", "loaded_tokens", "created_tokens", "expired_tokens"), 0
    )
    assert tree(server)["nodes"] == []


@pytest.mark.parametrize(
    ("config", "key", "status", "code"),
    [
        ({}, None, 403, "no_admin_key"),
        ({}, "guess", 403, "no_admin_key"),
        ({"admin_key": "root"}, "root", 200, None),
        ({"admin_key": "root"}, None, 401, "invalid_api_key"),
        ({"admin_key": "root"}, "guess", 401, "invalid_api_key"),
        ({"admin_key": "root", "api_keys": ("one",)}, "root", 200, None),
        ({"admin_key": "root", "api_keys": ("one",)}, "one", 401, "invalid_api_key"),
        ({"api_keys": ("one",)}, "one", 403, "no_admin_key"),
        ({"api_keys": ("one",)}, None, 403, "no_admin_key"),
    ],
)
def test_who_may_look_and_flush(
    start: Start, config: dict[str, Any], key: str | None, status: int, code: str | None
) -> None:
    server = start(**config)
    headers = {} if key is None else bearer(key)
    for response in (server.get("/cache/tree", headers=headers), server.post("/cache/flush", {}, headers=headers)):
        assert response.status_code == status
        assert response.json().get("error", {}).get("code") == code


def test_the_admin_key_is_no_api_key(start: Start) -> None:
    server = start(admin_key="root", api_keys=("one",))
    assert server.post(PATH, completion(PROMPT), headers=bearer("root")).status_code == 401


@pytest.mark.parametrize(
    "head",
    [
        "GET /cache/tree HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n",  # nginx's proxy_pass as it comes
        "GET /cache/tree HTTP/1.0\r\nHost: ridgeline\r\nConnection: close\r\n",  # to a named upstream
        "POST /cache/flush HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\nContent-Length: 0\r\n",
        "GET /cache/tree HTTP/1.1\r\nHost: rebound.example:{port}\r\nConnection: close\r\n",  # a web page of that name
        "GET /cache/tree HTTP/1.1\r\nHost: localhost:{port}\r\nX-Forwarded-For: 127.0.0.1\r\nConnection: close\r\n",
    ],
)
def test_this_machine_alone_is_no_proof(start: Start, head: str) -> None:
    server = start()
    answer = server.exchange((head.format(port=server.state.port) + "\r\n").encode())
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert b"--admin-key KEY" in answer


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"cache_salt": ""}, "cache_salt"),
        ({"cache_salt": 7}, "cache_salt"),
        ({"cache_salt": "x" * 257}, "cache_salt"),
        ({"cache_ttl": "soon"}, "cache_ttl"),
        ({"cache_ttl": 0}, "cache_ttl"),
        ({"cache_ttl": True}, "cache_ttl"),
        ({"cache_ttl": float("nan")}, "cache_ttl"),
        ({"cache_ttl": "90d"}, "cache_ttl"),
        ({"cache_ttl": 60, "prompt_cache_retention": "24h"}, "cache_ttl"),
        ({"prompt_cache_retention": "48h"}, "prompt_cache_retention"),
        ({"explain_cache": "yes"}, "explain_cache"),
        ({"cache_slat": "x"}, "cache_slat"),
    ],
)
def test_wrong_fields_are_named(server: LiveServer, fields: dict[str, Any], param: str) -> None:
    response = server.http.post(PATH, content=__import__("json").dumps(completion(PROMPT, **fields)),
                                headers={"content-type": "application/json"})  # fmt: skip
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_chat_has_the_same_fields(start: Start) -> None:
    server = start()
    body = chat(PROMPT, cache_salt="a", explain_cache=True, cache_ttl="5m", prompt_cache_key="k")
    cold, warm = (server.post("/v1/chat/completions", body).json() for _ in range(2))
    assert details(cold)["cached_tokens"] == 0
    assert details(warm)["cached_tokens"] == 64
    assert warm["cache_explanation"][0]["reasons"][0].startswith("every full page hit")
