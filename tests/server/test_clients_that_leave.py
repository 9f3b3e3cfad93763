"""A client that goes away, or a request that takes too long, leaves nothing behind."""

from __future__ import annotations

import json
import random
import socket
import time
from typing import Any

from ridgeline.config import EngineConfig
from scripted_server import DEADLINE_S, LiveServer, Start, completion, events_of

PATH = "/v1/completions"


def send(server: LiveServer, body: dict[str, Any]) -> socket.socket:
    """Sends a request on a socket of its own, which the caller closes."""
    content = json.dumps(body).encode()
    connection = socket.create_connection(("127.0.0.1", server.state.port), timeout=DEADLINE_S)
    head = (
        f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    connection.sendall(head.encode() + content)
    return connection


def unused_pages(health: dict[str, Any]) -> int:
    return health["free_pages"] + health["cached_pages"]


def wait_until_given_up(server: LiveServer) -> None:
    """Until the server has told the engine to abort all it runs."""
    deadline = time.monotonic() + DEADLINE_S
    while server.state.served.bridge.num_live:
        assert time.monotonic() < deadline
        server.get("/health")


def test_two_hundred_random_disconnects(start: Start) -> None:
    server = start(engine=EngineConfig(max_requests=8))
    chance = random.Random(0)
    pages = unused_pages(server.get("/health").json())
    open_connections: list[socket.socket] = []
    for _ in range(200):
        body = completion("babble" * chance.randint(1, 40), max_tokens=chance.randint(1, 200), n=chance.randint(1, 2))
        connection = send(server, body | {"stream": chance.random() < 0.7})
        open_connections.append(connection)
        if chance.random() < 0.3:
            connection.recv(chance.randint(1, 2000))
        if len(open_connections) > 6:
            open_connections.pop(chance.randrange(len(open_connections))).close()
    for connection in open_connections:
        connection.close()

    bodies = [completion(f"say:{i}", stream=i % 2 == 0) for i in range(8)]
    for body in bodies:
        response = server.post(PATH, body)
        assert response.status_code == 200
        assert ("[DONE]" in response.text) == body["stream"]
    wait_until_given_up(server)
    assert unused_pages(server.wait_idle()) == pages
    assert server.get("/health").status_code == 200


def test_pages_are_free_two_steps_after_a_client_left(start: Start) -> None:
    server = start()
    for stream in (True, False):
        server.executor.gate.allow(5)
        connection = send(server, completion("babble", max_tokens=300, stream=stream))
        server.wait_for(lambda body: unused_pages(body) < body["total_pages"])
        if stream:
            assert b"200 OK" in connection.recv(100)
        connection.close()
        wait_until_given_up(server)
        server.executor.gate.allow(2)
        server.wait_for(lambda body: unused_pages(body) == body["total_pages"])


def test_a_request_that_takes_too_long_is_ended(start: Start) -> None:
    server = start(request_timeout_s=0.3)
    server.executor.gate.close()
    response = server.post(PATH, completion("babble"))
    assert response.status_code == 504
    assert response.headers["x-should-retry"] == "false"
    error = response.json()["error"]
    assert (error["code"], error["limit_s"]) == ("request_timeout", 0.3)
    server.executor.gate.allow(4)
    *chunks, last = events_of(server.post(PATH, completion("babble", max_tokens=300, stream=True)))
    assert last["error"]["code"] == "request_timeout"
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
    server.executor.gate.open()
    assert unused_pages(server.wait_idle()) == 64
