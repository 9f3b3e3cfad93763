"""HTTP for measurements: one request in, one record out; whatever goes wrong is in the record.

aiohttp, because a client that costs more than the server measures itself (`docs/decisions.md` has the figures). A
record's `t_send` is taken when a connection is ready, so TCP and TLS set-up are no part of TTFT but stand in
`t_send - t_sched`. All lines of one read share one time: they came together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol

import aiohttp
import msgspec

from ridgeline.measure import llamacpp_endpoint, ollama_endpoint, openai_endpoint
from ridgeline.measure.concessions import OPTIONAL, Concession, concession
from ridgeline.measure.endpoints import Endpoint, GenerationRequest, Kind
from ridgeline.measure.events import Failure, Record, Recorder

_CONNECT_TIMEOUT_S = 10.0
_LONGEST_LINE = 16 * 2**20  # bytes; a line beyond this is no token event
_QUOTED = 200  # characters of a strange answer that are worth showing


class Reader(Protocol):
    recorder: Recorder
    ended: bool  # the server said that it was done: nothing that comes later counts

    def line(self, time: float, line: bytes) -> Failure | None: ...

    def cut(self) -> Failure:
        """Why a stream that is over, without having ended, failed."""
        ...


_READERS: dict[Kind, Callable[[Recorder], Reader]] = {
    "openai": openai_endpoint.OpenAIReader,
    "llamacpp": llamacpp_endpoint.LlamaCppReader,
    "ollama": ollama_endpoint.OllamaReader,
}
_DIALECTS = {"openai": openai_endpoint, "llamacpp": llamacpp_endpoint, "ollama": ollama_endpoint}


class Client:
    """Use it inside one event loop; `connect` closes it. `clock` gives seconds, monotonic. `tell` hears of each field
    that the server refuses and that is sent otherwise from then on."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        timeout_s: float = 600.0,
        count_tokens: Callable[[str], int] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        tell: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self.endpoint = endpoint
        self.concessions: list[Concession] = []
        self._tell = tell
        self.clock = clock
        self._count_tokens = count_tokens
        self._session = _session(endpoint, timeout_s, clock)

    async def close(self) -> None:
        await self._session.close()

    async def stream(self, request: GenerationRequest, *, t_sched: float | None = None, index: int = 0) -> Record:
        """Sends it now. `t_sched`: when it was meant to be sent; None: whenever it is sent."""
        now = self.clock()
        record = Record(
            t_sched=now,
            t_send=now,
            index=index,
            wanted_prompt_tokens=request.prompt_tokens,
            wanted_output_tokens=request.max_tokens,
        )
        recorder = Recorder(record, self._count_tokens)
        error = await self._run(request, recorder)
        record.t_sched = record.t_send if t_sched is None else t_sched
        return recorder.finish(self.clock(), error)

    async def get(self, path: str) -> Any:
        """A fact from the same server, such as /api/ps: JSON, or None where there is no such thing."""
        async with self._session.get(self.endpoint.url + path) as response:
            if response.status != 200:
                return None
            try:
                return msgspec.json.decode(await response.read())
            except msgspec.DecodeError:
                return None

    async def _run(self, request: GenerationRequest, recorder: Recorder) -> Failure | None:
        dialect = _DIALECTS[self.endpoint.kind]
        body = dialect.body(self.endpoint, request)
        for known in self.concessions:
            body = known.apply(body)
        made: list[Concession] = []
        while isinstance(outcome := await self._post(dialect.path(request), body, recorder), Concession):
            made.append(outcome)
            body = outcome.apply(body)
        if outcome is None:
            self._keep(made)
        return outcome

    def _keep(self, made: list[Concession]) -> None:
        """They helped: so it goes from now on."""
        for new in made:
            if new not in self.concessions:  # of several requests at once, each has found it out
                self.concessions.append(new)
                self._tell(str(new))

    async def _post(self, path: str, body: dict[str, Any], recorder: Recorder) -> Failure | Concession | None:
        data, reader = msgspec.json.encode(body), _READERS[self.endpoint.kind](recorder)
        try:
            async with self._session.post(
                self.endpoint.url + path, data=data, trace_request_ctx=recorder.record
            ) as response:
                if response.status == 200:
                    return await self._read(response, reader)
                answer = (await response.read()).decode(errors="replace")
                return concession(body, response.status, answer, OPTIONAL) or _refused(response.status, answer)
        except TimeoutError:
            return None if reader.ended else Failure("timeout", "the server was silent for too long")
        except msgspec.DecodeError as error:
            return Failure("bad_response", f"not the JSON that was expected: {error}")
        except aiohttp.ClientError as error:
            # Once the whole answer is here, the connection may break.
            return None if reader.ended else Failure("connection", str(error) or type(error).__name__)

    async def _read(self, response: aiohttp.ClientResponse, reader: Reader) -> Failure | None:
        if response.content_type == "text/html":
            return Failure("bad_response", f"HTML instead of a stream: {(await response.text())[:_QUOTED]}")
        rest, clock = b"", self.clock
        async for data in response.content.iter_any():
            now = clock()
            reader.recorder.byte(now)
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > _LONGEST_LINE:
                return Failure("bad_response", f"a line of more than {_LONGEST_LINE:,} bytes")
            for line in lines:
                if (failure := reader.line(now, line)) is not None:
                    return failure
        if rest:
            try:
                failure = reader.line(clock(), rest)
            except msgspec.DecodeError:
                return None if reader.ended else Failure("truncated", "the stream ended in the middle of a line")
            if failure is not None:
                return failure
        return None if reader.ended else reader.cut()


def _session(endpoint: Endpoint, timeout_s: float, clock: Callable[[], float]) -> aiohttp.ClientSession:
    headers = {"Content-Type": "application/json"}
    if endpoint.api_key:
        headers["Authorization"] = f"Bearer {endpoint.api_key}"
    trace = aiohttp.TraceConfig()

    async def connected(session: Any, context: Any, params: Any) -> None:
        if isinstance(context.trace_request_ctx, Record):
            context.trace_request_ctx.t_send = clock()

    trace.on_connection_create_end.append(connected)
    trace.on_connection_reuseconn.append(connected)
    return aiohttp.ClientSession(
        headers=headers,
        connector=aiohttp.TCPConnector(  # no limit: the load decides how many are in flight
            limit=0, force_close=not endpoint.capabilities.keeps_connections
        ),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S, sock_read=timeout_s),
        trace_configs=[trace],
    )


def _refused(status: int, text: str) -> Failure:
    try:
        message = openai_endpoint.error_text(msgspec.json.decode(text))
    except msgspec.DecodeError:
        message = text[:_QUOTED]
    return Failure(f"http_{status}", message)


def run(coroutine: Any) -> Any:
    """Runs a measurement on the fastest event loop that is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(coroutine)
    return uvloop.run(coroutine)
