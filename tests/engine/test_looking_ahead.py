"""A step that is submitted before the one before it is committed is the step that would have been scheduled."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from engine_runs import make_engine, submit
from fakes import FakeExecutor
from ridgeline.engine.loop import Engine
from ridgeline.engine.plan import StepPlan
from ridgeline.engine.request import FinishReason


def run(engine: Engine, *, looks_ahead: bool) -> int:
    """Steps until all has ended; how many steps were left under way."""
    num_ahead = 0
    while engine._requests:
        engine.step(looks_ahead=looks_ahead)
        num_ahead += engine._under_way is not None
    return num_ahead


def assert_same(ahead: StepPlan, scheduled: StepPlan) -> None:
    for field in dataclasses.fields(StepPlan):
        assert np.array_equal(getattr(ahead, field.name), getattr(scheduled, field.name)), field.name


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_the_plans_are_those_of_the_scheduler(prefix_cache: bool) -> None:
    executors = [FakeExecutor(num_pages=40, num_sampler_slots=3) for _ in range(2)]
    num_ahead = []
    for executor, looks_ahead in zip(executors, (True, False), strict=True):
        engine = make_engine(executor, max_batch_tokens=8, prefix_cache=prefix_cache)
        for first in range(5):  # more than there are places for
            submit(engine, [first] * (3 + first), max_tokens=9 + 3 * first, seed=0)
        num_ahead.append(run(engine, looks_ahead=looks_ahead))
    assert num_ahead[0] > 10
    assert num_ahead[1] == 0
    ahead, scheduled = (executor.plans for executor in executors)
    assert len(ahead) == len(scheduled)
    for plans in zip(ahead, scheduled, strict=True):
        assert_same(*plans)


def test_news_are_heard_before_the_next_step() -> None:
    executor = FakeExecutor()
    engine = make_engine(executor)
    _, first = submit(engine, [1], max_tokens=20)
    for _ in range(3):
        engine.step(looks_ahead=True)
    assert engine._under_way is not None
    submit(engine, [2], max_tokens=20)
    engine.step(looks_ahead=True)  # ends the step that was under way
    assert engine._under_way is None
    engine.step(looks_ahead=True)
    assert executor.plans[-1].num_sequences == 2
    engine.abort(engine._scheduler.running[0].id)
    run(engine, looks_ahead=True)
    assert first.reason is FinishReason.ABORT
    engine._cache.check(())


def test_a_foreseen_step_that_fails_fails_its_requests() -> None:
    engine = make_engine(FakeExecutor(fail_steps=frozenset({3})))
    _, client = submit(engine, [1], max_tokens=20)
    run(engine, looks_ahead=True)
    assert client.reason is FinishReason.ERROR
    assert len(client.token_ids) == 3
    engine._cache.check(())


def test_with_a_tier_below_no_page_is_evicted_while_a_step_computes() -> None:
    """The tier reads what is evicted, between two steps."""
    cache = make_engine(FakeExecutor())._cache
    assert cache.num_available_meanwhile == cache.num_available
    pages = cache.pool.allocate(1)
    cache.pool.store(pages)
    cache.pool.release(pages)
    assert cache.num_available_meanwhile == cache.num_available
    cache._tier = object()  # type: ignore[assignment]
    assert cache.num_available_meanwhile == cache.num_available - 1
