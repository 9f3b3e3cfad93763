"""The scheduler's decisions, most of them seen through the engine and its plans."""

from __future__ import annotations

import numpy as np
import pytest

from engine_runs import make_engine, run_alone, submit
from fakes import FakeExecutor
from ridgeline.cost.memory import admissible_requests
from ridgeline.engine.plan import Int32, StepPlan
from ridgeline.engine.request import Status

LENGTHS = (50, 100, 200, 500)


def test_static_batching_keeps_the_slots_of_ended_requests() -> None:
    """The chapter's example: 850 of 4 x 500 decode slots sample a token."""
    executor = FakeExecutor(num_pages=1000, num_sampler_slots=4)
    engine = make_engine(executor, scheduler="static", max_requests=4, context_len=600)
    clients = [submit(engine, [i], max_tokens=length)[1] for i, length in enumerate(LENGTHS)]
    engine.run_until_idle()
    stats = engine.stats()
    assert (stats.slots_used, stats.slots_total) == (850, 2000)
    assert stats.num_steps == 500
    assert [len(client.token_ids) for client in clients] == list(LENGTHS)


def test_continuous_batching_refills_the_slots() -> None:
    steps, use, outputs = {}, {}, {}
    for scheduler in ("static", "continuous"):
        executor = FakeExecutor(num_pages=1000, num_sampler_slots=4)
        engine = make_engine(executor, scheduler=scheduler, max_requests=4, context_len=600)
        clients = [submit(engine, [i], max_tokens=n)[1] for i, n in enumerate(LENGTHS * 2)]
        engine.run_until_idle()
        stats = engine.stats()
        steps[scheduler], use[scheduler] = stats.num_steps, stats.slots_used / stats.slots_total
        outputs[scheduler] = [client.token_ids for client in clients]
    assert steps["static"] == 1000
    # 4 lanes take 50 + 50 + ..: the second 500 starts when the first 100 and then 200 have ended.
    assert steps["continuous"] < 800
    assert use["static"] == 0.425
    assert use["continuous"] == 1.0
    assert outputs["static"] == outputs["continuous"]


def test_the_slot_whose_token_is_discarded_after_a_stop_string_was_used() -> None:
    engine = make_engine(FakeExecutor(next_token=lambda _: ord("x")))
    submit(engine, [1], stop=("xx",))
    engine.run_until_idle()
    stats = engine.stats()
    assert (stats.num_output_tokens, stats.slots_used, stats.slots_total) == (2, 3, 3)


def test_a_static_batch_that_is_not_full_waits_for_its_time() -> None:
    engine = make_engine(FakeExecutor(), scheduler="static", max_requests=4, static_wait_s=10.0)
    clock = engine._clock
    request, client = submit(engine, [1], max_tokens=3)
    assert not engine.step()
    clock.now += 9.9
    assert not engine.step()
    clock.now += 0.1
    assert engine.step()
    late, _ = submit(engine, [2], max_tokens=3)
    clock.now += 20
    assert engine.step()
    assert late.status is Status.WAITING, "no refill while the batch runs"
    assert engine.step()
    assert client.reason is None or request.status is Status.FINISHED
    assert engine.step()
    assert late.status is Status.RUNNING
    engine.run_until_idle()


def test_a_static_batch_is_full_when_the_next_request_lacks_pages() -> None:
    engine = make_engine(FakeExecutor(num_pages=9, page_size=4), scheduler="static", static_wait_s=1e9)
    requests = [submit(engine, [1] * 4, max_tokens=8)[0] for _ in range(3)]  # 3 pages each, of 8
    assert engine.step()
    assert [r.status for r in requests] == [Status.RUNNING, Status.RUNNING, Status.WAITING]
    engine.shutdown(0)


class PageCounter(FakeExecutor):
    """Does not read the pages back, to be quick where only their number matters."""

    def _context(self, plan: StepPlan, s: int, length: int) -> Int32:
        return np.broadcast_to(np.int32(0), length)


def test_pages_admit_97_requests_where_contiguous_reservations_admit_7() -> None:
    """The chapter's example: 15,231 pages of 16, requests of 2,000 + 500 tokens, a context of 32,768."""
    num_pages = 15_231
    assert num_pages * 16 // 32_768 == 7
    assert admissible_requests(num_pages, 16, 2_500) == 97
    executor = PageCounter(
        num_pages=num_pages + 1, page_size=16, max_step_tokens=8192, num_sampler_slots=128, next_token=lambda _: 5
    )
    engine = make_engine(executor, context_len=32_768, max_requests=128, max_batch_tokens=8192)
    requests = [submit(engine, [i] * 2000, max_tokens=500)[0] for i in range(98)]
    while requests[0].status is not Status.FINISHED:
        assert engine.step()
        assert engine.stats().num_running <= 97
        assert requests[97].status is Status.WAITING or requests[0].status is Status.FINISHED
        if len(requests[96].output_ids) == 1:
            assert engine.stats().num_running == 97
    engine.run_until_idle()
    stats = engine.stats()
    assert stats.num_preemptions == 0
    assert stats.finished["length"] == 98
    assert stats.num_pages_held == 0


def test_decodes_come_first_and_prefill_fills_the_budget() -> None:
    executor = FakeExecutor(max_step_tokens=64)
    engine = make_engine(executor, max_batch_tokens=10)
    submit(engine, [1, 2, 3], max_tokens=20)
    assert engine.step()
    submit(engine, [4] * 30, max_tokens=2)
    for _ in range(4):
        assert engine.step()
    sizes = [plan.query_start.tolist() for plan in executor.plans]
    assert sizes == [[0, 3], [0, 1, 10], [0, 1, 10], [0, 1, 10], [0, 1, 4]]


def test_chunks_beside_decodes_are_paced_by_the_measured_rate() -> None:
    executor = FakeExecutor(num_pages=400, max_step_tokens=200, step_s=0.1)
    engine = make_engine(executor, target_gap_s=0.05, context_len=1000)
    submit(engine, [1] * 200, max_tokens=100)  # 200 tokens in 0.1 s: 100 in 0.05 s
    assert engine.step()
    submit(engine, [2] * 300, max_tokens=1)
    assert engine.step()
    assert executor.plans[0].num_tokens == 200
    assert executor.plans[1].num_tokens == 1 + 100


def chunk_lens(executor: FakeExecutor) -> list[list[int]]:
    return [np.diff(plan.query_start).tolist() for plan in executor.plans]


def test_prompts_that_wait_together_are_computed_one_after_another() -> None:
    executor = FakeExecutor(num_pages=100, page_size=16, max_step_tokens=2048, step_s=1e-3)
    engine = make_engine(executor, context_len=1000)
    for token in range(4):
        submit(engine, [token] * 200, max_tokens=8)
    for _ in range(4):
        assert engine.step()
    assert chunk_lens(executor) == [[200, 56], [1, 144, 112], [1, 1, 88, 168], [1, 1, 1, 32]]


def test_a_prompt_by_itself_and_a_given_budget_take_all_of_a_step() -> None:
    for config, expected in (({}, [600]), ({"max_batch_tokens": 1000}, [600, 400])):
        executor = FakeExecutor(num_pages=100, page_size=16, max_step_tokens=2048)
        engine = make_engine(executor, context_len=1000, **config)
        for token in range(2):
            submit(engine, [token] * 600, max_tokens=8)
        assert engine.step()
        assert chunk_lens(executor) == [expected]


def test_without_kv_cache_all_sequences_advance_together() -> None:
    executor = FakeExecutor(num_pages=100, page_size=16, max_step_tokens=2048)
    engine = make_engine(executor, context_len=1000, kv_cache=False)
    for token in range(2):
        submit(engine, [token] * 300, max_tokens=8)
    for _ in range(2):
        assert engine.step()
    assert chunk_lens(executor) == [[300, 300], [301, 301]]


def test_a_budget_smaller_than_the_decodes_goes_round() -> None:
    executor = FakeExecutor()
    engine = make_engine(executor, max_batch_tokens=2, scheduler="static", max_requests=5)
    requests = [submit(engine, [i], max_tokens=6)[0] for i in range(5)]
    for _ in range(15):
        assert engine.step()
        assert executor.plans[-1].num_tokens == 2
        lengths = [len(r.output_ids) for r in requests]
        assert max(lengths) - min(lengths) <= 1
    assert lengths == [6] * 5


@pytest.mark.parametrize("admission", ["reserve", "optimistic"])
def test_when_pages_run_out_the_youngest_is_preempted_and_comes_back_first(admission: str) -> None:
    executor = FakeExecutor(num_pages=9, page_size=4)  # 8 usable: 32 tokens
    engine = make_engine(executor, admission=admission)
    given = {"max_tokens": 20} if admission == "optimistic" else {"stop_token_ids": (), "max_tokens": None}
    prompts = [[1] * 5, [2] * 5, [3] * 5]
    runs = [submit(engine, prompt, **given) for prompt in prompts]
    preempted = []
    while any(not client.ended for _, client in runs):
        engine.step()
        preempted += [r for r, _ in runs if r.timeline.preempted_s is not None and r not in preempted]
        engine._cache.check(engine._scheduler.running)
    assert runs[0][0] not in preempted, "the oldest always advances"
    assert preempted
    assert engine.stats().num_preemptions >= 1
    for prompt, (request, client) in zip(prompts, runs, strict=True):
        assert client.token_ids == run_alone(prompt, max_tokens=request.max_tokens).token_ids
    metrics = runs[1][1].deltas[-1].metrics
    assert metrics is not None
    assert metrics.num_preemptions == runs[1][0].timeline.num_preemptions
    assert (metrics.kv_wait_s > 0) == (metrics.num_preemptions > 0)


def test_priority_starts_the_important_first_and_displaces_the_less_important() -> None:
    executor = FakeExecutor(num_sampler_slots=2)
    engine = make_engine(executor, policy="priority")
    low, _ = submit(engine, [1], priority=5, max_tokens=20)
    lower, lower_client = submit(engine, [2], priority=6, max_tokens=20)
    assert engine.step()
    same, _ = submit(engine, [3], priority=6, max_tokens=20)
    high, _ = submit(engine, [4], priority=0, max_tokens=20)
    assert engine.step()
    assert [r.status for r in (low, lower, same, high)] == [
        Status.RUNNING,
        Status.WAITING,
        Status.WAITING,
        Status.RUNNING,
    ]
    assert engine.stats().num_preemptions == 1, "no more than needed"
    engine.run_until_idle()
    assert lower_client.token_ids == run_alone([2], max_tokens=20).token_ids


def test_fcfs_displaces_nobody() -> None:
    engine = make_engine(FakeExecutor(num_sampler_slots=1))
    first, _ = submit(engine, [1], priority=5, max_tokens=20)
    assert engine.step()
    submit(engine, [4], priority=0, max_tokens=20)
    assert engine.step()
    assert first.status is Status.RUNNING
    engine.run_until_idle()
    assert engine.stats().num_preemptions == 0


def test_priority_preempts_only_when_that_is_enough() -> None:
    engine = make_engine(FakeExecutor(num_pages=9, page_size=4), policy="priority")
    submit(engine, [1] * 4, priority=0, max_tokens=12)  # 4 of 8 pages
    submit(engine, [2] * 4, priority=5, max_tokens=4)  # 2 pages
    assert engine.step()
    submit(engine, [3] * 4, priority=1, max_tokens=24)  # 7 pages: not even with the 2
    assert engine.step()
    assert engine.stats().num_preemptions == 0
    engine.run_until_idle()


def test_without_kv_cache_every_token_recomputes_the_sequence() -> None:
    executor = FakeExecutor(max_step_tokens=8)
    engine = make_engine(executor, kv_cache=False)
    _, client = submit(engine, [1] * 5, max_tokens=6)
    engine.run_until_idle()
    # Sequences of 5, 6, .. 10 tokens, in chunks of at most 8.
    assert [plan.num_tokens for plan in executor.plans] == [5, 6, 7, 8, 8, 1, 8, 2]
    assert client.token_ids == run_alone([1] * 5, max_tokens=6).token_ids
