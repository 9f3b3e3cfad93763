"""Engines over a FakeExecutor, and the clients that listen to them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fakes import FakeExecutor, FakeTokenizer
from ridgeline.config import EngineConfig
from ridgeline.engine.loop import Engine
from ridgeline.engine.request import Delta, FinishReason, Request, SamplingParams

CONTEXT_LEN = 128
GREEDY = SamplingParams(temperature=0)


class Clock:
    """Time that passes when told to, and a little with every look at it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


@dataclass
class Client:
    """A sink that keeps what it got. It judges afterwards: the engine survives a sink that raises."""

    deltas: list[Delta] = field(default_factory=list)

    def __call__(self, delta: Delta) -> None:
        self.deltas.append(delta)

    @property
    def reason(self) -> FinishReason | None:
        """Of the last Delta; no other may have one."""
        reasons = [delta.finish_reason for delta in self.deltas]
        assert not any(reasons[:-1]), f"more came after the end: {reasons}"
        return reasons[-1] if reasons else None

    @property
    def ended(self) -> bool:
        return self.reason is not None

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def token_ids(self) -> list[int]:
        return [token_id for delta in self.deltas for token_id in delta.token_ids]


_ids = itertools.count()


def make_request(prompt: Sequence[int], client: Callable[[Delta], None], priority: int = 0, **params: Any) -> Request:
    given = {"temperature": 0.0} | params
    return Request(f"r{next(_ids)}", list(prompt), SamplingParams(**given), client, priority)


def make_engine(executor: FakeExecutor, *, context_len: int = CONTEXT_LEN, **config: Any) -> Engine:
    """As many places as the executor has, unless `max_requests` says otherwise."""
    settings = EngineConfig(**{"max_requests": executor.num_sampler_slots} | config)
    return Engine(executor, FakeTokenizer(), settings, context_len=context_len, clock=Clock())


def submit(engine: Engine, prompt: Sequence[int], priority: int = 0, **params: Any) -> tuple[Request, Client]:
    client = Client()
    request = make_request(prompt, client, priority, **params)
    engine.submit(request)
    return request, client


def run_alone(prompt: Sequence[int], **params: Any) -> Client:
    """What the prompt gives with the engine to itself, in one chunk and with plenty of memory."""
    engine = make_engine(FakeExecutor(num_pages=64, page_size=8, max_step_tokens=512), context_len=504)
    _, client = submit(engine, prompt, **params)
    engine.run_until_idle()
    return client
