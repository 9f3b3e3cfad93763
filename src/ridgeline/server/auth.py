"""API keys: `Authorization: Bearer KEY`.

`/health` stays open, because load balancers ask without a key; everything else needs one when the server has any.
Each request is compared with every key in constant time, so neither a key's prefix nor its place in the list can be
learned from how long a refusal takes. With several keys, each has a part of the prefix cache to itself.

`/cache/...` shows and drops what all clients have cached: it always needs the admin key. Where a request comes from
proves nothing: a default nginx in front, an SSH tunnel, a published container port and a web page that rebinds its DNS
name all look like a program on this machine.
"""

from __future__ import annotations

import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ridgeline.errors import RequestError
from ridgeline.server.cache import key_salt
from ridgeline.server.errors import error_response

OPEN_PATHS = frozenset({"/health"})
ADMIN_PREFIX = "/cache/"
METRICS_PATH = "/metrics"


class BearerAuth:
    """ASGI middleware that answers 401 or 403 to a request without the right key."""

    def __init__(self, app: ASGIApp, api_keys: tuple[str, ...], admin_key: str | None) -> None:
        self._app = app
        self._api_keys = api_keys
        self._admin_key = admin_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            try:
                self._check(scope)
            except RequestError as error:
                await error_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        """Raises the refusal. Notes the salt of a known key in `scope["state"]`."""
        if scope["path"].startswith(ADMIN_PREFIX):
            self._check_admin(scope)
        elif self._api_keys:
            key = _require_key(scope, self._api_keys)
            if len(self._api_keys) > 1:
                scope.setdefault("state", {})["cache_salt"] = key_salt(key)

    def _check_admin(self, scope: Scope) -> None:
        if self._admin_key is not None:
            _require_key(scope, (self._admin_key,))
        else:
            problem = f"{scope['path']} needs an admin key, and this server has none"
            hint = "start it with --admin-key KEY and send the header 'Authorization: Bearer KEY'"
            raise RequestError(problem, code="no_admin_key", status=403, hint=hint)


def _require_key(scope: Scope, keys: tuple[str, ...]) -> str:
    """The one of `keys` that was sent."""
    header = Headers(scope=scope).get("authorization")
    scheme, _, given = (header or "").partition(" ")
    matches = [key for key in keys if hmac.compare_digest(given.strip().encode(), key.encode())]
    if not matches or scheme.lower() != "bearer":
        problem = "no API key was sent" if header is None else "the API key is not one of this server's"
        hint = "send the header 'Authorization: Bearer KEY'"
        if scope["path"] == METRICS_PATH:
            hint += "; in a job of Prometheus: authorization: {credentials: KEY}"
        raise RequestError(problem, code="invalid_api_key", status=401, hint=hint)
    return matches[0]
