"""The application: routes, middleware, and the model's loading and unloading around them.

The model loads on its own thread while `/health` already answers 503, so that whoever starts the server can watch it.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ridgeline.engine.loop import Engine
from ridgeline.errors import RequestError
from ridgeline.model.runtime import ModelRuntime
from ridgeline.server import errors
from ridgeline.server.admin import cache_tree, flush_cache
from ridgeline.server.auth import METRICS_PATH, BearerAuth
from ridgeline.server.bridge import Bridge
from ridgeline.server.cache import EXPLAIN_HEADER
from ridgeline.server.contention import tell_contention
from ridgeline.server.errors import json_response, renamed
from ridgeline.server.jobs import Envelope, Job, Prepare, prepare_chat, prepare_completion
from ridgeline.server.replies import EventStream, whole_reply
from ridgeline.server.state import Served, ServerState
from ridgeline.server.tokens import detokenize, tokenize, tokenizer_info
from ridgeline.server.transport import CLIENT_CLOSED_REQUEST, ClientGone, RequestId, read_body, unless_client_leaves

SWITCH_INTERVAL_S = 2e-4  # the engine's thread and the loop's hand the GIL over sooner than Python's 5 ms


def create_app(state: ServerState) -> Starlette:
    """The server as an ASGI application. Its lifespan loads the model by `state.load` and shuts the engine down."""
    routes = [*_generation_routes(state), *_information_routes(state), *_cache_routes(state)]
    app = Starlette(routes=routes, lifespan=_lifespan)
    app.router.redirect_slashes = False
    app.state.server = state
    errors.install(app)
    app.add_middleware(BearerAuth, api_keys=state.config.api_keys, admin_key=state.config.admin_key)
    if state.config.cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(state.config.cors_origins), allow_methods=["*"], allow_headers=["*"]
        )
    app.add_middleware(RequestId)  # the last one added is the outermost
    return app


def _generation_routes(state: ServerState) -> list[Route]:
    async def generate(request: Request, prepare: Prepare) -> Response:
        arrived_at = time.monotonic()
        state.require()
        body = await read_body(request, state.config.max_body_bytes)
        envelope = Envelope(
            request.state.request_id,
            arrived_at,
            body,
            salt=getattr(request.state, "cache_salt", ""),
            explain_cache=request.headers.get(EXPLAIN_HEADER, "").lower() in ("1", "true"),
        )
        job = await asyncio.to_thread(prepare, state, envelope)
        return await _answer(request, job)

    async def chat_completions(request: Request) -> Response:
        return await generate(request, prepare_chat)

    async def completions(request: Request) -> Response:
        return await generate(request, prepare_completion)

    async def off_loop(request: Request, work: Callable[[ServerState, bytes], dict[str, Any]]) -> Response:
        state.require()
        body = await read_body(request, state.config.max_body_bytes)
        return json_response(await asyncio.to_thread(work, state, body))

    async def post_tokenize(request: Request) -> Response:
        return await off_loop(request, tokenize)

    async def post_detokenize(request: Request) -> Response:
        return await off_loop(request, detokenize)

    return [
        Route("/v1/chat/completions", chat_completions, methods=["POST"]),
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/tokenize", post_tokenize, methods=["POST"]),
        Route("/detokenize", post_detokenize, methods=["POST"]),
    ]


async def _answer(request: Request, job: Job) -> Response:
    try:
        generation = job.served.bridge.submit(job.work)
    except RequestError as error:
        raise renamed(error, job.api_names) from None
    if job.stream:
        return EventStream(job, generation)
    try:
        return await unless_client_leaves(request.receive, whole_reply(job, generation))
    except ClientGone:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    finally:
        generation.close()


def _information_routes(state: ServerState) -> list[Route]:
    async def models(request: Request) -> Response:
        served = state.require()
        return json_response({"object": "list", "data": [_model_card(state, served, name) for name in served.names]})

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        return json_response(_model_card(state, state.require_model(name), name))

    async def get_tokenizer_info(request: Request) -> Response:
        return json_response(tokenizer_info(state))

    async def health(request: Request) -> Response:
        status, body = _health(state)
        return json_response(body, status=status)

    async def metrics(request: Request) -> Response:
        return Response(state.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)

    return [
        Route("/v1/models", models),
        Route("/v1/models/{name:path}", model),
        Route("/tokenizer_info", get_tokenizer_info),
        Route("/health", health),
        Route(METRICS_PATH, metrics),
    ]


def _cache_routes(state: ServerState) -> list[Route]:
    """Both ask the engine's thread, and wait for its step."""

    async def get_cache_tree(request: Request) -> Response:
        return json_response(await asyncio.to_thread(cache_tree, state.require()))

    async def post_cache_flush(request: Request) -> Response:
        return json_response(await asyncio.to_thread(flush_cache, state.require()))

    return [Route("/cache/tree", get_cache_tree), Route("/cache/flush", post_cache_flush, methods=["POST"])]


def _model_card(state: ServerState, served: Served, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": state.started_at,
        "owned_by": "ridgeline",
        "root": served.runtime.name,
        "max_model_len": served.runtime.context_len,
        "dtype": served.runtime.dtype,
        "kv_dtype": served.runtime.kv_dtype,
    }


def _health(state: ServerState) -> tuple[int, dict[str, Any]]:
    """200 when a request would be served; else 503 and the reason."""
    if state.is_shutting_down:
        return 503, {"status": "shutting_down"}
    if state.load_error is not None:
        return 503, {"status": "failed", "reason": str(state.load_error)}
    if state.served is None:
        return 503, {"status": "loading"}
    stats = state.served.engine.stats()
    figures = {
        "model": state.served.names[0],
        "running": stats.num_running,
        "waiting": stats.num_waiting,
        "free_pages": stats.num_pages_free,
        "cached_pages": stats.num_pages_cached,
        "total_pages": stats.num_pages,
    }
    if state.served.engine.is_stuck():
        return 503, {"status": "stuck", "reason": "work waits and no step advances", **figures}
    return 200, {"status": "ok", **figures}


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    state: ServerState = app.state.server
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    _start_loading(state)
    contention = asyncio.create_task(tell_contention())
    yield
    contention.cancel()
    state.is_shutting_down = True
    if state.served is not None:
        await asyncio.to_thread(state.served.engine.shutdown, 0.0)
        state.served.runtime.close()


def _start_loading(state: ServerState) -> None:
    """Loads on a daemon thread: a signal during a long load must end the process, not wait for the load."""
    loop = asyncio.get_running_loop()

    def report(loaded: tuple[ModelRuntime, Engine] | BaseException) -> None:
        if isinstance(loaded, BaseException):
            state.load_error = loaded
        else:
            _put_in_service(state, *loaded)
        state.on_loaded(state)

    def load() -> None:
        try:
            loaded: tuple[ModelRuntime, Engine] | BaseException = state.load()
        except BaseException as error:  # whatever it is, the thread that serves has to know
            loaded = error
        state.is_loading = False
        loop.call_soon_threadsafe(report, loaded)

    state.is_loading = True
    threading.Thread(target=load, name="load-model", daemon=True).start()


def _put_in_service(state: ServerState, runtime: ModelRuntime, engine: Engine) -> None:
    names = tuple(dict.fromkeys((*state.config.served_model_names, runtime.name)))
    bridge = Bridge(
        engine,
        timeout_s=state.config.request_timeout_s,
        on_finish=lambda generation, delta: state.metrics.observe(names[0], generation.prepare_s, delta),
    )
    state.metrics.watch(names[0], engine.stats, engine.tier_stats)
    engine.start()
    state.served = Served(runtime, engine, bridge, names)
