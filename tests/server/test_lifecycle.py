"""From a port that may be taken to the last event of a stream that a shutdown cut off."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ridgeline.config import EngineConfig, ServerConfig
from ridgeline.errors import CheckpointError, ConfigError
from ridgeline.server.run import listen, serve
from ridgeline.server.state import ServerState
from scripted_server import DEADLINE_S, LiveServer, ScriptedExecutor, Start, chat, completion, parts


def refuse_to_load() -> None:
    raise CheckpointError("model.safetensors ends in the middle of model.norm.weight")


def test_while_loading_only_health_answers(start: Start) -> None:
    loaded = threading.Event()
    server = start(load=lambda: loaded.wait(DEADLINE_S), wait=False)
    response = server.get("/health")
    assert (response.status_code, response.json()) == (503, {"status": "loading"})
    for response in (server.post("/v1/chat/completions", chat("say:a")), server.get("/v1/models")):
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "model_loading"
    assert server.get("/metrics").status_code == 200
    loaded.set()
    server.wait_for(lambda body: body["status"] == "ok")
    assert server.post("/v1/chat/completions", chat("say:a")).status_code == 200


def test_what_stops_the_load_stops_the_server() -> None:
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight"):
        serve(ServerConfig(port=0), refuse_to_load, on_ready=lambda state: pytest.fail("it is not ready"))


def test_a_failed_load_shows_while_the_server_ends(start: Start) -> None:
    server = start(load=refuse_to_load, wait=False)  # nobody ends this one when the load fails
    body = server.wait_for(lambda body: body["status"] == "failed")
    assert "model.norm.weight" in body["reason"]
    assert server.post("/v1/completions", completion("a")).json()["error"]["code"] == "model_load_failed"


def test_serves_until_a_signal() -> None:
    ready: list[tuple[str, int]] = []

    def end_soon(state: ServerState) -> None:
        ready.append((state.runtime.name, state.port))
        os.kill(os.getpid(), signal.SIGTERM)

    assert serve(ServerConfig(port=0), lambda: parts(ScriptedExecutor(), EngineConfig()), on_ready=end_soon) == 0
    ((name, port),) = ready
    assert name == "scripted"
    assert port > 0


def test_a_busy_port_is_told_before_anything_loads() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is in use") as caught:
            serve(ServerConfig(port=port), refuse_to_load, on_ready=lambda state: None)
        assert f"--port {port + 1}" in str(caught.value)


def test_an_address_of_another_machine_is_told() -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on 203\.0\.113\.1 port 0"):
        listen("203.0.113.1", 0)  # an address that documentation uses


def test_health_turns_red_when_no_step_advances(start: Start) -> None:
    server = start(engine=EngineConfig(stuck_after_s=0.05))
    server.executor.gate.close()
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(server.post, "/v1/completions", completion("say:a"))
        server.wait_for(lambda body: body["status"] == "stuck")
        assert server.get("/health").status_code == 503
        server.executor.gate.open()
        assert answer.result(DEADLINE_S).json()["choices"][0]["text"] == "a"
    assert server.get("/health").status_code == 200


def test_no_new_requests_during_a_shutdown(start: Start) -> None:
    server = start()
    server.state.is_shutting_down = True
    response = server.post("/v1/chat/completions", chat("say:a"))
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "shutting_down"
    assert server.get("/health").json() == {"status": "shutting_down"}


def wait_until_closed(server: LiveServer) -> None:
    """Until the server takes no connections any more."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", server.state.port), timeout=DEADLINE_S).close()
        except ConnectionError:
            return
    raise AssertionError(f"the server still takes connections after {DEADLINE_S} s")


def test_running_streams_finish_at_a_shutdown(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    server = start()
    server.executor.gate.allow(3)
    body = completion("babble", max_tokens=50, stream=True)
    with server.http.stream("POST", "/v1/completions", json=body) as stream:
        lines = (line for line in stream.iter_lines() if line)
        first = next(lines)
        server.server.handle_exit(signal.SIGTERM, None)
        assert "shutting down: 1 requests have up to" in capsys.readouterr().err
        wait_until_closed(server)
        server.executor.gate.open()
        *chunks, last, done = [first, *lines]
    assert done == "data: [DONE]"
    assert json.loads(last[6:])["choices"][0]["finish_reason"] == "length"
    assert sum(len(json.loads(chunk[6:])["choices"][0]["text"]) for chunk in [*chunks, last]) == 50
    server.thread.join(DEADLINE_S)
    assert not server.thread.is_alive()


@pytest.mark.parametrize("stream", [True, False])
def test_what_does_not_finish_in_time_is_told_so(start: Start, stream: bool) -> None:
    server = start(shutdown_timeout_s=0.2)
    server.executor.gate.allow(3)
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(server.post, "/v1/completions", completion("babble", max_tokens=50, stream=stream))
        server.wait_for(lambda body: body["running"] == 1)
        server.server.handle_exit(signal.SIGTERM, None)
        response = answer.result(DEADLINE_S)
    server.executor.gate.open()
    assert response.status_code == (200 if stream else 503)
    last = json.loads(response.text.strip().split("\n\n")[-1].removeprefix("data: "))
    assert last["error"]["code"] == "shutting_down"


def test_the_second_signal_ends_the_process_at_once(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start()
    statuses: list[int] = []
    monkeypatch.setattr(os, "_exit", statuses.append)
    server.server.handle_exit(signal.SIGINT, None)
    assert statuses == []
    server.server.handle_exit(signal.SIGINT, None)
    assert statuses == [130]
