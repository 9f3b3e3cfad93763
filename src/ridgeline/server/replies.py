"""Answers to a running generation: one JSON body, or server-sent events as tokens come."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ridgeline.engine.request import Delta, RequestMetrics
from ridgeline.errors import RidgelineError
from ridgeline.server.bridge import Generation
from ridgeline.server.cache import CacheExplanation, Missed
from ridgeline.server.errors import error_body
from ridgeline.server.formats import merged
from ridgeline.server.jobs import Job
from ridgeline.server.shapes import Choice, PromptTokensDetails, Reply, Timings, Usage
from ridgeline.server.transport import ClientGone, unless_client_leaves

DONE = b"data: [DONE]\n\n"


class Tally:
    """Counts what goes by: tokens for `usage`, why prompts missed, and the timings of the choice that finishes last."""

    def __init__(self, job: Job, generation: Generation) -> None:
        self._job = job
        self._n = job.work.n
        self._num_running = job.work.num_choices
        self._prompt_tokens = sum(len(prompt) for prompt in job.work.prompts)
        self._completion_tokens = 0
        self._details = PromptTokensDetails()
        self._explanations: dict[int, CacheExplanation] = {}  # by prompt
        self._prepare_s = generation.prepare_s
        self.timings: Timings | None = None  # set when all choices have finished

    def add(self, index: int, delta: Delta) -> None:
        self._completion_tokens += len(delta.token_ids)
        if delta.finish_reason is None:
            return
        self._num_running -= 1
        if delta.metrics is not None:
            if index % self._n == 0:  # a prompt counts once, and so does what was cached of it
                self._details.add(delta.metrics)
                self._explain(index // self._n, delta.metrics)
            if self._num_running == 0:
                self.timings = Timings.of(delta.metrics, self._prepare_s)

    def usage(self) -> Usage:
        total = self._prompt_tokens + self._completion_tokens
        return Usage(self._prompt_tokens, self._completion_tokens, total, self._details)

    def explanations(self) -> list[CacheExplanation] | UnsetType:
        """Of all prompts, when they were asked for."""
        return [self._explanations[index] for index in sorted(self._explanations)] or UNSET

    def _explain(self, index: int, metrics: RequestMetrics) -> None:
        if metrics.cache_miss is not None:
            runtime = self._job.served.runtime
            missed = Missed(
                self._job.work.prompts[index],
                metrics.cache_miss,
                metrics.num_cached_tokens + metrics.num_loaded_tokens,
                runtime.executor.page_size,
                salted=bool(self._job.work.cache.salt),
                speller=runtime.tokenizer,
            )
            self._explanations[index] = missed.explanation()


async def whole_reply(job: Job, generation: Generation) -> Response:
    """Waits for all choices. Raises what stopped the generation early."""
    tally = Tally(job, generation)
    deltas: list[list[Delta]] = [[] for _ in range(job.work.num_choices)]
    async for batch in generation.batches():
        for index, delta in batch:
            tally.add(index, delta)
            deltas[index].append(delta)
    reply = Reply(
        id=job.format.id_prefix + job.work.request_id,
        object=job.format.object,
        created=int(time.time()),
        model=job.model,
        choices=[job.format.whole(index, merged(parts)) for index, parts in enumerate(deltas)],
        usage=tally.usage(),
        timings=tally.timings or UNSET,
        cache_explanation=tally.explanations(),
    )
    return Response(msgspec.json.encode(reply), media_type="application/json")


class EventStream(Response):
    """A streamed answer. Whether it ends well, by an error or because the client left, nothing stays in the engine."""

    media_type = "text/event-stream"

    def __init__(self, job: Job, generation: Generation) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._job = job
        self._generation = generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_client_leaves(receive, self._send(send))
        except ClientGone:
            pass
        finally:
            self._generation.close()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for data in events(self._job, self._generation):
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def events(job: Job, generation: Generation) -> AsyncIterator[bytes]:
    """The stream's events. All that arrived together goes out in one write, so a slow client costs few of them.

    An error after the first header can only be an event: it ends the stream without `[DONE]`.
    """
    stream = _Stream(job, Tally(job, generation))
    try:
        async for batch in generation.batches():
            data = b"".join(stream.event(choice) for index, delta in batch for choice in stream.choices(index, delta))
            if data:
                yield data
    except RidgelineError as error:
        yield b"data: " + msgspec.json.encode(error_body(error)) + b"\n\n"
        return
    yield stream.usage_event() + DONE if job.include_usage else DONE


class _Stream:
    """Renders the chunks of one stream."""

    def __init__(self, job: Job, tally: Tally) -> None:
        self._job = job
        self._tally = tally
        self._encoder = msgspec.json.Encoder()
        self._chunk = Reply(
            id=job.format.id_prefix + job.work.request_id,
            object=job.format.chunk_object,
            created=int(time.time()),
            model=job.model,
            choices=[],
            usage=None if job.include_usage or job.continuous_usage else UNSET,
        )

    def choices(self, index: int, delta: Delta) -> list[Choice]:
        self._tally.add(index, delta)
        return self._job.format.pieces(index, delta)

    def event(self, choice: Choice) -> bytes:
        self._chunk.choices = [choice]
        if self._job.continuous_usage:
            self._chunk.usage = self._tally.usage()
        if choice.finish_reason is not None and self._tally.timings is not None:
            self._chunk.timings = self._tally.timings
            self._chunk.cache_explanation = self._tally.explanations()
        return self._encode()

    def usage_event(self) -> bytes:
        self._chunk.choices = []
        self._chunk.usage = self._tally.usage()
        return self._encode()

    def _encode(self) -> bytes:
        return b"data: " + self._encoder.encode(self._chunk) + b"\n\n"
