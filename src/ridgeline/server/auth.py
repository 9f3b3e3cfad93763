"""API keys: `Authorization: Bearer KEY`.

`/health` stays open, because load balancers ask without a key; everything else needs one when the server has any.
Each request is compared with every key in constant time, so neither a key's prefix nor its place in the list can be
learned from how long a refusal takes.
"""

from __future__ import annotations

import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ridgeline.errors import RequestError
from ridgeline.server.errors import error_response

OPEN_PATHS = frozenset({"/health"})


class BearerAuth:
    """ASGI middleware that answers 401 to a request without a known key."""

    def __init__(self, app: ASGIApp, api_keys: tuple[str, ...]) -> None:
        self._app = app
        self._keys = [key.encode() for key in api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("authorization")
        if self._is_known(given):
            await self._app(scope, receive, send)
            return
        problem = "no API key was sent" if given is None else "the API key is not one of this server's"
        hint = "send the header 'Authorization: Bearer KEY'"
        await error_response(RequestError(problem, code="invalid_api_key", status=401, hint=hint))(scope, receive, send)

    def _is_known(self, header: str | None) -> bool:
        scheme, _, key = (header or "").partition(" ")
        if scheme.lower() != "bearer":
            return False
        matches = [hmac.compare_digest(key.strip().encode(), known) for known in self._keys]
        return any(matches)
