"""A chat partner behind a URL: any OpenAI-compatible server, read as server-sent events.

Sampling fields beyond OpenAI's go out only when they were asked for, and by the names that the server at hand reads:
llama.cpp and Ollama ignore unknown ones without a word.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import httpx

from ridgeline.errors import ConfigError, ExecutionError, RequestError
from ridgeline.measure.concessions import Concession, concession

_EXTENSIONS = ("top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos")  # not of OpenAI's API
_NAMES: dict[str, dict[str, str]] = {  # of the extensions, where they are not our own; any other is ignored there
    "llama.cpp": {
        "top_k": "top_k",
        "min_p": "min_p",
        "repetition_penalty": "repeat_penalty",
        "ignore_eos": "ignore_eos",
    },
    "ollama": {},
}


class RemoteChat:
    """Streams answers of one model of a server. `url` may or may not end in /v1."""

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        tell: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self.base_url = url.rstrip("/").removesuffix("/v1") + "/v1"
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        timeout = httpx.Timeout(10.0, read=None)  # an answer may wait in a queue for as long as it likes
        self._client = httpx.Client(base_url=self.base_url, headers=headers, timeout=timeout)
        self.name = model or self._first_model()
        self._api_key = api_key
        self._tell = tell
        self._concession: Concession | None = None

    def stream(self, messages: Sequence[Mapping[str, str]], params: Mapping[str, Any]) -> Iterator[str]:
        """Pieces of the answer's text; closing the iterator closes the connection, which aborts the request."""
        with contextlib.closing(self.events(messages, params)) as events:
            for event in events:
                for choice in event.get("choices") or []:
                    yield (choice.get("delta") or {}).get("content") or ""

    def events(self, messages: Sequence[Mapping[str, str]], params: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The chunks of the answer as the server sends them."""
        body = {"model": self.name, "messages": list(messages), "stream": True, **params}
        if self._concession is not None:
            body = self._concession.apply(body)
        try:
            with self._client.stream("POST", "chat/completions", json=body) as response:
                if not response.is_error:
                    yield from _events(response.iter_lines())
                    return
                response.read()
            self._concession = concession(body, response.status_code, response.text, optional=())
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if self._concession is None:
            raise _as_error(response)
        self._tell(str(self._concession))
        yield from self.events(messages, params)

    def spelled(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """`params` by the names that this server reads. Raises ConfigError for one that it would ignore."""
        if not any(name in params for name in _EXTENSIONS):
            return dict(params)
        from ridgeline.measure.client import run
        from ridgeline.measure.endpoints import detect

        server = run(detect(self.base_url, api_key=self._api_key, model=self.name)).server
        names = _NAMES.get(server)
        if names is None:
            return dict(params)
        ignored = [name for name in params if name in _EXTENSIONS and name not in names]
        if ignored:
            options = " and ".join(f"--{name.replace('_', '-')}" for name in ignored)
            raise ConfigError(
                f"{server} at {self.base_url} would ignore {', '.join(ignored)}", hint=f"leave out {options}"
            )
        return {names.get(name, name): value for name, value in params.items()}

    def close(self) -> None:
        self._client.close()

    def _first_model(self) -> str:
        try:
            response = self._client.get("models")
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if response.is_error and response.status_code not in (404, 405):  # a gateway may list no models
            raise _as_error(response)
        try:
            return str(response.json()["data"][0]["id"])
        except (ValueError, LookupError, TypeError):
            raise ConfigError(f"{self.base_url} lists no model", hint="name one with --model") from None

    def _unreachable(self, error: httpx.HTTPError) -> ConfigError:
        return ConfigError(f"{self.base_url}: {error or type(error).__name__}", hint="is the server running there?")


def _events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """The answer's chunks. It ends at [DONE], or with its finish reason where a server sends no [DONE]."""
    has_ended = False
    for line in lines:
        if not line.startswith("data:"):
            continue
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            return
        event = _object(data)
        if event.get("error"):
            raise ExecutionError(_message_of(event))
        has_ended = has_ended or any(choice.get("finish_reason") for choice in event.get("choices") or [])
        yield event
    if not has_ended:
        raise ExecutionError("the server closed the stream before its end")


def _object(data: str) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        raise ExecutionError(f"the server sent an event that is no JSON object: {data[:200]}")
    return event


def _as_error(response: httpx.Response) -> RequestError:
    try:
        message = _message_of(response.json())
    except ValueError:
        message = response.text[:200]
    return RequestError(f"the server answered {response.status_code}: {message}", status=response.status_code)


def _message_of(body: Any) -> str:
    error = body.get("error") if isinstance(body, dict) else body
    return str(error.get("message")) if isinstance(error, dict) else str(error)
