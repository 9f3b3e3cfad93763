"""Invariant 4: whatever happens to one request, it ends exactly once, and the others do not notice."""

from __future__ import annotations

import random
import threading

import pytest

from engine_runs import Client, make_engine, make_request, run_alone, submit
from fakes import FakeExecutor, FakeTokenizer
from ridgeline.config import EngineConfig
from ridgeline.engine.loop import Engine
from ridgeline.engine.plan import StepPlan
from ridgeline.engine.request import Delta, FinishReason
from ridgeline.errors import ExecutionError


def test_a_failing_step_fails_the_requests_in_it_and_no_other() -> None:
    engine = make_engine(FakeExecutor(num_sampler_slots=2, fail_steps=frozenset({3})))
    runs = [submit(engine, [i], max_tokens=6) for i in range(4)]
    engine.run_until_idle()
    assert [client.reason for _, client in runs] == [FinishReason.ERROR] * 2 + [FinishReason.LENGTH] * 2
    for i, (_, client) in enumerate(runs):
        expected = run_alone([i], max_tokens=6).token_ids
        assert client.token_ids == expected[: 3 if i < 2 else 6], "what was committed before is delivered"
    error = runs[0][1].deltas[-1].error
    assert isinstance(error, ExecutionError)
    assert "step 3" in error.message
    stats = engine.stats()
    assert (stats.num_failed_steps, stats.num_pages_held, stats.finished["error"]) == (1, 0, 2)


class Crashing(FakeExecutor):
    def submit(self, plan: StepPlan):  # type: ignore[no-untyped-def]
        if len(self.plans) == 1:
            self.plans.append(plan)
            raise OSError("device lost")
        return super().submit(plan)


def test_an_executor_that_crashes_in_submit_fails_the_step_only() -> None:
    engine = make_engine(Crashing())
    _, hit = submit(engine, [1], max_tokens=6)
    engine.step()
    engine.step()
    _, after = submit(engine, [1], max_tokens=6)
    engine.run_until_idle()
    expected = run_alone([1], max_tokens=6).token_ids
    assert (hit.reason, hit.token_ids) == (FinishReason.ERROR, expected[:1])
    assert "device lost" in str(hit.deltas[-1].error)
    assert after.token_ids == expected


@pytest.mark.parametrize("at_len", [3, 5])
def test_a_row_that_is_not_finite_fails_its_request_only(at_len: int) -> None:
    executor = FakeExecutor(is_nan=lambda context: context[0] == 13 and len(context) >= at_len)
    engine = make_engine(executor)
    runs = [submit(engine, [i] * 3, max_tokens=6, prompt_logprobs=0) for i in (12, 13, 14)]
    engine.run_until_idle()
    assert [client.reason for _, client in runs] == [FinishReason.LENGTH, FinishReason.ERROR, FinishReason.LENGTH]
    assert "not finite" in str(runs[1][1].deltas[-1].error)
    assert "--dtype fp32" in str(runs[1][1].deltas[-1].error)
    assert len(runs[1][1].token_ids) == at_len - 3
    for i in (0, 2):
        assert runs[i][1].token_ids == run_alone([12 + i] * 3, max_tokens=6).token_ids
    assert engine.stats().num_pages_held == 0


@pytest.mark.parametrize("at", ["first", "last"])
def test_a_sink_that_raises_aborts_its_own_request(at: str) -> None:
    engine = make_engine(FakeExecutor())
    received: list[Delta] = []

    def sink(delta: Delta) -> None:
        received.append(delta)
        if at == "first" or delta.finish_reason is not None:
            raise BrokenPipeError("gone")

    engine.submit(make_request([1], sink, max_tokens=6))
    _, other = submit(engine, [2], max_tokens=6)
    engine.run_until_idle()
    ends = [delta.finish_reason for delta in received if delta.finish_reason is not None]
    assert ends == [FinishReason.ABORT if at == "first" else FinishReason.LENGTH]
    assert len(received) == (2 if at == "first" else 6)
    assert other.token_ids == run_alone([2], max_tokens=6).token_ids
    assert engine.stats().num_pages_held == 0


def test_a_token_without_text_fails_its_request_only() -> None:
    """As an id that the model has and the tokenizer has not: 300 is no byte."""
    executor = FakeExecutor(vocab_size=400, next_token=lambda context: 300 if context[0] == 13 else ord("x"))
    engine = make_engine(executor)
    runs = [submit(engine, [i], max_tokens=3) for i in (12, 13, 14)]
    engine._delivery._tokenizer.token_bytes = {120: b"x"}.__getitem__  # type: ignore[union-attr,method-assign]
    engine.run_until_idle()
    assert [client.reason for _, client in runs] == [FinishReason.LENGTH, FinishReason.ERROR, FinishReason.LENGTH]
    assert "token 300" in str(runs[1][1].deltas[-1].error)
    assert [client.text for _, client in runs] == ["xxx", "", "xxx"]
    assert engine.stats().num_pages_held == 0


def test_a_stop_string_found_while_its_step_fails_wins() -> None:
    engine = make_engine(FakeExecutor(next_token=lambda _: ord("x"), fail_steps=frozenset({1})))
    _, client = submit(engine, [1], stop=("x",))
    engine.run_until_idle()
    assert (client.reason, client.token_ids) == (FinishReason.STOP, [ord("x")])


def test_an_abort_that_comes_after_the_stop_string_was_sampled_adds_no_second_end() -> None:
    engine = make_engine(FakeExecutor(next_token=lambda _: ord("x")))
    request, client = submit(engine, [1], stop=("x",))
    _, other = submit(engine, [2], max_tokens=4)
    engine.step()
    engine.abort(request.id)
    engine.run_until_idle()
    assert (client.reason, other.reason) == (FinishReason.STOP, FinishReason.LENGTH)


def test_an_abort_of_a_request_that_ends_meanwhile_comes_too_late() -> None:
    engine = make_engine(FakeExecutor(next_token=lambda _: ord("x")))
    ending = make_request([2], Client(), stop=("x",))
    received: list[Delta] = []

    def aborts_the_other(delta: Delta) -> None:
        received.append(delta)
        if len(received) == 1:
            engine.abort(ending.id)

    engine.submit(make_request([1], aborts_the_other, max_tokens=3))
    engine.submit(ending)
    engine.run_until_idle()
    assert ending.sink.reason is FinishReason.STOP  # type: ignore[attr-defined]
    assert received[-1].finish_reason is FinishReason.LENGTH


def test_abort_reaches_waiting_running_and_preempted_requests_within_two_steps() -> None:
    engine = make_engine(FakeExecutor(num_pages=9, num_sampler_slots=2), admission="optimistic")
    runs = [submit(engine, [i] * 8, max_tokens=20) for i in range(3)]
    while engine.stats().num_preemptions == 0:
        engine.step()
    running, preempted, waiting = runs
    assert preempted[0].timeline.preempted_s is not None
    for request, client in (waiting, preempted, running):
        engine.abort(request.id)
        held_before = len(request.pages)
        held = engine.stats().num_pages_held
        engine.step()
        engine.step()
        assert client.reason is FinishReason.ABORT
        assert request.pages == []
        if request is running[0]:
            assert held_before > 0
            assert engine.stats().num_pages_held == held - held_before == 0
    engine.run_until_idle()


def test_200_random_disconnects_then_8_requests_all_finish() -> None:
    executor = FakeExecutor(num_pages=40, num_sampler_slots=6)
    engine = make_engine(executor, admission="optimistic", max_batch_tokens=24)
    rng = random.Random(7)
    open_runs: list[tuple[str, Client]] = []
    clients = []
    for i in range(200):
        request, client = submit(engine, [i % 250] * rng.randint(1, 30), max_tokens=rng.randint(20, 40))
        clients.append(client)
        open_runs.append((request.id, client))
        for _ in range(rng.randint(0, 3)):
            engine.step()
        while len(open_runs) > rng.randint(0, 8):
            engine.abort(open_runs.pop(rng.randrange(len(open_runs)))[0])
    for request_id, _ in open_runs:
        engine.abort(request_id)
    engine.run_until_idle()
    assert all(client.ended for client in clients)
    assert sum(client.reason is FinishReason.ABORT for client in clients) > 150
    assert engine.stats().num_pages_held == 0
    last = [submit(engine, [i] * 10, max_tokens=20)[1] for i in range(8)]
    engine.run_until_idle()
    for i, client in enumerate(last):
        assert client.token_ids == run_alone([i] * 10, max_tokens=20).token_ids
    assert engine.stats().num_pages_held == 0


def test_a_fault_of_the_engine_itself_ends_what_it_holds_and_serves_on(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(FakeExecutor(), FakeTokenizer(), EngineConfig(), context_len=64)
    foresee = engine._scheduler.foresee
    calls = iter(range(10**9))

    def broken(chunks):  # type: ignore[no-untyped-def]
        if next(calls) == 2:
            raise ZeroDivisionError("a bug")
        return foresee(chunks)

    monkeypatch.setattr(engine._scheduler, "foresee", broken)
    done = [threading.Event(), threading.Event()]
    clients = [Client(), Client()]

    def listen(i: int):  # type: ignore[no-untyped-def]
        def sink(delta: Delta) -> None:
            clients[i](delta)
            if clients[i].ended:
                done[i].set()

        return sink

    engine.submit(make_request([1], listen(0), max_tokens=20))
    engine.start()
    assert done[0].wait(30)
    assert clients[0].reason is FinishReason.ERROR
    assert "a bug" in str(clients[0].deltas[-1].error)
    engine.submit(make_request([2], listen(1), max_tokens=20))
    assert done[1].wait(30)
    assert clients[1].token_ids == run_alone([2], max_tokens=20).token_ids
    engine.shutdown(30)
