"""What one server-sent event costs the server's thread in HTTP alone: h11 beside httptools, in turns.

    .venv/bin/python benchmarks/http_events.py

An application that does nothing but send writes events of a chat chunk's size to a socket that is read as fast as it
can be; what counts is the processor time of the server's thread. Events of one turn of the loop leave in one write, so
the protocol's own work is most of it. docs/decisions.md has the figures.
"""

from __future__ import annotations

import socket
import statistics
import threading
import time
from typing import Any

import uvicorn

from runs import this_machine

NUM_EVENTS = 20_000
NUM_ROUNDS = 7
EVENT = b"data: " + b"x" * 230 + b"\n\n"  # as long as a chunk of one token
BODY = {"type": "http.response.body", "body": EVENT, "more_body": True}


def cost_s(http: Any) -> float:
    """Per event."""
    times: list[float] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        start = time.thread_time()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for _ in range(NUM_EVENTS):
            await send(BODY)
        times.append((time.thread_time() - start) / NUM_EVENTS)
        await send({"type": "http.response.body", "body": b""})

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, http=http, ws="none", lifespan="off", log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        with socket.create_connection(listener.getsockname()) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            while client.recv(1 << 20):
                pass
        server.should_exit = True
        thread.join()
    return times[0]


def main() -> None:
    costs: dict[str, list[float]] = {"httptools": [], "h11": []}
    for _ in range(NUM_ROUNDS):
        for http, seen in costs.items():
            seen.append(cost_s(http))
    print(f"{this_machine()}, uvicorn {uvicorn.__version__}, {NUM_ROUNDS} rounds of {NUM_EVENTS:,} events")
    for http, seen in costs.items():
        print(
            f"{http}: {statistics.median(seen) * 1e6:.1f} us an event ({min(seen) * 1e6:.1f} to {max(seen) * 1e6:.1f})"
        )


if __name__ == "__main__":
    main()
