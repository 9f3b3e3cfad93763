from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from engine_runs import Client, make_request
from ridgeline.config import EngineConfig
from ridgeline.engine.policy import MAX_OVERTAKEN, PrefillPacer, outranks, rank, reserved_pages, start_order
from ridgeline.engine.request import FinishReason, Request, RequestMetrics
from ridgeline.engine.stats import Counters


def arrived(arrival: int, priority: int = 0) -> Request:
    request = make_request([1], Client(), priority)
    request.arrival = arrival
    return request


def test_fcfs_ignores_priority() -> None:
    first, second = arrived(0, priority=9), arrived(1, priority=-9)
    assert rank(first, "fcfs") < rank(second, "fcfs")
    assert not outranks(second, first, "fcfs")


def test_priority_orders_by_priority_then_arrival() -> None:
    requests = [arrived(0, 1), arrived(1, 0), arrived(2, 1), arrived(3, -1)]
    order = sorted(requests, key=lambda r: rank(r, "priority"))
    assert [r.arrival for r in order] == [3, 1, 0, 2]
    assert outranks(requests[3], requests[0], "priority")
    assert not outranks(requests[2], requests[0], "priority"), "equal priorities do not displace each other"


def test_longest_prefix_goes_by_hits_unless_a_request_is_due() -> None:
    requests = [arrived(i) for i in range(5)]
    hits = dict(zip(requests, (0, 16, 48, 48, 16), strict=True))

    def order(policy: Any) -> list[int]:
        return [r.arrival for r in start_order(requests, policy, hits.__getitem__)]

    assert order("fcfs") == [0, 1, 2, 3, 4]
    assert order("longest-prefix") == [2, 3, 1, 4, 0]
    requests[0].num_overtaken = MAX_OVERTAKEN
    requests[4].timeline.num_preemptions = 1
    assert order("longest-prefix") == [0, 4, 2, 3, 1]


def reserve(admission: Any, *, prompt: int, output: int = 0, final_len: int, given: bool) -> int:
    max_tokens = final_len - prompt
    request = make_request([1] * prompt, Client(), max_tokens=max_tokens if given else None)
    request.max_tokens = max_tokens
    request.output_ids = [1] * output
    return reserved_pages(request, admission, page_size=16)


def test_a_given_length_is_reserved_whole_and_an_unknown_one_a_page_ahead() -> None:
    assert reserve("reserve", prompt=2000, final_len=2500, given=True) == 157
    assert reserve("reserve", prompt=2000, final_len=2500, given=False) == 126
    assert reserve("optimistic", prompt=2000, final_len=2500, given=True) == 126
    assert reserve("optimistic", prompt=2000, output=490, final_len=2500, given=True) == 157


def pacer(**config: Any) -> PrefillPacer:
    return PrefillPacer(EngineConfig(**config))


def test_chunks_beside_decodes_start_small_and_follow_the_measured_cost() -> None:
    p = pacer(target_gap_s=0.1)
    assert p.max_prefill_tokens(2048, 1) == 16
    p.observe([100], duration_s=0.1)
    assert p.max_prefill_tokens(2048, 1) == 100
    p.observe([1, 1], duration_s=0.05)
    p.observe([1, 60, 60], duration_s=0.13)  # 0.08 s more than decoding alone
    assert p.max_prefill_tokens(2048, 1) == 150
    assert p.max_prefill_tokens(50, 1) == 50


def test_decodes_slower_than_the_target_do_not_starve_prompts() -> None:
    """Steps of 0.3 s, and 1 ms more per prompt token: 100 tokens pause the decodes for the target."""
    p = pacer(target_gap_s=0.1)
    p.observe([1] * 8, duration_s=0.3)
    for _ in range(8):
        chunk = p.max_prefill_tokens(2048, 8)
        p.observe([1] * 8 + [chunk], duration_s=0.3 + 0.001 * chunk)
    assert chunk == pytest.approx(100, abs=1)


@pytest.mark.parametrize("first_seen", [[], [1]])
def test_chunks_do_not_creep_beside_more_decodes_than_were_seen_alone(first_seen: list[int]) -> None:
    """A burst of prompts: decodes that take 0.1 s, and 0.02 s more for each beyond the first."""
    p = pacer(target_gap_s=0.1)
    p.observe([100], duration_s=0.1)
    if first_seen:
        p.observe(first_seen, duration_s=0.1)
    for num_decodes in range(2, 9):
        chunk = p.max_prefill_tokens(2048, num_decodes)
        p.observe([1] * num_decodes + [chunk], duration_s=0.1 + 0.02 * (num_decodes - 1) + 0.001 * chunk)
        assert p.max_prefill_tokens(2048, num_decodes) == 100
    p.observe([1] * 8 + [100], duration_s=2.0)  # more than eight times the one could explain
    assert p.max_prefill_tokens(2048, 8) == (50 if first_seen else 100)


def test_as_many_prompt_tokens_as_decodes_are_always_allowed() -> None:
    p = pacer(target_gap_s=0.1)
    p.observe([100], duration_s=100.0)
    assert p.max_prefill_tokens(2048, 0) == 16
    assert p.max_prefill_tokens(2048, 64) == 64


@pytest.mark.parametrize(("duration_s", "allowed"), [(0.01, 200), (10.0, 50)])
def test_one_disturbed_step_changes_little(duration_s: float, allowed: int) -> None:
    p = pacer(target_gap_s=0.1)
    p.observe([100], duration_s=0.1)
    p.observe([1], duration_s=0.02)
    p.observe([1, 100], duration_s)
    assert p.max_prefill_tokens(2048, 1) == allowed


@pytest.mark.parametrize(("chunk_lens", "duration_s"), [([49], 0.001), ([49, 1], 10.0), ([100], 0.0), ([1] * 64, 10.0)])
def test_only_steps_with_a_chunk_of_about_that_size_are_measured(chunk_lens: list[int], duration_s: float) -> None:
    p = pacer(target_gap_s=0.1)
    p.observe([100], duration_s=0.1)
    p.observe(chunk_lens, duration_s)
    assert p.max_prefill_tokens(2048, 1) == 100


def test_a_given_budget_is_not_paced() -> None:
    assert pacer(max_batch_tokens=512).max_prefill_tokens(500, 1) == 500


def test_a_step_that_a_stopped_process_slept_through_is_not_learned() -> None:
    """SIGSTOP in the middle of a decode step: ten minutes of it must not look like what decoding costs."""
    p, undisturbed = pacer(target_gap_s=0.1), pacer(target_gap_s=0.1)
    for _ in range(20):
        for each in (p, undisturbed):
            each.observe([1, 1], 0.01)
            each.observe([100, 1, 1], 0.06)
    p.observe([1, 1], 600.0)
    for each in (p, undisturbed):
        each.observe([1, 1], 0.01)
        each.observe([100, 1, 1], 0.06)
    assert p.max_prefill_tokens(10_000, 2) < 1.5 * undisturbed.max_prefill_tokens(10_000, 2)


def test_a_request_that_was_stopped_for_long_hardly_moves_retry_after() -> None:
    counters = Counters()
    for e2e_s in (1.0, 1.0, 3600.0):
        counters.on_end(
            FinishReason.STOP, RequestMetrics(**{field.name: 0 for field in fields(RequestMetrics)} | {"e2e_s": e2e_s})
        )
    assert counters.run_s < 3.0
