"""Every failure in OpenAI's shape: `{"error": {"message", "type", "param", "code", ...numbers}}`.

One function maps an exception to a status and a body; the handlers below make Starlette's own refusals (unknown path,
wrong method, a bug of ours) go through it too, so a client meets one shape only. The numbers behind a message stand
beside it under stable keys, because agents act on them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ridgeline.config import nearest
from ridgeline.errors import OverloadedError, RequestError, RidgelineError
from ridgeline.server.elsewhere import hint_for

_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
_HTTP_CODES = {404: "path_not_found", 405: "method_not_allowed"}


def shutting_down() -> RequestError:
    return RequestError("this server is shutting down", code="shutting_down", status=503, hint="send it to another one")


def timed_out(limit_s: float) -> RequestError:
    return RequestError(
        f"the request was not finished within {limit_s:g} s, this server's limit",
        code="request_timeout",
        status=504,
        hint="ask for fewer tokens, stream, or raise --request-timeout",
        limit_s=limit_s,
    )


def status_of(error: RidgelineError) -> int:
    if isinstance(error, RequestError):
        return error.status
    return 429 if isinstance(error, OverloadedError) else 500


def error_body(error: RidgelineError) -> dict[str, Any]:
    """The JSON body of `error`, for a response or for an event in the middle of a stream."""
    status = status_of(error)
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    numbers = {key: value for key, value in error.details.items() if value is not None}
    param = error.param if isinstance(error, RequestError) else None
    return {
        "error": {
            **numbers,
            "message": _sendable(str(error)),
            "type": kind,
            "param": None if param is None else _sendable(param),
            "code": error.code,
        },
    }


def error_response(error: RidgelineError) -> Response:
    headers = {}
    if isinstance(error, OverloadedError):
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    if error.code == "request_timeout":
        headers["x-should-retry"] = "false"  # the OpenAI clients would send the same too long request again
    if status_of(error) == 401:
        headers["www-authenticate"] = "Bearer"
    return json_response(error_body(error), status=status_of(error), headers=headers)


def json_response(body: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, dict(headers or {}), "application/json")


def renamed(error: RequestError, names: Mapping[str, str]) -> RequestError:
    """`error` with `param` spelled as the API spells it: the engine says `prompt` where a chat says `messages`."""
    if error.param is not None:
        error.param = names.get(error.param, error.param)
    return error


def install(app: Starlette) -> None:
    """Registers the handlers."""

    async def on_ridgeline(request: Request, error: Exception) -> Response:
        assert isinstance(error, RidgelineError)
        app.state.server.metrics.count_refusal(error.code)
        return error_response(error)

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message, hint = f"{request.method} {request.url.path}: {str(error.detail).lower()}", None
        if error.status_code == 404:
            served = [path for path in _paths(app) if "{" not in path]
            hint = hint_for(request.url.path, served) or nearest(request.url.path, served)
        code = _HTTP_CODES.get(error.status_code, "http_error")
        response = error_response(RequestError(message, code=code, status=error.status_code, hint=hint))
        response.headers.update(error.headers or {})
        return response

    async def on_bug(request: Request, error: Exception) -> Response:
        return error_response(RidgelineError("internal error; the server's log has the traceback"))

    app.add_exception_handler(RidgelineError, on_ridgeline)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(Exception, on_bug)


def _paths(app: Starlette) -> list[str]:
    return [route.path for route in app.routes if isinstance(route, Route)]


def _sendable(text: str) -> str:
    """`text` with half surrogate pairs spelled out: JSON can bring them, as in a field's name, and UTF-8 cannot."""
    return text.encode("utf-8", "backslashreplace").decode()
