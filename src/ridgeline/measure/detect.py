"""What answers at a URL, and which model: by asking, in an order in which no server is taken for another.

`/v1/models` says by `owned_by` who serves; Ollama (which speaks OpenAI too) and llama.cpp are confirmed by pages that
only they have. What a server can do follows from who it is: an unknown one gets plain OpenAI requests.
"""

from __future__ import annotations

import time
from typing import Any

import aiohttp
import msgspec

from ridgeline.config import nearest
from ridgeline.errors import ConfigError
from ridgeline.measure.endpoints import Capabilities, Endpoint, Kind
from ridgeline.measure.openai_endpoint import error_text

_RTT_TRIES = 3
_CAPABILITIES = {
    "ridgeline": Capabilities(completions=True, ignore_eos=True, continuous_usage=True),
    "vllm": Capabilities(completions=True, ignore_eos=True, continuous_usage=True),
    "sglang": Capabilities(completions=True, ignore_eos=True, continuous_usage=True),
    # Its answers say keep-alive, but it closes after a stream: the next request on that connection would be lost.
    "llama.cpp": Capabilities(completions=True, ignore_eos=True, cache_prompt=True, keeps_connections=False),
    "ollama": Capabilities(completions=True),
    "unknown": Capabilities(),
}
_OWNERS = {"ridgeline": "ridgeline", "vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp"}
_KINDS: dict[str, Kind] = {"llama.cpp": "llamacpp", "ollama": "ollama"}  # the others speak plain OpenAI


class _Site:
    """The pages of one server. A page is JSON, or None where there is none."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self.url = url

    async def page(self, path: str, body: Any = None) -> Any:
        method = "GET" if body is None else "POST"
        try:
            async with self._session.request(method, self.url + path, json=body) as response:
                data, status = await response.read(), response.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise ConfigError(f"{self.url}: {reason}", hint="is the server running there?") from error
        if status in (401, 403):
            raise ConfigError(f"{self.url} answered {status}: {_text(data)}", hint="give its key with --api-key")
        if status == 503:
            raise ConfigError(f"{self.url} answered 503: {_text(data)}", hint="wait until it has loaded its model")
        if status != 200:
            return None
        try:
            return msgspec.json.decode(data)
        except msgspec.DecodeError:
            return None

    async def rtt_s(self, path: str) -> float:
        """The best of a few: on a warm connection, a page that costs the server next to nothing."""
        times = []
        for _ in range(_RTT_TRIES):
            start = time.perf_counter()
            await self.page(path)
            times.append(time.perf_counter() - start)
        return min(times)


async def probe(url: str, *, api_key: str | None, model: str | None, timeout_s: float) -> Endpoint:
    url = normalized(url)
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
        site = _Site(session, url)
        cards = _cards(await site.page("/v1/models"))
        server = await _who(site, cards, model)
        kind = _KINDS.get(server, "openai")
        names = await _ollama_names(site) if kind == "ollama" else list(cards)
        name = _choose(url, names, model)
        facts = await _facts(site, kind, name, cards)
        return Endpoint(
            kind=kind,
            url=url,
            model=name,
            server=server,
            capabilities=_CAPABILITIES[server],
            context_len=_context_len(kind, facts),
            facts=facts,
            rtt_s=await site.rtt_s("/api/version" if kind == "ollama" else "/v1/models"),
            api_key=api_key,
        )


def normalized(url: str) -> str:
    """`host:port` and `http://host:port/v1/` become `http://host:port`. Raises ConfigError."""
    url = url if "://" in url else f"http://{url}"
    scheme, _, rest = url.partition("://")
    if scheme not in ("http", "https") or not rest.strip("/"):
        raise ConfigError(f"{url!r} is no URL of a server", hint="write it as http://127.0.0.1:8000")
    return url.rstrip("/").removesuffix("/v1")


def _cards(models: Any) -> dict[str, dict[str, Any]]:
    """Model id -> its card."""
    data = models.get("data") if isinstance(models, dict) else None
    return {str(card["id"]): card for card in data or () if isinstance(card, dict) and "id" in card}


async def _who(site: _Site, cards: dict[str, dict[str, Any]], model: str | None) -> str:
    """A gateway may list no models: with the name of one, it is taken at its word until its first answer."""
    owners = {str(card.get("owned_by")) for card in cards.values()}
    known = [_OWNERS[owner] for owner in owners if owner in _OWNERS]
    if known:
        return known[0]
    version = await site.page("/api/version")
    if isinstance(version, dict) and "version" in version:
        return "ollama"
    props = await site.page("/props")
    if isinstance(props, dict) and "default_generation_settings" in props:
        return "llama.cpp"
    if not cards and model is None:
        raise ConfigError(
            f"{site.url} answers, but not as a language model server: no JSON at /v1/models, /api/version or /props",
            hint="is it the right port? A server that lists no models needs --model",
        )
    return "unknown"


async def _ollama_names(site: _Site) -> list[str]:
    tags = await site.page("/api/tags")
    return [str(model["name"]) for model in (tags or {}).get("models") or ()]


def _choose(url: str, names: list[str], wanted: str | None) -> str:
    if wanted is None:
        if not names:
            raise ConfigError(f"{url} lists no model", hint="load one there, or name one with --model")
        return names[0]
    if not names or wanted in names:
        return wanted
    if f"{wanted}:latest" in names:  # as Ollama reads it
        return f"{wanted}:latest"
    hint = f"{nearest(wanted, names)}; it has {', '.join(names[:10])}"
    raise ConfigError(f"{url} has no model {wanted!r}", hint=hint)


async def _facts(site: _Site, kind: Kind, name: str, cards: dict[str, dict[str, Any]]) -> dict[str, Any]:
    if kind == "ollama":
        return {"show": await site.page("/api/show", {"model": name}), "version": await site.page("/api/version")}
    facts: dict[str, Any] = {"card": cards.get(name)}
    if kind == "llamacpp":
        facts["props"] = await site.page("/props")
    return facts


def _context_len(kind: Kind, facts: dict[str, Any]) -> int | None:
    """The most tokens that prompt and answer may have. For Ollama, the model's own limit: `num_ctx` is up to us."""
    if kind == "ollama":
        info = (facts["show"] or {}).get("model_info") or {}
        found = next((value for key, value in info.items() if key.endswith(".context_length")), None)
    elif kind == "llamacpp":
        found = ((facts["props"] or {}).get("default_generation_settings") or {}).get("n_ctx")
    else:
        found = (facts["card"] or {}).get("max_model_len")
    return int(found) if found else None


def _text(data: bytes) -> str:
    try:
        return error_text(msgspec.json.decode(data))[:200]
    except msgspec.DecodeError:
        return data.decode(errors="replace")[:200]
