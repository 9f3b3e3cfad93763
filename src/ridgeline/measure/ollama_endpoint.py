"""Ollama's own dialect: /api/generate (raw, without a template) and /api/chat, newline-delimited JSON.

Native, because its OpenAI side hides what a measurement needs: nanosecond counters, the time to load the model, and
`num_ctx`, past which a prompt is truncated without a word. `prompt_eval_count` includes cached tokens; how many those
are, only newer servers tell (`prompt_eval_cached_count`). There is no way to ignore the end token.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from ridgeline.measure.endpoints import Endpoint, GenerationRequest
from ridgeline.measure.events import Channel, Failure, Recorder


class _Function(Struct):
    name: str = ""
    arguments: Any = None


class _ToolCall(Struct):
    function: _Function


class _Message(Struct):
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Line(Struct):
    """Durations in nanoseconds."""

    response: str | None = None
    thinking: str | None = None
    message: _Message | None = None
    done: bool = False
    done_reason: str | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    prompt_eval_cached_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None
    total_duration: int | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Line).decode
_COUNTERS = (
    "total_duration",
    "load_duration",
    "prompt_eval_count",
    "prompt_eval_cached_count",
    "prompt_eval_duration",
    "eval_count",
    "eval_duration",
)


def path(request: GenerationRequest) -> str:
    return "/api/chat" if request.messages is not None else "/api/generate"


def body(endpoint: Endpoint, request: GenerationRequest) -> dict[str, Any]:
    options: dict[str, Any] = {"num_predict": request.max_tokens, "temperature": request.temperature}
    if request.seed is not None:
        options["seed"] = request.seed
    if request.num_ctx is not None:
        options["num_ctx"] = request.num_ctx
    fields: dict[str, Any] = {"model": endpoint.model, "stream": True, "options": options}
    if request.messages is not None:
        fields["messages"] = list(request.messages)
    else:
        fields |= {"prompt": request.prompt, "raw": True}
    if request.keep_alive is not None:
        fields["keep_alive"] = request.keep_alive
    return fields | request.extra


class OllamaReader:
    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.ended = False

    def line(self, time: float, line: bytes) -> Failure | None:
        if not line.strip() or self.ended:
            return None
        chunk = _decode(line)
        if chunk.error:
            return Failure("stream_error", str(chunk.error))
        self.recorder.chunk(time, _parts(chunk))
        if chunk.done:
            self.ended = True
            self._counters(chunk)
        return None

    def cut(self) -> Failure:
        return Failure("truncated", "the stream ended before the answer did")

    def _counters(self, last: _Line) -> None:
        record = self.recorder.record
        record.finish_reason = last.done_reason
        record.server = {name: value for name in _COUNTERS if (value := getattr(last, name)) is not None}
        if last.eval_count is not None:
            self.recorder.usage(last.eval_count, "native")
        record.prompt_tokens = last.prompt_eval_count
        record.cached_tokens = last.prompt_eval_cached_count
        record.load_s = _seconds(last.load_duration)
        record.server_prefill_s = _seconds(last.prompt_eval_duration)
        record.server_decode_s = _seconds(last.eval_duration)


def _parts(line: _Line) -> list[tuple[Channel, str]]:
    message = line.message or _Message()
    parts: list[tuple[Channel, str]] = [
        ("reasoning", line.thinking or message.thinking or ""),
        ("content", line.response or message.content or ""),
    ]
    for call in message.tool_calls or ():
        parts.append(("tool", call.function.name + msgspec.json.encode(call.function.arguments).decode()))
    return parts


def _seconds(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1e9
