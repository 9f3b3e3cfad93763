"""What the load client itself costs: token events per second on one core, and the lag that it adds.

    python benchmarks/client_cost.py [--streams 100] [--rate 20000] [--seconds 5]

A server process of its own writes one event per token and stream at a fixed pace; each event carries the time at which
it was written, so that lag = the client's timestamp - that time (one monotonic clock for both). The same stream is then
read by httpx, which `docs/decisions.md` compares.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import time
from typing import Any

from ridgeline.measure.client import run
from ridgeline.measure.endpoints import Capabilities, Endpoint, GenerationRequest, connect
from ridgeline.measure.metrics import percentile

_STAMP = 18  # characters of a time
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
_END = b'data: {"choices":[{"index":0,"text":"","finish_reason":"length"}]}\n\ndata: [DONE]\n\n'


class _Stream(asyncio.Protocol):
    """Every connection is a stream; all start together when the last one has asked."""

    waiting: list[asyncio.Transport]
    num_streams: int
    pace: tuple[float, int]  # seconds between tokens; tokens
    writing: asyncio.Task[None]

    def connection_made(self, transport: Any) -> None:
        self.transport, self.asked = transport, False

    def data_received(self, data: bytes) -> None:
        if not self.asked:
            self.asked = True
            self.waiting.append(self.transport)
            if len(self.waiting) == self.num_streams:
                _Stream.writing = asyncio.create_task(_write(list(self.waiting), *self.pace))
                self.waiting.clear()


async def _write(streams: list[asyncio.Transport], interval: float, num_tokens: int) -> None:
    for stream in streams:
        stream.write(_HEAD)
    start, step = time.perf_counter(), interval / len(streams)
    due = 0
    while due < num_tokens * len(streams):
        now = int((time.perf_counter() - start) / step)
        for i in range(due, min(now, num_tokens * len(streams))):
            text = f"{time.perf_counter():0{_STAMP}.9f}"
            streams[i % len(streams)].write(b'data: {"choices":[{"index":0,"text":"%s"}]}\n\n' % text.encode())
        due = max(due, now)
        await asyncio.sleep(0)
    for stream in streams:
        stream.write(_END)
        stream.close()


def _serve(ready: Any, num_streams: int, rate: float, seconds: float) -> None:
    async def serve() -> None:
        _Stream.waiting, _Stream.num_streams = [], num_streams
        _Stream.pace = num_streams / rate, round(rate * seconds / num_streams)
        server = await asyncio.get_running_loop().create_server(_Stream, "127.0.0.1", 0)
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    run(serve())


async def _ours(port: int, num_streams: int) -> list[float]:
    """The lags of all events, in seconds."""
    endpoint = Endpoint("openai", f"http://127.0.0.1:{port}", "x", capabilities=Capabilities(completions=True))
    async with connect(endpoint) as client:
        request = GenerationRequest(prompt="x")
        records = await asyncio.gather(*(client.stream(request) for _ in range(num_streams)))
    assert all(record.ok for record in records), {record.error for record in records}
    return [
        event.time - float(record.text[_STAMP * i : _STAMP * (i + 1)])
        for record in records
        for i, event in enumerate(record.events)
    ]


async def _httpx(port: int, num_streams: int) -> list[float]:
    import httpx

    lags: list[float] = []

    async def read(client: httpx.AsyncClient) -> None:
        async with client.stream("POST", f"http://127.0.0.1:{port}/", json={}) as response:
            async for line in response.aiter_lines():
                if line.startswith('data: {"choices":[{"index":0,"text":"0'):
                    lags.append(time.perf_counter() - float(line.split('"')[7]))

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=60.0, limits=limits) as client:
        await asyncio.gather(*(read(client) for _ in range(num_streams)))
    return lags


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--rate", type=float, default=20_000.0, help="token events per second, all streams together")
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(
        target=_serve, args=(theirs, options.streams, options.rate, options.seconds), daemon=True
    )
    server.start()
    port = ours.recv()
    print(f"{os.cpu_count()} cores, {options.streams} streams, {options.rate:,.0f} events/s offered")
    for name, client in (("ridgeline", _ours), ("httpx", _httpx)):
        cpu, wall = time.process_time(), time.perf_counter()
        lags = sorted(run(client(port, options.streams)))
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        print(
            f"{name:10} {len(lags) / wall:9,.0f} events/s  {cpu / len(lags) * 1e6:6.1f} us of CPU per event = "
            f"{len(lags) / cpu:8,.0f} events/s a core  lag P50 {percentile(lags, 0.5) * 1e3:.2f} ms, "
            f"P99 {percentile(lags, 0.99) * 1e3:.2f} ms"
        )
    server.terminate()


if __name__ == "__main__":
    main()
