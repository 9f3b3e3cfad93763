"""A server that answers as it is told: real HTTP in the dialects of OpenAI, Ollama and llama.cpp, no model.

What it answers is an `Answer`: pieces of text, each at a time of a clock that stands still until the client has read
what was sent. So a test knows every timestamp exactly, however slow the machine is:

    clock = SteppedClock()
    with FakeEndpoint("openai", [Answer([Piece("a", at=1.0), Piece("b", at=1.5)])], clock=clock) as fake:
        ...  # a client with clock=clock sees t_1 = 1.0 and t_last = 1.5

Without a clock it answers at once.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from aiohttp import web

DEADLINE_S = 30.0
OVERHEAD_TOKENS = 10  # of the template, beside a token a word


class SteppedClock:
    """Goes on only when told. Each look at it is counted, so that a server knows that its client has read."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self._looks = 0
        self._changed = threading.Condition()

    def __call__(self) -> float:
        with self._changed:
            self._looks += 1
            self._changed.notify_all()
            return self.now

    def looks(self) -> int:
        with self._changed:
            return self._looks

    def wait_for_look(self, after: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._looks > after, DEADLINE_S), "nobody read"


@dataclass(frozen=True)
class Piece:
    """A chunk. `total`: output tokens so far, as continuous usage tells them. `raw` goes out as it is."""

    text: str = ""
    at: float | None = None
    channel: str = "content"  # content | reasoning | tool
    total: int | None = None
    raw: bytes | None = None


@dataclass(frozen=True)
class Answer:
    """`output_tokens` None: no usage at all. `counters`: fields of Ollama's last line, or of `timings`."""

    pieces: Sequence[Piece] = ()
    output_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = 0
    status: int = 200
    error: Any = None  # the body of a failure; with status 200, an error in the middle of the stream
    counters: dict[str, Any] = field(default_factory=dict)
    ends: bool = True  # False: the stream breaks off
    stalls: bool = False  # after its pieces it stays silent until the server is closed
    html: bool = False


def words(num_tokens: int, **fields: Any) -> Answer:
    """One token a chunk, at once."""
    return Answer([Piece(f"w{i} ") for i in range(num_tokens)], output_tokens=num_tokens, **fields)


def as_asked(body: dict[str, Any]) -> Answer:
    """As many tokens as the request allows; a prompt token per word."""
    limit = body.get("max_tokens") or body.get("options", {}).get("num_predict")
    prompt = body.get("prompt") or " ".join(message["content"] for message in body["messages"])
    return words(limit, prompt_tokens=len(prompt.split()) + OVERHEAD_TOKENS)


class FakeEndpoint:
    """`answers`: taken in turn, the last one again and again; or a function of the request's body. `bodies` holds what
    was asked."""

    def __init__(
        self,
        kind: str = "openai",
        answers: Sequence[Answer] | Callable[[dict[str, Any]], Answer] = as_asked,
        *,
        clock: SteppedClock | None = None,
        owner: str = "vllm",
        model: str = "fake",
        context_len: int | None = 32_768,
        api_key: str | None = None,
        pages: dict[str, Any] | None = None,
    ) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.client_ports: list[int] = []  # one per body: equal ones came on the same connection
        self.url = ""
        self._kind, self._answers, self._clock = kind, answers, clock
        self._api_key = api_key
        self._pages = self._facts(owner, model, context_len) | (pages or {})
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._closing = asyncio.Event()

    def __enter__(self) -> FakeEndpoint:
        self._thread.start()
        self._call(self._start())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(DEADLINE_S)

    async def _start(self) -> None:
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _stop(self) -> None:
        self._closing.set()
        await self._runner.cleanup()

    def _facts(self, owner: str, model: str, context_len: int | None) -> dict[str, Any]:
        """Path -> what is there to know."""
        if self._kind == "ollama":
            info = {} if context_len is None else {"llama.context_length": context_len}
            return {
                "/api/version": {"version": "0.20.0"},
                "/api/tags": {"models": [{"name": f"{model}:latest", "model": f"{model}:latest"}]},
                "/api/show": {"model_info": info},
            }
        card = {"id": model, "object": "model", "owned_by": "llamacpp" if self._kind == "llamacpp" else owner}
        if self._kind == "llamacpp":
            settings = {"default_generation_settings": {"n_ctx": context_len}, "total_slots": 1}
            return {"/v1/models": {"object": "list", "data": [card]}, "/props": settings}
        return {"/v1/models": {"object": "list", "data": [card | {"max_model_len": context_len}]}}

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if self._api_key and request.headers.get("Authorization") != f"Bearer {self._api_key}":
            return web.json_response({"error": {"message": "no such key"}}, status=401)
        if request.path in self._pages:
            return web.json_response(self._pages[request.path])
        if request.path not in ("/v1/completions", "/v1/chat/completions", "/api/generate", "/api/chat"):
            return web.Response(text="<html>not here</html>", content_type="text/html", status=404)
        body = await request.json()
        self.bodies.append(body)
        self.client_ports.append(request.transport.get_extra_info("peername")[1] if request.transport else 0)
        return await self._answer(request, self._next(body), body)

    def _next(self, body: dict[str, Any]) -> Answer:
        if callable(self._answers):
            return self._answers(body)
        return self._answers[min(len(self.bodies), len(self._answers)) - 1]

    async def _answer(self, request: web.Request, answer: Answer, body: dict[str, Any]) -> web.StreamResponse:
        if answer.status != 200:
            return web.json_response(answer.error, status=answer.status)
        if answer.html:
            return web.Response(text="<html>a login page</html>", content_type="text/html")
        kind = "application/x-ndjson" if self._kind == "ollama" else "text/event-stream"
        response = web.StreamResponse(headers={"Content-Type": kind})
        await response.prepare(request)
        for at, data in render(self._kind, answer, chat="messages" in body):
            await self._send(response, at, data)
        if answer.stalls:
            await self._closing.wait()
        return response

    async def _send(self, response: web.StreamResponse, at: float | None, data: bytes) -> None:
        if self._clock is None:
            await response.write(data)
            return
        if at is not None:
            self._clock.now = at
        looks = self._clock.looks()
        await response.write(data)
        await asyncio.to_thread(self._clock.wait_for_look, looks)


def render(kind: str, answer: Answer, *, chat: bool) -> Iterator[tuple[float | None, bytes]]:
    """(time, bytes) of each write."""
    if kind == "ollama":
        yield from _ollama_lines(answer, chat)
        return
    for piece in answer.pieces:
        yield piece.at, piece.raw if piece.raw is not None else _sse(_openai_chunk(piece, chat))
    if answer.error is not None:
        yield None, _sse({"error": answer.error})
    elif answer.ends and not answer.stalls:
        yield None, _openai_end(answer, chat)


def _ollama_lines(answer: Answer, chat: bool) -> Iterator[tuple[float | None, bytes]]:
    for piece in answer.pieces:
        if piece.raw is not None:
            yield piece.at, piece.raw
            continue
        text = {"thinking" if piece.channel == "reasoning" else "content" if chat else "response": piece.text}
        yield piece.at, _line({"message": {"role": "assistant", **text}} if chat else text)
    if answer.error is not None:
        yield None, _line({"error": answer.error})
    elif answer.ends and not answer.stalls:
        counts = {"eval_count": answer.output_tokens, "prompt_eval_count": answer.prompt_tokens}
        counts["prompt_eval_cached_count"] = answer.cached_tokens
        known = {name: value for name, value in counts.items() if value is not None}
        yield None, _line({"done": True, "done_reason": "length", **known, **answer.counters})


def _openai_chunk(piece: Piece, chat: bool) -> dict[str, Any]:
    if not chat:
        choice: dict[str, Any] = {"index": 0, "text": piece.text, "finish_reason": None}
    elif piece.channel == "tool":
        call = {"index": 0, "function": {"arguments": piece.text}}
        choice = {"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}
    else:
        name = "reasoning_content" if piece.channel == "reasoning" else "content"
        choice = {"index": 0, "delta": {name: piece.text}, "finish_reason": None}
    usage = {} if piece.total is None else {"usage": {"prompt_tokens": 1, "completion_tokens": piece.total}}
    return {"object": "chunk", "choices": [choice], **usage}


def _openai_end(answer: Answer, chat: bool) -> bytes:
    """Finish reason, usage in a chunk of its own, [DONE]."""
    choice = {"index": 0, "finish_reason": "length", **({"delta": {}} if chat else {"text": ""})}
    timings = {"timings": answer.counters} if answer.counters else {}
    data = _sse({"choices": [choice], **timings})
    if answer.output_tokens is not None:
        usage: dict[str, Any] = {"completion_tokens": answer.output_tokens, "prompt_tokens": answer.prompt_tokens}
        if answer.cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": answer.cached_tokens}
        data += _sse({"choices": [], "usage": usage})
    return data + b"data: [DONE]\n\n"


def _sse(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def _line(value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"
