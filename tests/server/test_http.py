"""Keys, limits, CORS and the shape of what goes wrong below the endpoints."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ridgeline.config import EngineConfig
from scripted_server import DEADLINE_S, LiveServer, Start, chat, serving

PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def guarded() -> Any:
    with serving() as start:
        yield start(api_keys=("first-key", "second-key"), cors_origins=("https://ui.example",), max_body_bytes=2000)


@pytest.mark.parametrize("key", ["first-key", "second-key"])
def test_a_known_key_opens(guarded: LiveServer, key: str) -> None:
    response = guarded.post(PATH, chat("say:a"), headers={"authorization": f"Bearer {key}"})
    assert response.status_code == 200


@pytest.mark.parametrize(
    "header", [None, "Bearer wrong", "Bearer", "first-key", "Basic first-key", "Bearer first-keyy"]
)
def test_no_other_key_does(guarded: LiveServer, header: str | None) -> None:
    headers = {} if header is None else {"authorization": header}
    for response in (
        guarded.post(PATH, chat("say:a"), headers=headers),
        guarded.get("/metrics", headers=headers),
        guarded.get("/v1/models", headers=headers),
        guarded.get("/nowhere", headers=headers),
    ):
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
        error = response.json()["error"]
        assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")


def test_health_needs_no_key(guarded: LiveServer) -> None:
    assert guarded.get("/health").status_code == 200


def test_cors_only_where_asked_for(guarded: LiveServer, server: LiveServer) -> None:
    origin = {"origin": "https://ui.example"}
    preflight = {**origin, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    assert guarded.http.options(PATH, headers=preflight).headers["access-control-allow-origin"] == origin["origin"]
    assert guarded.get("/health", headers=origin).headers["access-control-allow-origin"] == origin["origin"]
    assert "access-control-allow-origin" not in guarded.get("/health", headers={"origin": "https://x.example"}).headers
    assert "access-control-allow-origin" not in server.get("/health", headers=origin).headers


@pytest.mark.parametrize("declared", [True, False], ids=["content-length", "chunked"])
def test_a_body_too_large(guarded: LiveServer, declared: bool) -> None:
    body = b'{"model": "' + b"x" * 3000 + b'"}'
    headers = {"authorization": "Bearer first-key", "content-type": "application/json"}
    response = guarded.http.post(PATH, content=body if declared else iter([body]), headers=headers)
    assert response.status_code == 413
    error = response.json()["error"]
    assert (error["code"], error["max_body_bytes"]) == ("body_too_large", 2000)
    assert guarded.get("/health").status_code == 200


def test_a_body_that_is_not_declared_as_json(server: LiveServer) -> None:
    response = server.http.post(PATH, data={"model": "scripted"})
    assert response.status_code == 415
    assert "application/json" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/chat/completion", 404, "path_not_found"),
        ("GET", PATH, 405, "method_not_allowed"),
        ("POST", "/health", 405, "method_not_allowed"),
        ("GET", "/v1/models/", 404, "model_not_found"),
    ],
)
def test_wrong_paths_and_methods(server: LiveServer, method: str, path: str, status: int, code: str) -> None:
    response = server.http.request(method, path)
    assert response.status_code == status
    error = response.json()["error"]
    assert error["code"] == code
    assert {"message", "type", "param", "code"} <= error.keys()


def test_an_unknown_path_names_the_nearest(server: LiveServer) -> None:
    message = server.get("/v1/chat/completion").json()["error"]["message"]
    assert "did you mean '/v1/chat/completions'" in message


def test_a_fault_of_ours_is_a_plain_500(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.state.served.engine, "stats", lambda: 1 / 0)
    response = server.get("/health")
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"


def test_full_queue_says_when_to_come_back(start: Start) -> None:
    server = start(engine=EngineConfig(max_requests=1, max_waiting=3))
    server.executor.gate.close()
    with ThreadPoolExecutor() as pool:
        accepted = [pool.submit(server.post, PATH, chat("say:a"))]
        server.wait_for(lambda body: body["running"] == 1)
        accepted.append(pool.submit(server.post, PATH, chat("say:a", n=3)))
        server.wait_for(lambda body: body["waiting"] == 3)
        response = server.post(PATH, chat("say:a"))
        assert response.status_code == 429
        assert int(response.headers["retry-after"]) >= 1
        error = response.json()["error"]
        assert (error["type"], error["code"], error["num_waiting"]) == ("rate_limit_error", "overloaded", 3)
        server.executor.gate.open()
        assert [answer.result(DEADLINE_S).status_code for answer in accepted] == [200, 200]
    assert server.post(PATH, chat("say:a")).status_code == 200


def test_a_request_is_queued_whole_or_not_at_all(start: Start) -> None:
    server = start(engine=EngineConfig(max_requests=1, max_waiting=3))
    server.executor.gate.close()
    with ThreadPoolExecutor() as pool:
        accepted = pool.submit(server.post, PATH, chat("say:a", n=2))
        server.wait_for(lambda body: body["running"] + body["waiting"] == 2)
        assert server.post(PATH, chat("say:a", n=3)).status_code == 429
        server.executor.gate.open()
        assert accepted.result(DEADLINE_S).status_code == 200
    body = server.wait_idle()
    assert body["free_pages"] + body["cached_pages"] == body["total_pages"]
    assert "abort" in server.get("/metrics").text
    impossible = server.post(PATH, chat("say:a", n=4))
    assert impossible.status_code == 400
    assert impossible.json()["error"].items() >= {"param": "n", "num_sequences": 4, "max_waiting": 3}.items()


def test_head_answers_as_get_without_a_body(server: LiveServer) -> None:
    for path in ("/health", "/metrics", "/v1/models", "/v1/models/scripted"):
        response = server.http.head(path)
        assert (response.status_code, response.content) == (200, b"")


def test_a_client_that_leaves_while_it_sends_is_no_error_of_ours(
    server: LiveServer, caplog: pytest.LogCaptureFixture
) -> None:
    refusals = 'ridgeline:requests_refused_total{code="client_gone"}'
    with socket.create_connection(("127.0.0.1", server.state.port)) as connection:
        head = (
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n"
        )
        connection.sendall(head + b"{")
    deadline = time.monotonic() + DEADLINE_S
    while refusals not in server.get("/metrics").text:
        assert time.monotonic() < deadline
    assert "Traceback" not in caplog.text
