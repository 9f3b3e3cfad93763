"""`ridgeline chat`: the conversation's rules with a scripted partner, then a real model and a real connection."""

import io
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from quick import QUICK
from ridgeline import SamplingParams
from ridgeline.cli import main
from ridgeline.cli.chat import Conversation
from ridgeline.errors import RequestError


class ScriptedPartner:
    """Answers with the pieces of `script`, one list per turn; an exception among them is raised in its place."""

    name = "scripted"

    def __init__(self, *script):
        self.script = list(script)
        self.heard = []
        self.num_open = 0

    def answer(self, messages):
        self.heard.append([(m["role"], m["content"]) for m in messages])
        self.num_open += 1
        try:
            for piece in self.script.pop(0):
                if not isinstance(piece, str):
                    raise piece
                yield piece
        finally:
            self.num_open -= 1

    def close(self):
        pass


def converse(monkeypatch, partner, *lines, on_terminal=False, system=None):
    typed = iter(lines)

    def read_line(prompt):
        try:
            line = next(typed)
        except StopIteration:
            raise EOFError from None
        if not isinstance(line, str):
            raise line
        return line

    monkeypatch.setattr("builtins.input", read_line)
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    conversation = Conversation(partner, system, on_terminal=on_terminal)
    conversation.run()
    assert partner.num_open == 0
    return conversation


def test_each_line_of_a_pipe_is_a_turn_and_the_history_grows(monkeypatch, capsys):
    partner = ScriptedPartner(["Hel", "lo"], ["Fine"])
    converse(monkeypatch, partner, "hi", "", "how are you")
    assert capsys.readouterr().out == "Hello\nFine\n"
    assert partner.heard[1] == [("user", "hi"), ("assistant", "Hello"), ("user", "how are you")]


def test_commands(monkeypatch, capsys):
    partner = ScriptedPartner(["a"], ["b"], ["c"])
    converse(monkeypatch, partner, "one", "/clear", "two", "/system Be brief.", "three", "/what", "/exit", "four")
    assert partner.heard == [
        [("user", "one")],
        [("user", "two")],
        [("system", "Be brief."), ("user", "two"), ("assistant", "b"), ("user", "three")],
    ]
    assert "/exit" in capsys.readouterr().err


def test_ctrl_c_stops_the_answer_and_keeps_what_came(monkeypatch, capsys):
    partner = ScriptedPartner(["Par", KeyboardInterrupt()], ["next"])
    converse(monkeypatch, partner, "one", "two", on_terminal=True)
    assert capsys.readouterr().out == "Par\nnext\n\n"
    assert partner.heard[1] == [("user", "one"), ("assistant", "Par"), ("user", "two")]


def test_ctrl_c_at_the_prompt_does_not_leave(monkeypatch):
    partner = ScriptedPartner(["a"])
    converse(monkeypatch, partner, KeyboardInterrupt(), "one", on_terminal=True)
    assert len(partner.heard) == 1


def test_a_failed_turn_leaves_no_trace(monkeypatch, capsys):
    partner = ScriptedPartner([RequestError("too long")], ["fine"])
    converse(monkeypatch, partner, "one", "two", on_terminal=True)
    assert "error: too long" in capsys.readouterr().err
    assert partner.heard[1] == [("user", "two")]


def test_in_a_pipe_a_failed_turn_ends_the_program(monkeypatch):
    with pytest.raises(RequestError):
        converse(monkeypatch, ScriptedPartner([RequestError("too long")]), "one")


def test_with_a_model(tiny_model, llm, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("the quick\n"))
    flags = ["--temperature", "0", "--max-tokens", "5", "--ignore-eos", "--system", "run", *QUICK]
    assert main(["chat", tiny_model, *flags]) == 0
    ids = llm.render([{"role": "system", "content": "run"}, {"role": "user", "content": "the quick"}])
    [expected] = llm.generate(ids, SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))
    assert capsys.readouterr().out == expected.text + "\n"


class FakeServer(BaseHTTPRequestHandler):
    """Lists one model and answers a chat by `server.events`, or by a 400 when there are none."""

    def do_GET(self):
        self._reply(200, "application/json", json.dumps({"data": [{"id": "m"}]}))

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append((self.path, self.headers["Authorization"], json.loads(body)))
        if self.server.events:
            self._reply(200, "text/event-stream", "".join(f"data: {event}\n\n" for event in self.server.events))
        else:
            self._reply(400, "application/json", json.dumps({"error": {"message": "no such thing"}}))

    def _reply(self, status, kind, text):
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), FakeServer) as server:
        server.asked, server.events = [], []
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def chat_with(server, monkeypatch, *flags, path="/v1"):
    monkeypatch.setattr("sys.stdin", io.StringIO("hi\n"))
    return main(["chat", f"http://127.0.0.1:{server.server_port}{path}", *flags])


def chunk(text):
    return json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]})


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/"])
def test_with_a_url(server, monkeypatch, capsys, path):
    server.events = [chunk("Žlu"), chunk("ťoučký"), json.dumps({"choices": [], "usage": {}}), "[DONE]"]
    assert chat_with(server, monkeypatch, "--temperature", "0", "--stop", "END", "--api-key", "key", path=path) == 0
    assert capsys.readouterr().out == "Žluťoučký\n"
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    assert server.asked == [("/v1/chat/completions", "Bearer key", {**body, "temperature": 0, "stop": ["END"]})]


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([], "the server answered 400: no such thing"),
        ([chunk("Hel"), json.dumps({"error": {"message": "shutting down"}})], "shutting down"),
        ([chunk("Hel")], "closed the stream before its end"),
    ],
)
def test_what_the_server_says_about_failures_is_shown(server, monkeypatch, capsys, events, words):
    server.events = events
    assert chat_with(server, monkeypatch) == 1
    assert words in capsys.readouterr().err


def test_nobody_there(monkeypatch, capsys, server):
    server.server_close()
    assert chat_with(server, monkeypatch) == 1
    assert "is the server running there?" in capsys.readouterr().err
