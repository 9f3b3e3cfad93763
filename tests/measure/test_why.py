"""`ridgeline why`: finds the server, and answers in words."""

import json

import pytest

from fakes_endpoint import FakeEndpoint
from ridgeline.cli import main
from ridgeline.measure import local_servers
from ridgeline.measure.client import run
from scripted_latency import ScriptedServer, endpoint, patch_command_line

LIMITED = ["--spec", "example-8b", "--hardware", "h100-sxm", "--dtype", "bf16"]


@pytest.fixture
def why(monkeypatch, capsys):
    def call(*arguments, server=None, target=None, **pages):
        patch_command_line(monkeypatch, target or endpoint(), server or ScriptedServer(), **pages)
        status = main(["why", *arguments])
        return status, " ".join(capsys.readouterr().out.split())  # without the line breaks of a terminal

    return call


def test_the_answer_says_what_binds_and_what_to_try(why):
    server = ScriptedServer()
    status, printed = why("http://127.0.0.1:8000", *LIMITED, server=server)
    assert status == 0
    for words in (
        "scripted on vllm (http://127.0.0.1:8000) answers after",
        "Memory bandwidth binds: every token reads 15 GB, and h100-sxm-80gb reads 3,350 GB/s.",
        "the limit of 4.4",
        "TTFT grows by",
        "TPOT grows by",
        "q4 instead of bf16: 17",
    ):
        assert words in printed
    assert all(request.messages for request in server.requests), "as a chat's user sees it"
    assert server.clock < 60, "a minute at most"


def test_two_requests_together_tell_a_queue(why):
    """The scripted server answers one after the other, so the second waits for the first."""
    _, printed = why("http://127.0.0.1:8000")
    assert "answers one request at a time: of two sent together, the second waited" in printed


def test_a_slow_server_is_asked_less(why):
    class Slow(ScriptedServer):
        def _generate(self, record, request):
            super()._generate(record, request)
            for name in ("t_1", "t_last"):
                setattr(record, name, record.t_send + 20 * (getattr(record, name) - record.t_send))

    server = Slow()
    why("http://127.0.0.1:8000", server=server)
    assert server.clock < 90


def test_json_has_the_answer_beside_the_figures(why):
    status, printed = why("http://127.0.0.1:8000", *LIMITED, "--json")
    result = json.loads(printed)
    assert status == 0
    assert result["valid"]
    assert any("Memory bandwidth binds" in paragraph for paragraph in result["answer"])


def test_servers_are_found_at_their_ports_and_others_are_passed_over():
    with FakeEndpoint("ollama") as ollama, FakeEndpoint("openai") as vllm, FakeEndpoint(pages={"/v1/models": 5}) as web:
        ports = tuple(int(server.url.rpartition(":")[2]) for server in (web, ollama, vllm))
        found = run(local_servers.find_servers((1, *ports)))
    assert [server.server for server in found] == ["ollama", "vllm"]


def test_no_server_is_an_error_that_lists_the_ports(monkeypatch, capsys):
    async def nobody(**options):
        return []

    monkeypatch.setattr(local_servers, "find_servers", nobody)
    assert main(["why"]) == 1
    error = capsys.readouterr().err
    assert "11434 (Ollama)" in error
    assert "ridgeline why http://HOST:PORT" in error


def test_without_a_target_the_first_is_measured_and_the_others_are_named(why, monkeypatch):
    async def two(**options):
        return [endpoint(url="http://127.0.0.1:8000"), endpoint(url="http://127.0.0.1:11434")]

    monkeypatch.setattr(local_servers, "find_servers", two)
    status, printed = why()
    assert status == 0
    assert "Another server answers at http://127.0.0.1:11434" in printed
