"""Paths that clients of other servers ask for, and what to ask here instead: the hints of a 404."""

from __future__ import annotations

import re

_CHAT = "/v1/chat/completions"
_COMPLETIONS = "/v1/completions"
_OLLAMA = "this server speaks OpenAI's API, not Ollama's"
_LLAMA_CPP = "that is llama.cpp's own API"
_ANTHROPIC = "this server speaks OpenAI's API, not Anthropic's"
_TOKENS = "/tokenize counts tokens"
_NO_EMBEDDINGS = "this server generates text; it has no embeddings and ranks nothing"
_TEXT_ONLY = "this server reads and writes text only"
_STATELESS = "this server keeps no files, batches or conversations: send each request whole to"

_HINTS = {
    "/v1/responses": f"the Responses API is not served; use {_CHAT} (in the openai package, client.chat.completions)",
    "/v1/messages": f"{_ANTHROPIC}: use {_CHAT}",
    "/v1/messages/count_tokens": f"{_ANTHROPIC}: {_TOKENS}",
    "/v1/complete": f"{_ANTHROPIC}: use {_COMPLETIONS}",
    "/api/chat": f"{_OLLAMA}: use {_CHAT}",
    "/api/generate": f"{_OLLAMA}: use {_COMPLETIONS}",
    "/api/tags": f"{_OLLAMA}: /v1/models lists the models",
    "/api/ps": f"{_OLLAMA}: /v1/models lists the models",
    "/api/show": f"{_OLLAMA}: /v1/models describes the models",
    "/api/version": f"{_OLLAMA}: /health tells how it is doing",
    "/api/pull": f"{_OLLAMA}: a server has the model that it was started with",
    "/completion": f"{_LLAMA_CPP}: use {_COMPLETIONS}",
    "/apply-template": f"{_LLAMA_CPP}: /tokenize takes messages",
    "/props": f"{_LLAMA_CPP}: /v1/models tells the context's length, /tokenizer_info the chat template",
    "/slots": f"{_LLAMA_CPP}: /health tells what runs and waits",
    "/infill": f"{_LLAMA_CPP}: put the text into a prompt to {_COMPLETIONS} in the model's own fill-in format",
    "/generate": f"use {_CHAT} or {_COMPLETIONS}",
    "/generate_stream": f"use {_CHAT} or {_COMPLETIONS} with stream: true",
    "/invocations": f"use {_CHAT} or {_COMPLETIONS}",
    "/version": "/health tells how it is doing",
    "/ping": "/health tells how it is doing",
    "/healthz": "/health tells how it is doing",
    "/v1/health": "/health tells how it is doing",
    "/": f"the API is under /v1: {_CHAT}, {_COMPLETIONS}, /v1/models; /health tells how it is doing",
}
_HINTS_BELOW = {  # for all paths that begin so
    "/v1/v1": "one /v1 is enough: leave it out of the path or of the client's base URL",
    "/v1/responses": _HINTS["/v1/responses"],
    "/v1/embeddings": _NO_EMBEDDINGS,
    "/embedding": _NO_EMBEDDINGS,
    "/api/embed": _NO_EMBEDDINGS,
    "/v1/rerank": _NO_EMBEDDINGS,
    "/rerank": _NO_EMBEDDINGS,
    "/v1/moderations": _NO_EMBEDDINGS,
    "/v1/audio": _TEXT_ONLY,
    "/v1/images": _TEXT_ONLY,
    "/v1/realtime": f"{_TEXT_ONLY}, over plain HTTP: use {_CHAT}",
    "/v1/assistants": f"{_STATELESS} {_CHAT}",
    "/v1/threads": f"{_STATELESS} {_CHAT}",
    "/v1/conversations": f"{_STATELESS} {_CHAT}",
    "/v1/files": f"{_STATELESS} {_CHAT}",
    "/v1/batches": f"{_STATELESS} {_CHAT}, or use `ridgeline generate --batch-file`",
    "/api/": f"{_OLLAMA}: see /v1/models, {_CHAT} and {_COMPLETIONS}",
}


def hint_for(path: str, served: list[str]) -> str | None:
    """What to ask instead of `path`, if it is known: as another server's, or as one of `served` without /v1, with a
    slash too many, or with both."""
    plain = re.sub("/+", "/", path).rstrip("/") or "/"
    if plain in _HINTS:
        return _HINTS[plain]
    for candidate in (plain, f"/v1{plain}"):
        if candidate != path and candidate in served:
            return f"use {candidate}"
    return next((hint for start, hint in _HINTS_BELOW.items() if plain.startswith(start)), None)
