"""The prefix cache as requests meet it: who hits what, who waits for whom, and that each token is counted once.

The fake executor reads every page back, so outputs also show that what was shared is what would have been computed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from engine_runs import Client, make_engine, make_request, run_alone, submit
from fakes import FakeExecutor, FakeTokenizer
from ridgeline.config import EngineConfig
from ridgeline.engine.loop import Engine
from ridgeline.engine.policy import MAX_OVERTAKEN
from ridgeline.engine.request import Request, RequestMetrics, Status
from ridgeline.engine.scheduler import _Step
from ridgeline.errors import RequestError

PAGE = 4


def engine_of(num_pages: int = 200, **config: Any) -> tuple[Engine, FakeExecutor]:
    executor = FakeExecutor(num_pages=num_pages, page_size=PAGE, max_step_tokens=config.pop("step_tokens", 64))
    return make_engine(executor, context_len=500, **config), executor


def serve(engine: Engine, prompt: Sequence[int], **params: Any) -> RequestMetrics:
    _, client = submit(engine, prompt, **{"max_tokens": 1} | params)
    engine.run_until_idle()
    return metrics(client)


def metrics(client: Client) -> RequestMetrics:
    found = client.deltas[-1].metrics
    assert found is not None
    return found


def num_computed(executor: FakeExecutor) -> int:
    return sum(plan.num_tokens for plan in executor.plans)


def test_the_first_token_decides_all_and_the_last_only_its_page() -> None:
    engine, _ = engine_of()
    prompt = [*range(50, 70)]
    assert serve(engine, prompt).num_cached_tokens == 0
    assert serve(engine, [99, *prompt[1:]]).num_cached_tokens == 0
    assert serve(engine, [*prompt[:-1], 99]).num_cached_tokens == 16
    again = serve(engine, prompt)
    assert again.num_cached_tokens == 16, "20 tokens are 5 pages; the last token is computed"
    assert again.num_created_cache_tokens == 0


def test_every_turn_of_a_chat_hits_all_full_pages_of_what_came_before() -> None:
    engine, _ = engine_of()
    rng = random.Random(3)
    history: list[int] = []
    for turn in range(10):
        prompt = history + [rng.randrange(97, 123) for _ in range(rng.randint(3, 17))]
        _, client = submit(engine, prompt, max_tokens=rng.randint(2, 17))
        engine.run_until_idle()
        # The last token of an answer was sampled and never computed.
        expected = max(0, len(history) - 1) // PAGE * PAGE
        assert metrics(client).num_cached_tokens == expected, f"turn {turn}"
        assert client.token_ids == run_alone(prompt, max_tokens=len(client.token_ids)).token_ids
        history = prompt + client.token_ids


def test_choices_of_a_request_compute_its_prompt_once() -> None:
    engine, executor = engine_of()
    prompt = [*range(50, 73)]
    runs = []
    for choice in range(4):
        request = make_request(prompt, Client(), max_tokens=3)
        request.choice = choice
        engine.submit(request)
        runs.append(request)
    assert engine.step()
    assert [r.status for r in runs] == [Status.RUNNING] + [Status.WAITING] * 3
    assert engine.step()
    assert [r.status for r in runs] == [Status.RUNNING] * 4
    assert engine.stats().num_pages_held == 5 + 4, "five pages of the prompt, and one for each choice"
    engine.run_until_idle()
    num_decoded = 4 * (3 - 1)
    assert num_computed(executor) == len(prompt) + 3 * 1 + num_decoded
    assert [(r.num_cached_tokens, r.num_copied_tokens) for r in runs] == [(0, 0)] + [(20, 2)] * 3
    assert len(executor.plans[1].copy_pages) == 3
    stats = engine.stats()
    assert (stats.num_prompt_tokens_computed, stats.num_prompt_tokens_cached) == (23 + 3, 3 * 22)


def test_requests_that_start_together_share_what_they_have_in_common() -> None:
    """A later one starts as soon as the pages that it shares are there, not when the first one's prefill ends."""
    engine, executor = engine_of(max_batch_tokens=8)
    common = [*range(50, 66)]
    long, _ = submit(engine, common + [1] * 24, max_tokens=2)
    short, client = submit(engine, common + [2] * 3, max_tokens=2)
    other, _ = submit(engine, [7, 8, 9], max_tokens=2)
    assert engine.step()
    assert engine.step()
    assert (short.status, long.num_computed_tokens) == (Status.WAITING, 16)
    assert engine.step()
    assert (short.status, other.status) == (Status.WAITING, Status.WAITING), "the prefill takes the budget"
    engine.run_until_idle()
    assert short.num_cached_tokens == 16
    assert num_computed(executor) == 40 + 3 + 3 + 3 * 1
    assert client.token_ids == run_alone(short.prompt_ids, max_tokens=2).token_ids


def test_others_pass_a_request_that_waits_for_a_prefix() -> None:
    engine, _ = engine_of(max_batch_tokens=16)
    owner, _ = submit(engine, [*range(50, 62)], max_tokens=2)
    waits, _ = submit(engine, [*range(50, 62)], max_tokens=2)
    passes, _ = submit(engine, [7, 8, 9], max_tokens=2)
    assert engine.step()
    assert [r.status for r in (owner, waits, passes)] == [Status.RUNNING, Status.WAITING, Status.RUNNING]
    engine.run_until_idle()
    assert waits.num_cached_tokens == 8


def test_when_the_owner_of_a_prefix_goes_the_next_one_computes_it() -> None:
    engine, _ = engine_of(max_batch_tokens=8)
    prompt = [*range(50, 90)]
    runs = [submit(engine, prompt, max_tokens=2) for _ in range(3)]
    assert engine.step()
    engine.abort(runs[0][0].id)
    assert engine.step()
    assert [r.status for r, _ in runs] == [Status.FINISHED, Status.RUNNING, Status.WAITING]
    assert runs[1][0].num_cached_tokens == 8, "what the first had published"
    engine.run_until_idle()
    assert runs[2][0].num_cached_tokens == 36
    for _, client in runs[1:]:
        assert client.token_ids == run_alone(prompt, max_tokens=2).token_ids


def test_a_preempted_owner_keeps_nobody_waiting() -> None:
    engine, _ = engine_of(max_batch_tokens=8)
    prompt = [*range(50, 90)]
    owner, _ = submit(engine, prompt, max_tokens=2)
    waits, client = submit(engine, prompt, max_tokens=2)
    assert engine.step()
    scheduler = engine._scheduler
    assert scheduler.cache.is_being_computed(waits, scheduler.running)
    scheduler._preempt(owner, _Step(0), 0.0)
    assert not scheduler.cache.is_being_computed(waits, scheduler.running)
    assert engine.step()
    assert [r.status for r in (owner, waits)] == [Status.RUNNING, Status.WAITING], (
        "the owner is first in the queue again"
    )
    engine.run_until_idle()
    assert (owner.num_cached_tokens, waits.num_cached_tokens) == (0, 36)
    assert client.token_ids == run_alone(prompt, max_tokens=2).token_ids


def test_static_batches_share_too() -> None:
    engine, executor = engine_of(scheduler="static", static_wait_s=0.0, max_batch_tokens=16)
    prompt = [*range(50, 90)]
    clients = [submit(engine, prompt, max_tokens=2)[1] for _ in range(3)]
    engine.run_until_idle()
    assert num_computed(executor) < 2 * len(prompt)
    for client in clients:
        assert client.token_ids == run_alone(prompt, max_tokens=2).token_ids


def test_different_salts_never_share() -> None:
    engine, executor = engine_of()
    clients = []
    for salt in ("", "a", "b", "a"):
        request = make_request([*range(50, 70)], Client(), max_tokens=1)
        request.cache_salt = salt
        engine.submit(request)
        clients.append(request.sink)
    engine.run_until_idle()
    assert [metrics(client).num_cached_tokens for client in clients] == [0, 0, 0, 16]  # type: ignore[arg-type]
    assert num_computed(executor) == 3 * 20 + 4


def test_prompt_tokens_are_computed_or_cached_and_counted_once() -> None:
    """The executor's own count is the witness, as long as nothing is computed twice."""
    engine, executor = engine_of(max_batch_tokens=24)
    rng = random.Random(4)
    runs = []
    for _ in range(40):
        prompt = [*range(50, 50 + rng.randint(1, 40)), *(rng.randrange(50) for _ in range(rng.randint(0, 9)))]
        runs.append(submit(engine, prompt, max_tokens=rng.randint(1, 9)))
        for _ in range(rng.randint(0, 4)):
            engine.step()
    engine.run_until_idle()
    stats = engine.stats()
    assert stats.num_preemptions == 0
    assert stats.num_prompt_tokens == sum(len(r.prompt_ids) for r, _ in runs)
    ends = [metrics(client) for _, client in runs]
    assert stats.num_prompt_tokens_cached == sum(end.num_cached_tokens + end.num_copied_tokens for end in ends) > 200
    num_decoded = sum(len(client.token_ids) - 1 for _, client in runs)
    assert num_computed(executor) == stats.num_prompt_tokens_computed + num_decoded
    assert stats.num_prompt_tokens == stats.num_prompt_tokens_computed + stats.num_prompt_tokens_cached
    assert all(end.num_cached_tokens % PAGE == 0 for end in ends)
    assert all(end.num_cached_tokens + end.num_copied_tokens < end.num_prompt_tokens for end in ends)


def test_random_prompts_have_no_hits_whatever_is_preempted() -> None:
    engine, _ = engine_of(num_pages=20, admission="optimistic", max_batch_tokens=12)
    rng = random.Random(5)
    runs = [submit(engine, [rng.randrange(256) for _ in range(15)], max_tokens=25) for _ in range(12)]
    engine.run_until_idle()
    stats = engine.stats()
    assert stats.num_preemptions > 5
    assert (stats.num_prompt_tokens_cached, stats.num_prompt_tokens_computed) == (0, 12 * 15)
    assert [metrics(client).num_cached_tokens for _, client in runs] == [0] * 12


def test_a_preempted_request_comes_back_through_the_tree() -> None:
    engine, executor = engine_of(num_pages=60, policy="priority", max_requests=1)
    low, client = submit(engine, [*range(50, 70)], priority=5, max_tokens=10)
    engine.step()
    submit(engine, [1, 2], priority=0, max_tokens=3)
    engine.run_until_idle()
    assert low.timeline.num_preemptions == 1
    assert num_computed(executor) == (20 + 9) + (2 + 2), "nothing was computed twice"
    assert client.token_ids == run_alone([*range(50, 70)], max_tokens=10).token_ids


def test_cached_pages_are_there_for_whoever_needs_space() -> None:
    engine, _ = engine_of(num_pages=11)
    for first in range(5):
        assert serve(engine, [first] * 20, max_tokens=20).num_cached_tokens == 0
    stats = engine.stats()
    assert stats.num_preemptions == 0
    assert stats.num_pages_held == 0
    assert stats.num_pages_published == stats.pages_removed["space"] + stats.num_pages_cached == 5 * 9


def test_shared_pages_admit_more_requests() -> None:
    """Each needs 10 pages of 12, and shares 8 of them."""
    engine, _ = engine_of(num_pages=13)
    prompt = [*range(50, 83)]
    serve(engine, prompt)
    runs = [submit(engine, prompt, max_tokens=7)[0] for _ in range(2)]
    assert engine.step()
    assert [r.status for r in runs] == [Status.RUNNING] * 2
    engine.run_until_idle()
    assert engine.stats().num_preemptions == 0


@pytest.mark.parametrize("off", ["prefix_cache", "kv_cache"])
def test_switched_off_nothing_hits(off: str) -> None:
    engine, _ = engine_of(**{off: False})
    for _ in range(2):
        assert serve(engine, [*range(50, 70)]).num_cached_tokens == 0
    assert engine.stats().num_pages_cached == 0


def test_logprobs_of_a_cached_prompt_are_computed_for_every_position() -> None:
    engine, _ = engine_of()
    prompt = [*range(50, 70)]
    serve(engine, prompt)
    _, client = submit(engine, prompt, prompt_logprobs=0, max_tokens=1)
    engine.run_until_idle()
    assert metrics(client).num_cached_tokens == 0
    assert (
        client.deltas[0].prompt_logprobs == run_alone(prompt, prompt_logprobs=0, max_tokens=1).deltas[0].prompt_logprobs
    )


def expiring(prompt: Sequence[int], ttl_s: float | None) -> Request:
    request = make_request(prompt, Client(), max_tokens=1)
    request.cache_ttl_s = ttl_s
    request.explain_cache = True
    return request


def test_prefixes_expire_on_the_engines_clock_and_the_reason_is_told() -> None:
    engine, _ = engine_of(prefix_ttl_s=100.0)
    prompt = [*range(50, 70)]

    def ask(ttl_s: float | None = None) -> RequestMetrics:
        request = expiring(prompt, ttl_s)
        engine.submit(request)
        engine.run_until_idle()
        return metrics(request.sink)  # type: ignore[arg-type]

    ask()
    for _ in range(3):
        engine._clock.now += 90  # type: ignore[attr-defined]
        assert ask().num_cached_tokens == 16, "use refreshes"
    engine._clock.now += 112  # type: ignore[attr-defined]
    late = ask()
    assert (late.num_cached_tokens, late.num_expired_tokens) == (0, 16)
    assert late.cache_miss is not None
    assert late.cache_miss.expired_ago_s == pytest.approx(12, abs=0.1)
    with pytest.raises(RequestError, match="cache_ttl is -1"):
        ask(-1.0)


def test_longest_prefix_goes_first_but_overtakes_a_waiting_request_only_so_often() -> None:
    engine, _ = engine_of(policy="longest-prefix", max_requests=1)
    cached = [*range(50, 70)]
    serve(engine, cached)
    cold, _ = submit(engine, [1] * 20, max_tokens=1)
    warm = [submit(engine, cached, max_tokens=1)[0] for _ in range(MAX_OVERTAKEN + 3)]
    while cold.status is not Status.FINISHED:
        engine.step()
    assert sum(r.status is Status.FINISHED for r in warm) == MAX_OVERTAKEN
    engine.run_until_idle()


def test_cache_questions_are_answered_by_the_thread_that_steps() -> None:
    executor = FakeExecutor(page_size=PAGE)
    engine = Engine(executor, FakeTokenizer(), EngineConfig(), context_len=128)
    serve(engine, [*range(50, 70)])
    engine.start()
    (top,) = engine.cache_tree()
    (node,) = top.children
    assert (top.namespace, node.num_pages, node.num_tokens) == (engine.cache_namespace(), 5, 20)
    assert engine.nearest_prefix(engine.cache_namespace(), [*range(50, 53), 99]).num_matching_tokens == 3
    assert engine.flush_cache(engine.cache_namespace("other")) == 0
    assert engine.flush_cache() == 5
    assert engine.cache_tree() == []
    with pytest.raises(OverflowError):
        engine.nearest_prefix("", [2**40])
    engine.shutdown(30)
    assert engine.stats().pages_removed["flushed"] == 5
    assert engine.flush_cache() == 0, "without a thread the caller's answers"
