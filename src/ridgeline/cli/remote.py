"""A chat partner behind a URL: any OpenAI-compatible server, read as server-sent events."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx

from ridgeline.errors import ConfigError, ExecutionError, RequestError


class RemoteChat:
    """Streams answers of one model of a server. `url` may or may not end in /v1."""

    def __init__(self, url: str, *, model: str | None = None, api_key: str | None = None) -> None:
        self.base_url = url.rstrip("/").removesuffix("/v1") + "/v1"
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        timeout = httpx.Timeout(10.0, read=None)  # an answer may wait in a queue for as long as it likes
        self._client = httpx.Client(base_url=self.base_url, headers=headers, timeout=timeout)
        self.name = model or self._first_model()

    def stream(self, messages: Sequence[Mapping[str, str]], params: Mapping[str, Any]) -> Iterator[str]:
        """Pieces of the answer's text; closing the iterator closes the connection, which aborts the request."""
        with contextlib.closing(self.events(messages, params)) as events:
            for event in events:
                for choice in event.get("choices", []):
                    yield choice["delta"].get("content") or ""

    def events(self, messages: Sequence[Mapping[str, str]], params: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The chunks of the answer as the server sends them."""
        body = {"model": self.name, "messages": list(messages), "stream": True, **params}
        try:
            with self._client.stream("POST", "chat/completions", json=body) as response:
                if response.is_error:
                    response.read()
                    raise _as_error(response)
                yield from _events(response.iter_lines())
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def close(self) -> None:
        self._client.close()

    def _first_model(self) -> str:
        try:
            response = self._client.get("models")
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if response.is_error:
            raise _as_error(response)
        models = response.json().get("data") or []
        if not models:
            raise ConfigError(f"{self.base_url} lists no model", hint="name one with --model")
        return str(models[0]["id"])

    def _unreachable(self, error: httpx.HTTPError) -> ConfigError:
        return ConfigError(f"{self.base_url}: {error or type(error).__name__}", hint="is the server running there?")


def _events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if not line.startswith("data:"):
            continue
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            return
        event = json.loads(data)
        if "error" in event:
            raise ExecutionError(_message_of(event))
        yield event
    raise ExecutionError("the server closed the stream before its end")


def _as_error(response: httpx.Response) -> RequestError:
    try:
        message = _message_of(response.json())
    except ValueError:
        message = response.text[:200]
    return RequestError(f"the server answered {response.status_code}: {message}", status=response.status_code)


def _message_of(body: Any) -> str:
    error = body.get("error") if isinstance(body, dict) else body
    return str(error.get("message")) if isinstance(error, dict) else str(error)
