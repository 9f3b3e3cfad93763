"""Language model servers on this machine: asked at the ports that they use unless told otherwise."""

from __future__ import annotations

import asyncio
import os
import re

from ridgeline.errors import RidgelineError
from ridgeline.measure.endpoints import Endpoint, detect

OLLAMA_PORT = 11434
_PORTS = {
    8000: "Ridgeline, vLLM",
    OLLAMA_PORT: "Ollama",
    8080: "llama.cpp",
    30000: "SGLang",
    1234: "LM Studio",
    5000: "text-generation-webui",
    8001: "a second server",
}
_TIMEOUT_S = 3.0


def ollama_url() -> str:
    """OLLAMA_HOST as a client reads it (0.0.0.0 is where a server listens, not where it is asked), else its port."""
    host = os.environ.get("OLLAMA_HOST", "").strip().rstrip("/")
    if not host:
        return f"http://127.0.0.1:{OLLAMA_PORT}"
    scheme, separator, rest = host.rpartition("://")
    rest = rest.replace("0.0.0.0", "127.0.0.1")
    if not re.search(r":\d+$", rest):
        rest += f":{OLLAMA_PORT}"
    return f"{scheme or 'http'}{separator or '://'}{rest}"


def ports_in_words() -> str:
    return ", ".join(f"{port} ({name})" for port, name in _PORTS.items())


async def find_servers(ports: tuple[int, ...] = tuple(_PORTS), *, api_key: str | None = None) -> list[Endpoint]:
    """All that answer, in the order of `ports`."""
    found = await asyncio.gather(*(_ask(port, api_key) for port in ports))
    return [endpoint for endpoint in found if endpoint is not None]


async def _ask(port: int, api_key: str | None) -> Endpoint | None:
    try:
        return await detect(f"http://127.0.0.1:{port}", api_key=api_key, timeout_s=_TIMEOUT_S)
    except RidgelineError:  # nobody there, or something else than a language model
        return None
