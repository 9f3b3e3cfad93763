"""Invariants 1, 3, 4 and 5 under any order of arrivals, aborts and steps, for any shape of engine."""

from __future__ import annotations

import functools
from itertools import cycle

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine_runs import CONTEXT_LEN, Client, make_engine, run_alone, submit
from fakes import FakeExecutor
from ridgeline.engine.loop import Engine
from ridgeline.engine.request import FinishReason, Request, Status

SETTINGS = settings(max_examples=60, stateful_step_count=40, deadline=None)


@functools.cache
def alone(prompt: tuple[int, ...], max_tokens: int, stop: tuple[str, ...]) -> Client:
    return run_alone(prompt, max_tokens=max_tokens, stop=stop)


def engines() -> st.SearchStrategy[Engine]:
    def build(
        pages: int,
        page_size: int,
        step_tokens: int,
        slots: int,
        nan: bool,
        share: float,
        is_auto: bool,
        **config: object,
    ) -> Engine:
        executor = FakeExecutor(
            num_pages=pages,
            page_size=page_size,
            max_step_tokens=step_tokens,
            num_sampler_slots=slots,
            is_nan=(lambda context: context[0] == 13 and len(context) > 6) if nan else None,
        )
        budget = None if is_auto else max(1, round(share * step_tokens))
        return make_engine(executor, static_wait_s=0.0, max_batch_tokens=budget, **config)

    return st.builds(
        build,
        pages=st.integers(8, 20),
        page_size=st.sampled_from([2, 3, 4, 8]),
        step_tokens=st.integers(1, 40),
        slots=st.integers(1, 5),
        nan=st.booleans(),
        share=st.floats(0, 1),
        is_auto=st.booleans(),
        scheduler=st.sampled_from(["continuous", "continuous", "static"]),
        policy=st.sampled_from(["fcfs", "priority", "longest-prefix"]),
        admission=st.sampled_from(["reserve", "optimistic"]),
        kv_cache=st.sampled_from([True, True, False]),
        prefix_cache=st.sampled_from([True, True, False]),
    )


class EngineMachine(RuleBasedStateMachine):
    @initialize(engine=engines())
    def build(self, engine: Engine) -> None:
        self.engine = engine
        self.executor: FakeExecutor = engine._executor  # type: ignore[assignment]
        self.runs: list[tuple[Request, Client]] = []
        self.aborted: set[str] = set()

    @rule(
        first=st.integers(10, 15),
        length=st.integers(1, 30),
        output=st.integers(1, 20),
        priority=st.integers(0, 2),
        stop=st.sampled_from([(), (), ("a", "ek")]),
    )
    def arrive(self, first: int, length: int, output: int, priority: int, stop: tuple[str, ...]) -> None:
        prompt = [first, *range(length - 1)]
        room = min(CONTEXT_LEN, (self.executor.num_pages - 1) * self.executor.page_size)
        if length + output <= room:
            self.runs.append(submit(self.engine, prompt, priority, max_tokens=output, stop=stop))

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def disconnect(self, data: st.DataObject) -> None:
        request, _ = data.draw(st.sampled_from(self.runs))
        self.aborted.add(request.id)
        self.engine.abort(request.id)

    @rule(looks_ahead=st.booleans())
    def step(self, looks_ahead: bool) -> None:
        before = {r: (r.num_computed_tokens, len(r.output_ids)) for r in self.engine._scheduler.running}
        is_paced = self.engine._config.max_batch_tokens is None and any(r.num_remaining_tokens == 1 for r in before)
        if not self.engine.step(looks_ahead=looks_ahead):
            return
        num_tokens = self.executor.plans[-1].num_tokens
        budget = self.engine._scheduler.max_tokens
        assert num_tokens <= budget
        running = [r for r in before if r.status is Status.RUNNING]
        stalled = [r for r in running if (r.num_computed_tokens, len(r.output_ids)) == before[r]]
        if stalled and not is_paced:
            assert num_tokens == budget, f"{len(stalled)} running requests stand still while budget is left"

    @invariant()
    def books_balance(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.engine._cache.check(self.engine._scheduler.running)
        stats = self.engine.stats()
        assert stats.num_pages_free + stats.num_pages_held + stats.num_pages_cached == stats.num_pages
        if self.engine._config.admission == "reserve" and self.engine._config.policy != "priority":
            assert stats.num_preemptions == 0, "requests whose pages are set aside preempt each other"
        unfinished = [r for r, _ in self.runs if r.status is not Status.FINISHED]
        assert stats.num_running + stats.num_waiting == len(unfinished)
        slots = [r.sampler_slot for r in self.engine._scheduler.running]
        assert len(set(slots)) == len(slots)

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.engine.run_until_idle()
        for request, client in self.runs:
            assert client.ended
            expected = alone(tuple(request.prompt_ids), request.max_tokens, request.params.stop)
            if client.reason is FinishReason.ABORT:
                assert request.id in self.aborted
            elif client.reason is FinishReason.ERROR:
                assert request.prompt_ids[0] == 13
            else:
                assert (client.reason, client.text) == (expected.reason, expected.text)
                assert len(client.token_ids) == len(expected.token_ids)
            assert client.token_ids == expected.token_ids[: len(client.token_ids)]
        assert self.engine.stats().num_pages_held == 0


TestEngine = EngineMachine.TestCase
TestEngine.settings = SETTINGS


@settings(max_examples=40, deadline=None)
@given(
    engine=engines(),
    arrivals=st.lists(st.tuples(st.integers(20, 99), st.integers(1, 12), st.integers(1, 8)), min_size=1, max_size=8),
)
def test_decodes_never_wait_for_more_than_one_chunk(engine: Engine, arrivals: list[tuple[int, int, int]]) -> None:
    """A request that decodes samples with every step, unless it is preempted or the budget does not go round.

    It goes round among all that need one token: a prompt's last token takes its turn like a decode.
    """
    scheduler = engine._scheduler
    capacity = (engine._executor.num_pages - 1) * engine._executor.page_size
    for token, length, output in arrivals:
        if length + output <= capacity:
            submit(engine, [token] * length, max_tokens=output)
    for looks_ahead in cycle([True, True, True, False]):
        if not engine._requests:
            break
        need_one = [r for r in scheduler.running if r.num_remaining_tokens == 1]
        decoding = [r for r in need_one if r.output_ids]
        before = {r.id: len(r.output_ids) for r in decoding}
        if not engine.step(looks_ahead=looks_ahead) or len(need_one) > scheduler.max_tokens:
            continue
        for r in decoding:
            assert len(r.output_ids) == before[r.id] + 1 or r.status is Status.WAITING
