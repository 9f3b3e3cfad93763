"""Servers that can be measured, whatever they speak: found out by probing a URL, then read as one stream of token
events.

    endpoint = await detect("http://127.0.0.1:11434", model="llama3")
    async with connect(endpoint) as client:
        record = await client.stream(GenerationRequest(prompt="Once", max_tokens=128))

A dialect (`openai_endpoint.py`, `llamacpp_endpoint.py`, `ollama_endpoint.py`) writes the request's body and reads the
answer's lines; HTTP is in `client.py`. `detect` asks only for facts, it generates nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ridgeline.errors import ConfigError

if TYPE_CHECKING:
    from ridgeline.measure.client import Client
    from ridgeline.measure.events import Record

Kind = Literal["openai", "ollama", "llamacpp"]


@dataclass(frozen=True)
class Capabilities:
    """What may be asked of a server without being refused, and what it reports."""

    completions: bool = False  # raw prompts: /v1/completions, or Ollama's raw mode
    ignore_eos: bool = False  # exact output lengths
    seed: bool = True
    continuous_usage: bool = False  # token counts in every chunk
    cache_prompt: bool = False  # `cache_prompt: false` switches the prefix cache off for a request
    keeps_connections: bool = True  # after a streamed answer; else a request gets a connection of its own


@dataclass(frozen=True)
class Endpoint:
    """A server and one of its models. `server` is who answers: ridgeline, vllm, sglang, llama.cpp, ollama, unknown."""

    kind: Kind
    url: str  # without a trailing /v1
    model: str
    server: str = "unknown"
    capabilities: Capabilities = Capabilities()
    context_len: int | None = None  # tokens of prompt and answer; None: not told
    facts: dict[str, Any] = field(default_factory=dict)  # what the server says about the model: its card, /props, show
    rtt_s: float | None = None  # a trivial GET on a warm connection, the best of a few
    api_key: str | None = field(default=None, repr=False)

    @property
    def short_name(self) -> str:
        return short_name(self.model)

    def num_ctx(self, needed: int, loaded: int | None) -> int | None:
        """Ollama's context window for requests of up to `needed` tokens; None for another server. One value for a whole
        run, since another one reloads the model. A larger one that is `loaded` now is kept: what its user runs is what
        is measured."""
        if self.kind != "ollama":
            return None
        return max(min(needed, self.context_len or needed), loaded or 0)

    @property
    def is_local(self) -> bool:
        """Whether it runs on this machine (or claims to, through a tunnel)."""
        host = self.url.partition("://")[2].partition("/")[0]
        host = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        return host in ("localhost", "::1") or host.startswith("127.")


def short_name(model: str) -> str:
    """How to call a model in text: llama.cpp names one by the whole path of its file."""
    return Path(model).name if Path(model).is_absolute() else model


@dataclass(frozen=True)
class GenerationRequest:
    """What to generate from: `prompt` goes raw, without a template; `messages` are a chat. Exactly one of them.

    `ignore_eos` is sent where the server knows it. `num_ctx` is Ollama's context window; None: its default.
    `cache`: False asks for no prefix cache, where the server can be asked.
    """

    prompt: str | None = None
    messages: tuple[dict[str, str], ...] | None = None
    max_tokens: int = 128
    temperature: float = 0.0
    seed: int | None = None
    ignore_eos: bool = True
    cache: bool = False
    num_ctx: int | None = None
    keep_alive: str | None = None  # Ollama: how long the model stays loaded
    prompt_tokens: int | None = None  # wanted; kept in the record
    extra: dict[str, Any] = field(default_factory=dict)  # more fields of the body

    def __post_init__(self) -> None:
        if (self.prompt is None) == (self.messages is None):
            raise ConfigError("a request needs either prompt or messages")


async def detect(
    url: str, *, api_key: str | None = None, model: str | None = None, timeout_s: float = 10.0
) -> Endpoint:
    """Finds out what answers at `url` (http://host:port, host:port, with or without /v1) and which model it has.

    `model` None: the server's only, or first, model. Raises ConfigError: nobody there, no such API (HTML, not JSON),
    no such model (with the list), the key is missing or refused.
    """
    from ridgeline.measure.detect import probe

    return await probe(url, api_key=api_key, model=model, timeout_s=timeout_s)


@asynccontextmanager
async def connect(
    endpoint: Endpoint,
    *,
    timeout_s: float = 600.0,
    count_tokens: Callable[[str], int] | None = None,
    tell: Callable[[str], None] = lambda sentence: None,
) -> AsyncIterator[Client]:
    """A client with a pool of warm connections. `timeout_s`: the longest silence of a server before a request fails.
    `tell` hears what the server refuses and the client does without."""
    from ridgeline.measure.client import Client

    client = Client(endpoint, timeout_s=timeout_s, count_tokens=count_tokens, tell=tell)
    try:
        yield client
    finally:
        await client.close()


async def stream(endpoint: Endpoint, request: GenerationRequest, *, timeout_s: float = 600.0) -> Record:
    """One request on a connection of its own; failures are in `record.error`, never raised."""
    async with connect(endpoint, timeout_s=timeout_s) as client:
        return await client.stream(request)
