"""Engine, cache and disk tier together: whatever comes from disk, the answers are those of a request alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from engine_runs import CONTEXT_LEN, Client, Clock, make_request, run_alone, submit
from fakes import FakeExecutor, FakeTokenizer
from ridgeline.config import EngineConfig
from ridgeline.engine.disk_tier import DiskTier
from ridgeline.engine.loop import Engine

PAGE_SIZE = 4
SYSTEM = list(b"a system prompt that all begin with. ")


class PagedExecutor(FakeExecutor):
    """Its pages, tokens and positions, can be read and written."""

    page_bytes = PAGE_SIZE * 8

    def read_page(self, page_id: int) -> np.ndarray:
        place = slice(page_id * PAGE_SIZE, (page_id + 1) * PAGE_SIZE)
        return np.concatenate([self._tokens[place], self._positions[place]]).view(np.uint8)

    def write_page(self, page_id: int, data: np.ndarray) -> None:
        place = slice(page_id * PAGE_SIZE, (page_id + 1) * PAGE_SIZE)
        self._tokens[place], self._positions[place] = np.array(data).view(np.int32).reshape(2, PAGE_SIZE)


Start = Callable[..., Engine]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts engines over one cache directory, one at a time: the one before is shut down."""
    engines: list[Engine] = []

    def start_engine(*, num_pages: int = 64, max_bytes: int = 1 << 20, **config: object) -> Engine:
        for engine in engines:
            engine.shutdown(0.0)
        executor = PagedExecutor(num_pages=num_pages, page_size=PAGE_SIZE)
        tier = DiskTier(tmp_path, executor, fingerprint=b"f" * 32, max_bytes=max_bytes, write_bytes_per_s=1e12)
        settings = EngineConfig(**config)  # type: ignore[arg-type]
        engines.append(Engine(executor, FakeTokenizer(), settings, context_len=CONTEXT_LEN, tier=tier, clock=Clock()))
        return engines[-1]

    yield start_engine
    for engine in engines:
        engine.shutdown(0.0)


def ask(engine: Engine, prompt: list[int], **fields: object) -> tuple[int, int]:
    """Cached and loaded tokens of a request, whose answer must be right."""
    client = Client()
    request = make_request(prompt, client, max_tokens=6)
    for name, value in fields.items():
        setattr(request, name, value)
    engine.submit(request)
    engine.run_until_idle()
    assert client.token_ids == run_alone(prompt, max_tokens=6).token_ids
    return request.num_cached_tokens, request.num_loaded_tokens


def test_an_answer_after_a_restart_stands_on_the_disk(start: Start) -> None:
    assert ask(start(), SYSTEM) == (0, 0)
    engine = start()
    full = (len(SYSTEM) - 1) // PAGE_SIZE * PAGE_SIZE
    assert ask(engine, SYSTEM) == (0, full)
    assert ask(engine, SYSTEM) == (full, 0)
    assert ask(engine, SYSTEM, cache_salt="other") == (0, 0)


def test_what_was_evicted_comes_back_from_disk(start: Start) -> None:
    engine = start(num_pages=16)
    ask(engine, SYSTEM)
    for number in range(6):
        ask(engine, [number] * 40)
    cached, loaded = ask(engine, SYSTEM)
    assert loaded > 0
    assert cached + loaded == (len(SYSTEM) - 1) // PAGE_SIZE * PAGE_SIZE


def test_memory_only_pages_never_reach_the_disk_unless_another_use_lets_them(start: Start) -> None:
    ask(start(), SYSTEM, cache_memory_only=True)
    engine = start()
    assert ask(engine, SYSTEM, cache_memory_only=True) == (0, 0)
    ask(engine, SYSTEM)
    ask(engine, [*SYSTEM, *b"and more of my own text"], cache_memory_only=True)
    cached, loaded = ask(start(), [*SYSTEM, *b"and more of my own text"])
    assert (cached, loaded) == (0, len(SYSTEM) // PAGE_SIZE * PAGE_SIZE)


def test_expired_pages_are_not_handed_to_the_disk(start: Start) -> None:
    ask(start(prefix_ttl_s=1e-6), SYSTEM)
    assert ask(start(), SYSTEM) == (0, 0)


def test_a_flush_empties_the_disk_too(start: Start) -> None:
    ask(start(), SYSTEM)
    engine = start()
    engine.flush_cache()
    assert ask(engine, SYSTEM) == (0, 0)


def test_a_disk_smaller_than_memory_keeps_what_was_used_last(start: Start) -> None:
    engine = start(max_bytes=12 * 320)
    for number in range(5):
        ask(engine, [number] * 20)
    engine = start()
    assert ask(engine, [0] * 20) == (0, 0)
    assert ask(engine, [4] * 20)[1] > 0


def test_random_schedules_with_restarts_answer_as_alone(start: Start) -> None:
    chance = random.Random(5)
    prompts = [
        SYSTEM[: chance.randrange(1, 30)] + chance.choices(range(97, 100), k=chance.randrange(30)) for _ in range(9)
    ]
    expected = [run_alone(prompt, max_tokens=6).token_ids for prompt in prompts]
    num_loaded = 0
    for _ in range(8):
        engine = start(num_pages=24, max_bytes=chance.choice([20 * 320, 1 << 20]), admission="optimistic")
        for _ in range(6):
            chosen = chance.choices(range(len(prompts)), k=5)
            runs = [submit(engine, prompts[i], max_tokens=6) for i in chosen]
            engine.run_until_idle()
            for i, (request, client) in zip(chosen, runs, strict=True):
                assert client.token_ids == expected[i]
                num_loaded += request.num_loaded_tokens
    assert num_loaded > 100
