"""Every way in which a stream can end, or lie: what counts as an answer and what as a failure, in each dialect."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from fakes_endpoint import Answer, FakeEndpoint, Piece
from ridgeline.measure.endpoints import GenerationRequest, detect, stream
from ridgeline.measure.events import Record
from ridgeline.measure.metrics import summarize

RAW = GenerationRequest(prompt="Once upon a time", max_tokens=8)


def sse(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def line(**fields: Any) -> bytes:
    return json.dumps(fields).encode() + b"\n"


def text(piece: str, reason: str | None = None) -> bytes:
    return sse(choices=[{"index": 0, "text": piece, "finish_reason": reason}])


DONE = b"data: [DONE]\n\n"
USAGE = sse(choices=[], usage={"prompt_tokens": 4, "completion_tokens": 8})


def recorded(kind: str, *parts: bytes) -> Record:
    """Of a stream that consists of `parts` and nothing else."""

    async def ask() -> Record:
        return await stream(await detect(server.url), RAW)

    answer = Answer([Piece(raw=part) for part in parts], ends=False)
    with FakeEndpoint(kind, [answer]) as server:
        return asyncio.run(ask())


GOOD = {
    "finish and [DONE]": [text("a"), text("", "stop"), DONE],
    "no [DONE]": [text("a"), text("b", "length")],
    "no finish reason": [text("a"), DONE],
    "an empty finish reason with every chunk": [text("a", ""), text("b", ""), DONE],
    "finish twice": [text("a"), text("", "stop"), text("", "length"), DONE],
    "two [DONE]": [text("a", "stop"), DONE, DONE],
    "something after [DONE]": [text("a", "stop"), DONE, b"data: {broken\n\n", sse(error="too late")],
    "an empty data line": [b"data:\n\n", text("a", "stop"), b"data: \n\n", DONE],
    "an error that is none": [sse(error=None, choices=[{"text": "a"}]), sse(error="", choices=[]), DONE],
    "no line end after the last line": [text("a", "stop"), DONE.strip()],
    "carriage returns": [text("a", "stop").replace(b"\n", b"\r\n"), DONE.replace(b"\n", b"\r\n")],
    "a comment's ping": [b": ping\n\n", b"event: ping\n\n", text("a", "stop")],
}
BAD = {
    "cut": ([text("a")], "truncated", "before the answer did"),
    "an empty finish reason, then cut": ([text("a", ""), text("b", "")], "truncated", "before the answer did"),
    "cut with usage": ([text("a"), USAGE], "truncated", "before the answer did"),
    "cut in a line": ([text("a"), b'data: {"choices": [{"te'], "truncated", "in the middle of a line"),
    "nothing at all": ([], "truncated", "before the answer did"),
    "an error": ([text("a"), sse(error={"message": "the GPU is gone"}), DONE], "stream_error", "the GPU is gone"),
    "vLLM's older error": ([text("a"), sse(object="error", message="gone"), DONE], "stream_error", "gone"),
    "an event called error": ([text("a"), b"event: error\n" + sse(message="gone")], "stream_error", "gone"),
    "an error after the finish": ([text("a", "stop"), sse(error="gone")], "stream_error", "gone"),
    "given up": ([text("a"), text("", "abort"), DONE], "stream_error", "abort"),
    "finish reason error": ([text("a"), text("", "error"), DONE], "stream_error", "error"),
    "usage without tokens": ([text("", "length"), USAGE, DONE], "empty", r"\(length\), .*counted 8"),
    "empty choices only": ([sse(choices=[]), sse(choices=None), DONE], "empty", "no token came"),
    "[DONE] only": ([DONE], "empty", "no token came"),
    "a whole JSON error": ([line(error={"message": "no such model"})], "bad_response", "no such model"),
    "a JSON error of many lines": ([b'{\n "detail":\n "not today"\n}\n'], "bad_response", "not today"),
    "a whole answer": ([line(choices=[{"text": "a"}])], "bad_response", "no stream of events"),
    "a sentence": ([b"upstream gone"], "bad_response", "upstream gone"),
}


@pytest.mark.parametrize("kind", ["openai", "llamacpp"])
@pytest.mark.parametrize("parts", GOOD.values(), ids=GOOD)
def test_an_answer_that_ended(kind: str, parts: list[bytes]) -> None:
    record = recorded(kind, *parts)
    assert record.error is None
    assert record.text.startswith("a")
    assert record.finish_reason in (None, "stop", "length")


@pytest.mark.parametrize("kind", ["openai", "llamacpp"])
@pytest.mark.parametrize(("parts", "error", "words"), BAD.values(), ids=BAD)
def test_an_answer_that_failed(kind: str, parts: list[bytes], error: str, words: str) -> None:
    record = recorded(kind, *parts)
    assert record.error is not None
    assert record.error.kind == error
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(record.error.message)


def test_the_first_finish_reason_counts() -> None:
    assert recorded("openai", *GOOD["finish twice"]).finish_reason == "stop"


def test_a_connection_that_breaks_after_the_answer_costs_nothing() -> None:
    """A length that is never reached: the client's library calls that an error."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"POST"):
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
            content, length = streams.pop(0), 10_000
        else:
            content = line(data=[{"id": "m", "owned_by": "vllm"}])
            length = len(content)
        kind = b"text/event-stream" if length == 10_000 else b"application/json"
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: %s\r\n" % kind)
        writer.write(b"Content-Length: %d\r\n\r\n%s" % (length, content))
        await writer.drain()
        writer.close()

    async def ask() -> list[Record]:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            endpoint = await detect(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            return [await stream(endpoint, RAW) for _ in range(2)]

    streams = [text("a", "stop") + DONE, text("a")]
    whole, cut = asyncio.run(ask())
    assert whole.error is None
    assert cut.error is not None
    assert cut.error.kind == "connection"


def test_a_connection_that_stays_open_after_the_answer() -> None:
    async def ask() -> Record:
        return await stream(await detect(server.url), RAW, timeout_s=0.2)

    answer = Answer([Piece(raw=text("a", "stop")), Piece(raw=DONE)], stalls=True)
    with FakeEndpoint(answers=[answer]) as server:
        record = asyncio.run(ask())
    assert (record.error, record.text) == (None, "a")


def test_a_usage_of_nothing_beside_tokens_is_not_believed() -> None:
    zero = sse(choices=[], usage={"prompt_tokens": 4, "completion_tokens": 0})
    record = recorded("openai", text("a"), text("b", "stop"), zero, DONE)
    assert (record.n_out, record.token_source, record.prompt_tokens) == (2, "chunks", 4)


def test_strange_figures_do_no_harm() -> None:
    timings = {"predicted_n": "many", "predicted_ms": None, "prompt_ms": [], "cache_n": True, "prompt_n": 3}
    for kind in ("openai", "llamacpp"):
        record = recorded(kind, text("a", "stop"), sse(timings=timings), sse(usage={"completion_tokens": -1}), DONE)
        assert (record.error, record.n_out, record.token_source) == (None, 1, "chunks")
        assert summarize([record.server_decode_s] if record.server_decode_s else [])["count"] == 0


OLLAMA_END = line(done=True, done_reason="stop", eval_count=1)


@pytest.mark.parametrize(
    "parts",
    [
        [line(response="a"), OLLAMA_END],
        [line(response="a", done=True)],
        [line(response="a", done_reason="", error=None), OLLAMA_END, OLLAMA_END],
        [line(response="a"), OLLAMA_END.strip()],
        [line(response="a"), OLLAMA_END, line(error="too late")],
    ],
    ids=["done", "no reason", "done twice", "no line end", "an error after the end"],
)
def test_an_answer_of_ollama_that_ended(parts: list[bytes]) -> None:
    record = recorded("ollama", *parts)
    assert (record.error, record.text, record.n_out) == (None, "a", 1)


@pytest.mark.parametrize(
    ("parts", "error", "words"),
    [
        ([line(response="a")], "truncated", "before the answer did"),
        ([line(response="a", done=False, done_reason="stop")], "truncated", "before the answer did"),
        ([line(response="a"), b'{"resp'], "truncated", "in the middle of a line"),
        ([line(response="a"), line(error="out of memory"), OLLAMA_END], "stream_error", "out of memory"),
        ([line(error="model not found")], "stream_error", "model not found"),
        ([line(done=True, done_reason="length", eval_count=8)], "empty", "counted 8"),
        ([line(done=True, done_reason="load")], "empty", "(load)"),
        ([line(detail="not here")], "truncated", "before the answer did"),
        ([b"data: [DONE]\n\n"], "bad_response", "JSON"),
    ],
)
def test_an_answer_of_ollama_that_failed(parts: list[bytes], error: str, words: str) -> None:
    record = recorded("ollama", *parts)
    assert record.error is not None
    assert record.error.kind == error
    assert words in record.error.message
