"""A server whose times are a formula: TTFT and TPOT of every request are known to the last digit.

ttft = 0.01 + 0.001 per computed prompt token + 1e-7 per token squared
tpot = 0.02 + 1e-6 per token of context
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from ridgeline.measure.endpoints import Capabilities, Endpoint, GenerationRequest
from ridgeline.measure.events import Failure, Record, TokenEvent

TEMPLATE_TOKENS = 12  # of a chat, around the texts; the first 3 are its header
HEADER_TOKENS = 3


def ttft_s(computed: int) -> float:
    return 0.01 + 0.001 * computed + 1e-7 * computed**2


def tpot_s(context: float) -> float:
    return 0.02 + 1e-6 * context


def endpoint(kind: Any = "openai", **changes: Any) -> Endpoint:
    fields: dict[str, Any] = {
        "url": "http://127.0.0.1:8000",
        "model": "scripted",
        "server": "vllm",
        "capabilities": Capabilities(completions=True, ignore_eos=True),
        "context_len": 32_768,
    }
    return Endpoint(kind=kind, **(fields | changes))


class ScriptedServer:
    """`send` answers without any wait. A token is a word; what lies beyond `truncates_at` is cut without a word.

    `cached`: prompt tokens found in a cache, None: not told. `failures`: request number -> what goes wrong. `counts`:
    prompt tokens are told.
    """

    def __init__(
        self,
        *,
        cached: int | None = 0,
        failures: dict[int, Failure] | None = None,
        truncates_at: int | None = None,
        load_s: dict[int, float] | None = None,
        reasoning_share: float = 0.0,
        token_source: Any = "usage",
        counts: bool = True,
    ) -> None:
        self.requests: list[GenerationRequest] = []
        self.clock = 0.0
        self._cached, self._failures, self._truncates_at = cached, failures or {}, truncates_at
        self._counts = counts
        self._load_s, self._reasoning_share, self._source = load_s or {}, reasoning_share, token_source

    async def send(self, request: GenerationRequest) -> Record:
        number = len(self.requests)
        self.requests.append(request)
        start = self.clock
        record = Record(t_sched=start, t_send=start, wanted_output_tokens=request.max_tokens)
        record.error = self._failures.get(number)
        record.load_s = self._load_s.get(number)
        if record.error is None:
            self._generate(record, request)
        self.clock = record.t_end = record.t_last or start
        return record

    def _generate(self, record: Record, request: GenerationRequest) -> None:
        prompt = count_tokens(request)
        prompt = min(prompt, self._truncates_at or prompt)
        n = request.max_tokens
        step = tpot_s(prompt + n / 2)
        record.prompt_tokens, record.cached_tokens = prompt if self._counts else None, self._cached
        record.t_1 = record.t_send + ttft_s(prompt - (self._cached or 0))
        record.t_last = record.t_1 + (n - 1) * step
        record.n_out, record.token_source = n, self._source
        num_reasoning = round(self._reasoning_share * n)
        record.events = [
            TokenEvent(record.t_1 + i * step, "reasoning" if i < num_reasoning else "content", 1) for i in range(n)
        ]
        record.server_prefill_s = record.t_1 - record.t_send - 0.001
        record.server_decode_s = (n - 1) * step


def count_tokens(request: GenerationRequest) -> int:
    if request.messages is None:
        return len((request.prompt or "").split())
    return TEMPLATE_TOKENS + sum(len(message["content"].split()) for message in request.messages)


class ScriptedClient:
    """In the place of `measure.client.Client`. `pages`: path -> what /api/ps and the like answer."""

    def __init__(self, target: Endpoint, server: ScriptedServer, pages: dict[str, Any]) -> None:
        self.endpoint = target
        self.stream = server.send
        self.clock = lambda: server.clock
        self._pages = pages

    async def get(self, path: str) -> Any:
        return self._pages.get(path)


def patch_command_line(monkeypatch: Any, target: Endpoint, server: ScriptedServer, **pages: Any) -> None:
    """`measure` and `why` find `target`, whatever URL they are given, and talk to `server`."""

    path = {"ps": "/api/ps", "slots": "/slots"}

    async def detect(url: str, *, model: str | None = None, **options: Any) -> Endpoint:
        return replace(target, model=model or target.model)

    @asynccontextmanager
    async def connect(endpoint: Endpoint, **options: Any) -> AsyncIterator[ScriptedClient]:
        yield ScriptedClient(endpoint, server, {path[name]: page for name, page in pages.items()})

    monkeypatch.setattr("ridgeline.cli.measure_run.detect", detect)
    monkeypatch.setattr("ridgeline.cli.measure_run.connect", connect)
