"""Runs the server: the port first, then the model, then requests until a signal.

The first SIGINT or SIGTERM stops admission (503), lets running streams finish for `shutdown_timeout_s` and ends the
rest with an error event. The second one ends the process at once.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ridgeline.config import ServerConfig
from ridgeline.errors import ConfigError
from ridgeline.server.app import create_app
from ridgeline.server.errors import shutting_down
from ridgeline.server.state import Load, ServerState

KEEP_ALIVE_S = 75  # longer than the idle time after which common clients and proxies drop a connection themselves
LAST_EVENTS_S = 5.0  # for the error events of streams that were cut off


def serve(config: ServerConfig, load: Load, *, on_ready: Callable[[ServerState], None]) -> int:
    """Serves until a signal; returns the exit status. `on_ready` is called once, when requests are answered.

    Raises ConfigError when the address cannot be had, before anything is loaded, and whatever `load` raises.
    """
    listener = listen(config.host, config.port)

    def loaded(state: ServerState) -> None:
        if state.load_error is not None:
            server.should_exit = True
        else:
            on_ready(state)

    state = ServerState(config, load, on_loaded=loaded, port=listener.getsockname()[1])
    server = Server(state)
    server.run(sockets=[listener])
    if state.is_loading:
        _leave_at_once()
    if state.load_error is not None:
        raise state.load_error
    return 0


def _leave_at_once() -> NoReturn:
    """For a signal during a load: the loading thread is inside native code, which an ending interpreter would abort."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class _Http(H11Protocol):
    """HTTP/1.1 and 1.0 by h11. httptools is faster and drops the body of a request that offers `Upgrade: h2c`, as
    Java's HttpClient does by default, and chunks what it streams to HTTP/1.0 clients (docs/decisions.md)."""

    def _unsupported_upgrade_warning(self) -> None:
        """Who offers another protocol is answered in this one, as HTTP has it: nothing to warn of."""


class Server(uvicorn.Server):
    """uvicorn with our ending."""

    def __init__(self, state: ServerState) -> None:
        super().__init__(
            uvicorn.Config(
                create_app(state),
                http=_Http,
                ws="none",
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=int(state.config.shutdown_timeout_s + LAST_EVENTS_S),
            )
        )
        self._state = state

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._state.is_shutting_down:
            os._exit(128 + sig)
        self._state.is_shutting_down = True
        self.should_exit = True
        served = self._state.served
        stats = None if served is None else served.engine.stats()
        if stats is not None and (under_way := stats.num_running + stats.num_waiting):
            limit_s = self._state.config.shutdown_timeout_s
            print(f"shutting down: {under_way} requests have up to {limit_s:.0f} s to finish; "
                  "another signal ends at once", file=sys.stderr)  # fmt: skip

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._state.is_shutting_down = True
        served = self._state.served
        if served is None:
            await super().shutdown(sockets)
            return
        loop = asyncio.get_running_loop()
        limit = loop.call_later(self._state.config.shutdown_timeout_s, served.bridge.fail_all, shutting_down())
        try:
            await super().shutdown(sockets)
        finally:
            limit.cancel()


def listen(host: str, port: int) -> socket.socket:
    """A socket bound to `host` and `port` (0: any free one). Raises ConfigError that says what is in the way."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise ConfigError(f"--host {host!r} is no address of this machine: {error.strerror}") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()  # a port that another server listens on shows itself here at the latest
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error) from None
    return listener


def _cannot_listen(host: str, port: int, error: OSError) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        hint = f"stop what listens there, or take another one: --port {port + 1} (--port 0 finds a free one)"
        return ConfigError(f"port {port} on {host} is in use by another program", hint=hint, port=port)
    if error.errno == errno.EACCES:
        return ConfigError(f"port {port} needs privileges", hint="take one from 1024 up with --port", port=port)
    return ConfigError(f"cannot listen on {host} port {port}: {os.strerror(error.errno or 0)}", port=port)
