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
    """Lists one model and answers a chat by `server.events`, or by a 400 when there are none, or when a field is in
    `server.refused`, which holds what it says of it."""

    def do_GET(self):
        if self.path in self.server.pages:
            self._reply(200, "application/json", json.dumps(self.server.pages[self.path]))
        else:
            self._reply(404, "text/html", "<html>not here</html>")

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append((self.path, self.headers["Authorization"], json.loads(body)))
        refused = [words for name, words in self.server.refused.items() if name in json.loads(body)]
        if refused:
            self._reply(400, "application/json", json.dumps({"error": {"message": refused[0]}}))
        elif self.server.events:
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
        server.asked, server.events, server.refused = [], [], {}
        server.pages = {"/v1/models": {"data": [{"id": "m"}]}}
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


GOOD = [chunk("Hello"), "[DONE]"]


def test_a_server_that_takes_max_completion_tokens_alone(server, monkeypatch, capsys):
    server.events, server.refused = GOOD, {"max_tokens": "Use 'max_completion_tokens' instead."}
    monkeypatch.setattr("sys.stdin", io.StringIO("hi\nho\n"))
    assert main(["chat", f"http://127.0.0.1:{server.server_port}", "--max-tokens", "5"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "Hello\nHello\n"
    assert shown.err.count("note: the server refuses max_tokens: sent as max_completion_tokens") == 1
    bodies = [body for _, _, body in server.asked]
    assert [body.get("max_completion_tokens") for body in bodies] == [None, 5, 5]
    assert all("max_tokens" not in body for body in bodies[1:])


def test_what_a_person_asked_for_is_never_left_out(server, monkeypatch, capsys):
    server.events, server.refused = GOOD, {"temperature": "Unsupported value: 'temperature'"}
    assert chat_with(server, monkeypatch, "--temperature", "0") == 1
    assert "Unsupported value: 'temperature'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("owner", "sent"),
    [
        ("llamacpp", {"repeat_penalty": 1.2, "top_k": 5}),
        ("vllm", {"repetition_penalty": 1.2, "top_k": 5}),
    ],
)
def test_sampling_beyond_openais_goes_by_the_servers_own_names(server, monkeypatch, owner, sent):
    server.events, server.pages = GOOD, {"/v1/models": {"data": [{"id": "m", "owned_by": owner}]}}
    assert chat_with(server, monkeypatch, "--repetition-penalty", "1.2", "--top-k", "5") == 0
    ((_, _, body),) = server.asked
    assert {name: body[name] for name in body.keys() - {"model", "messages", "stream"}} == sent


@pytest.mark.parametrize(
    ("pages", "flags", "words"),
    [
        ({"/v1/models": {"data": [{"id": "m", "owned_by": "llamacpp"}]}}, ["--min-tokens", "3"], "--min-tokens"),
        (
            {"/v1/models": {"data": [{"id": "m"}]}, "/api/version": {"version": "0.20.0"}},
            ["--model", "m", "--top-k", "3"],
            "--top-k",
        ),
    ],
    ids=["llama.cpp", "ollama"],
)
def test_sampling_that_a_server_would_ignore_is_refused(server, monkeypatch, capsys, pages, flags, words):
    server.events, server.pages = GOOD, pages
    assert chat_with(server, monkeypatch, *flags) == 1
    error = capsys.readouterr().err
    assert "would ignore" in error
    assert f"leave out {words}" in error
    assert "/v1/chat/completions" not in [path for path, _, _ in server.asked]


def test_a_server_that_lists_no_models(server, monkeypatch, capsys):
    server.events, server.pages = GOOD, {}
    assert chat_with(server, monkeypatch) == 1
    assert "--model" in capsys.readouterr().err
    assert chat_with(server, monkeypatch, "--model", "x") == 0
    assert server.asked[0][2]["model"] == "x"


@pytest.mark.parametrize(
    ("events", "status"),
    [
        ([chunk("Hello"), json.dumps({"choices": [{"delta": None, "finish_reason": "stop"}]})], 0),
        (
            [
                json.dumps({"error": None, "choices": [{"delta": {"content": "Hello"}}]}),
                json.dumps({"choices": None}),
                "[DONE]",
            ],
            0,
        ),
        ([json.dumps({"choices": [{"delta": {"content": "Hel"}, "finish_reason": ""}]})], 1),
        (["{broken"], 1),
        (["[1]"], 1),
    ],
    ids=["no [DONE]", "nulls", "an empty finish reason", "no JSON", "no object"],
)
def test_ways_to_end(server, monkeypatch, capsys, events, status):
    server.events = events
    assert chat_with(server, monkeypatch) == status
    shown = capsys.readouterr()
    assert (shown.out == "Hello\n") == (status == 0)
    assert "Traceback" not in shown.err


def test_nobody_there(monkeypatch, capsys, server):
    server.server_close()
    assert chat_with(server, monkeypatch) == 1
    assert "is the server running there?" in capsys.readouterr().err
