"""The OpenAI dialect: chat and completions, streamed as server-sent events.

Reads what vLLM, SGLang, Ridgeline and hosted services send: reasoning as `reasoning` or `reasoning_content`, usage in a
chunk of its own or in every chunk, errors as an event in the middle of the stream. An answer has ended when a choice
has a finish reason that is not empty, or at `[DONE]`, after which nothing counts. Ridgeline's last chunk carries
`timings`, the server's own account of where the time went.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from ridgeline.measure.endpoints import Endpoint, GenerationRequest
from ridgeline.measure.events import Channel, Failure, Recorder


class _Function(Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(Struct):
    function: _Function | None = None


class _Delta(Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(Struct):
    delta: _Delta | None = None  # chat
    text: str | None = None  # completions
    finish_reason: str | None = None


class _PromptDetails(Struct):
    cached_tokens: int | None = None


class _OutputDetails(Struct):
    reasoning_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _OutputDetails | None = None


class _Chunk(Struct):
    object: str | None = None  # "error": vLLM's older shape, whose `message` stands on its own
    message: Any = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    timings: dict[str, Any] | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode
_BROKEN_OFF = ("error", "abort")  # finish reasons of an answer that the server gave up
_QUOTED = 200  # characters of a strange answer that are worth showing
_LONGEST_REFUSAL = 10_000  # bytes of it that are kept


def path(request: GenerationRequest) -> str:
    return "/v1/chat/completions" if request.messages is not None else "/v1/completions"


def body(endpoint: Endpoint, request: GenerationRequest) -> dict[str, Any]:
    """Only fields that the server is known to take: strict servers refuse what they do not know."""
    can = endpoint.capabilities
    options: dict[str, Any] = {"include_usage": True}
    if can.continuous_usage:
        options["continuous_usage_stats"] = True
    fields: dict[str, Any] = {
        "model": endpoint.model,
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "stream": True,
        "stream_options": options,
    }
    if request.messages is not None:
        fields["messages"] = list(request.messages)
    else:
        fields["prompt"] = request.prompt
    if request.ignore_eos and can.ignore_eos:
        fields["ignore_eos"] = True
    if request.seed is not None and can.seed:
        fields["seed"] = request.seed
    if not request.cache and can.cache_prompt:
        fields["cache_prompt"] = False
    return fields | request.extra


class OpenAIReader:
    """Reads one stream, line by line. `ended`: the server said that it was done."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.ended = False
        self._is_done = False  # [DONE] came
        self._is_error = False  # the event under way is called an error
        self._strange = b""  # what came that is no event

    def line(self, time: float, line: bytes) -> Failure | None:
        """A failure that the server reports, if the line holds one. Raises msgspec.DecodeError for what is no JSON."""
        if line.startswith(b"error:"):  # llama.cpp before 2025
            return Failure("stream_error", line[6:].decode(errors="replace").strip())
        if not line.startswith(b"data:"):
            self._note(line)
            return None
        data = line[5:].strip()
        if not data or self._is_done:
            return None
        if data == b"[DONE]":
            self.ended = self._is_done = True
            return None
        if self._is_error:
            return Failure("stream_error", _error_in(data))
        chunk = _decode(data)
        if chunk.error or chunk.object == "error":
            return Failure("stream_error", error_text(chunk.error or chunk.message))
        return self._take(time, chunk)

    def _note(self, line: bytes) -> None:
        """A line without data: a comment, an event's name, the end of an event, or no event stream at all."""
        if line.startswith(b"event:"):
            self._is_error = line[6:].strip() == b"error"
        elif not line.strip():
            self._is_error = False
        elif not line.startswith((b":", b"id:", b"retry:")):
            self._strange += line[: _LONGEST_REFUSAL - len(self._strange)]

    def cut(self) -> Failure:
        if not self._strange.strip() or self.recorder.record.events:
            return Failure("truncated", "the stream ended before the answer did")
        return Failure("bad_response", f"no stream of events came, but: {_error_in(self._strange)[:_QUOTED]}")

    def timings(self, timings: dict[str, Any]) -> None:
        """Ridgeline's."""
        record = self.recorder.record
        record.server = timings
        record.server_queue_s = number(timings.get("queue_s"))
        record.server_prefill_s = number(timings.get("prefill_s"))
        record.server_decode_s = number(timings.get("decode_s"))

    def _take(self, time: float, chunk: _Chunk) -> Failure | None:
        total = None
        if chunk.usage is not None:
            total = chunk.usage.completion_tokens
            self._usage(chunk.usage)
        for choice in chunk.choices or ():
            if choice.finish_reason in _BROKEN_OFF:
                return Failure("stream_error", f"the server gave the answer up: {choice.finish_reason}")
            if choice.finish_reason and not self.ended:  # some send an empty one with every chunk
                self.recorder.record.finish_reason = choice.finish_reason
                self.ended = True
            parts: list[tuple[Channel, str]] = [("content", choice.text)] if choice.text else _parts(choice.delta)
            self.recorder.chunk(time, parts, total)
        if chunk.timings is not None:
            self.timings(chunk.timings)
        return None

    def _usage(self, usage: _Usage) -> None:
        record = self.recorder.record
        if usage.completion_tokens is not None:
            self.recorder.usage(usage.completion_tokens, "usage")
        if usage.prompt_tokens is not None:
            record.prompt_tokens = usage.prompt_tokens
        if usage.prompt_tokens_details is not None and usage.prompt_tokens_details.cached_tokens is not None:
            record.cached_tokens = usage.prompt_tokens_details.cached_tokens
        if usage.completion_tokens_details is not None:
            record.reasoning_tokens = usage.completion_tokens_details.reasoning_tokens


def _parts(delta: _Delta | None) -> list[tuple[Channel, str]]:
    if delta is None:
        return []
    parts: list[tuple[Channel, str]] = []
    if reasoning := delta.reasoning or delta.reasoning_content:
        parts.append(("reasoning", reasoning))
    if delta.content:
        parts.append(("content", delta.content))
    for call in delta.tool_calls or ():
        if call.function is not None:
            parts.append(("tool", (call.function.name or "") + (call.function.arguments or "")))
    return parts


def number(value: Any) -> float | None:
    """A figure of a server's own account, if it is one."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _error_in(data: bytes) -> str:
    try:
        return error_text(msgspec.json.decode(data))
    except msgspec.DecodeError:
        return data.decode(errors="replace").strip()


def error_text(error: Any) -> str:
    """The message of an error in any of the usual shapes: {"error": {"message"}}, {"error": text}, {"detail"}, text."""
    if isinstance(error, dict):
        for key in ("error", "message", "detail"):
            if error.get(key):
                return error_text(error[key])
    return str(error)
