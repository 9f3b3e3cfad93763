"""Between a socket and a handler: request ids, bodies and their limits, and clients that go away.

A client that hangs up must cost nothing from then on. ASGI tells of it by a message on `receive`, so whatever works
for a client runs beside a watcher of that channel and is cancelled when the message comes.
"""

from __future__ import annotations

import asyncio
import json
import re
import uuid
import zlib
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ridgeline.errors import RequestError, shown
from ridgeline.server.errors import error_response

_T = TypeVar("_T")

MAX_DEPTH = 100  # of lists and objects in a body
REQUEST_ID = re.compile(r"[!-~]{1,512}")  # visible ASCII, as long as OpenAI takes
CLIENT_CLOSED_REQUEST = 499  # nginx's status for an answer that nobody waits for any more


class ClientGone(Exception):
    """The client hung up before its answer was complete."""


def client_gone() -> RequestError:
    """For the log of refusals: there is nobody to read it."""
    return RequestError(
        "the client left before its body was complete", code="client_gone", status=CLIENT_CLOSED_REQUEST
    )


class RequestId:
    """ASGI middleware: gives each request an id of our own in `scope["state"]`, which no other request has, and answers
    with the header `x-request-id`: the client's, if it sent one, so that both sides' logs meet, else ours."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        shown_id = Headers(scope=scope).get("x-request-id", request_id)
        is_usable = REQUEST_ID.fullmatch(shown_id) is not None

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = shown_id if is_usable else request_id
            await send(message)

        app = self._app if is_usable else error_response(_bad_request_id(shown_id))
        await app(scope, receive, send_with_id)


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The whole body, unpacked if it is declared as gzip; 415 unless it is declared as JSON, 413 beyond `max_bytes`,
    which holds for what comes over the wire and for what it unpacks to."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        hint = "send the header 'Content-Type: application/json'"
        raise RequestError(
            f"the body's content type is {kind or 'not given'!r}", code="unsupported_media_type", status=415, hint=hint
        )
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip"):
        hint = "send it as gzip or as it is"
        problem = f"the body's content encoding is {shown(encoding)}"
        raise RequestError(problem, code="unsupported_content_encoding", status=415, hint=hint)
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(int(declared), max_bytes)
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > max_bytes:
                raise _too_large(len(body), max_bytes)
    except ClientDisconnect:
        raise client_gone() from None
    return await asyncio.to_thread(gunzip, body, max_bytes) if encoding == "gzip" else bytes(body)


def gunzip(packed: bytes | bytearray, max_bytes: int) -> bytes:
    """What `packed` holds, never more than a byte beyond `max_bytes`: a few kB can unpack to gigabytes."""
    body, rest = bytearray(), bytes(packed)
    while rest:  # a gzip file may have several members
        unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)  # 16: gzip's header and checksum
        try:
            body += unpacker.decompress(rest, max_bytes + 1 - len(body))
        except zlib.error as error:
            raise _bad_gzip(str(error)) from None
        if len(body) > max_bytes:
            raise _too_large(len(body), max_bytes)
        if not unpacker.eof:
            raise _bad_gzip("it ends too early")
        rest = unpacker.unused_data
    return bytes(body)


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`.

    Deeper than any request has to be, it is refused: what walks through it later may recurse. Python's parser lets NaN
    and Infinity through on purpose: the check of the field refuses them by the field's name.
    """
    try:
        value = json.loads(body)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise RequestError(f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise RequestError(f"the body must be a JSON object, not {type(value).__name__}", code="invalid_json")
    if _is_deeper_than(MAX_DEPTH, value):
        raise _too_deep()
    return value


def _too_deep() -> RequestError:
    return RequestError(f"the body's JSON is nested more than {MAX_DEPTH} levels deep", code="invalid_json")


def _is_deeper_than(limit: int, value: Any) -> bool:
    """Looks level by level, so it needs no stack."""
    level = [value]
    for _ in range(limit):
        level = [
            child
            for item in level
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


async def unless_client_leaves(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T:
    """Runs `work` after the request's body was read. Cancels it and raises ClientGone when the client hangs up."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_hangs_up(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        watcher.cancel()
        task.cancel()
        await asyncio.gather(watcher, task, return_exceptions=True)


async def _hangs_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _bad_gzip(problem: str) -> RequestError:
    return RequestError(f"the body is declared as gzip and is none: {problem}", code="invalid_gzip")


def _bad_request_id(given: str) -> RequestError:
    problem = f"the header X-Request-Id is {shown(given)}, of {len(given)} characters"
    hint = "send 1 to 512 visible ASCII characters, or leave it out"
    return RequestError(problem, code="invalid_request_id", param="x-request-id", hint=hint)


def _too_large(num_bytes: int, max_bytes: int) -> RequestError:
    return RequestError(
        f"the body has at least {num_bytes:,} bytes, this server takes {max_bytes:,}",
        code="body_too_large",
        status=413,
        hint="send less, or raise --max-body",
        body_bytes=num_bytes,
        max_body_bytes=max_bytes,
    )
