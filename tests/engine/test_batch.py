from __future__ import annotations

from typing import Any

from engine_runs import Client, make_request
from ridgeline.engine.batch import build_plan
from ridgeline.engine.request import Request, TokenLogprob
from ridgeline.engine.scheduler import Chunk

EOS = frozenset({7})


def running(prompt: list[int], *, pages: list[int], output: list[int] | None = None, **params: Any) -> Request:
    request = make_request(prompt, Client(), **params)
    request.pages, request.output_ids = pages, output or []
    request.sampler_slot, request.max_tokens = 3, 8  # as the engine sets them
    return request


def test_a_prefill_chunk_and_a_decode() -> None:
    prefill = running([10, 11, 12, 13, 14, 15, 16], pages=[5, 2])
    decode = running([20, 21], pages=[9], output=[22])
    plan, rows = build_plan([Chunk(prefill, 2, 4), Chunk(decode, 2, 1)], 4, EOS)
    assert plan.token_ids.tolist() == [12, 13, 14, 15, 22]
    assert plan.positions.tolist() == [2, 3, 4, 5, 2]
    assert plan.slots.tolist() == [5 * 4 + 2, 5 * 4 + 3, 2 * 4, 2 * 4 + 1, 9 * 4 + 2]
    assert plan.query_start.tolist() == [0, 4, 5]
    assert plan.context_len.tolist() == [6, 3]
    assert plan.block_tables.tolist() == [[5, 2], [9, 0]]
    assert plan.logit_rows.tolist() == [4], "the prefill has not come to its last token"
    assert plan.sampler_slots.tolist() == [3]
    assert [row.request for row in rows] == [decode]


def test_prompt_positions_are_scored_by_the_row_before_them() -> None:
    request = running([10, 11, 12, 13], pages=[5], prompt_logprobs=2)
    request.prompt_logprobs = [TokenLogprob(10, None)]
    plan, rows = build_plan([Chunk(request, 0, 2)], 4, EOS)
    assert plan.logit_rows.tolist() == [0, 1]
    assert plan.score_ids.tolist() == [11, 12]
    assert plan.score_top.tolist() == [2, 2]
    assert plan.sampler_slots.tolist() == [-1, -1]
    assert [row.scores for row in rows] == [1, 2]
    request.prompt_logprobs = [TokenLogprob(0, None)] * 3
    plan, rows = build_plan([Chunk(request, 0, 4)], 4, EOS)
    assert [row.scores for row in rows] == [3, None], "after a preemption the scored ones are not scored again"
    assert plan.logit_rows.tolist() == [2, 3]
    assert plan.score_ids.tolist() == [13, -1]


def test_a_sampler_slot_is_set_up_once_per_start() -> None:
    request = running([10], pages=[1], output=[11], min_tokens=2, stop_token_ids=(9,), logprobs=4, seed=5)
    request.needs_setup, request.seed = True, 5
    plan, _ = build_plan([Chunk(request, 0, 2)], 4, EOS)
    (setup,) = plan.setups
    assert (setup.slot, setup.seed, setup.top_logprobs, setup.min_tokens) == (3, 5, 4, 2)
    assert setup.banned_ids == (7, 9)
    assert (setup.prompt_ids, setup.output_ids) == ((10,), (11,))
    plan, _ = build_plan([Chunk(request, 0, 2)], 4, EOS)
    assert plan.setups == []


def test_every_sampling_setting_reaches_the_sampler() -> None:
    given = {
        "temperature": 0.3,
        "top_k": 4,
        "top_p": 0.5,
        "min_p": 0.1,
        "repetition_penalty": 1.5,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "logit_bias": ((1, 2.0),),
    }
    request = running([10], pages=[1], **given)
    request.needs_setup, request.choice = True, 2
    plan, _ = build_plan([Chunk(request, 0, 1)], 4, EOS)
    assert {name: getattr(plan.setups[0], name) for name in given} == given
    assert plan.setups[0].choice == 2


def test_end_tokens_are_banned_only_before_min_tokens_and_when_they_end_anything() -> None:
    for params, banned in (({}, ()), ({"min_tokens": 1}, (7,)), ({"min_tokens": 1, "ignore_eos": True}, ())):
        request = running([10], pages=[1], **params)
        request.needs_setup = True
        plan, _ = build_plan([Chunk(request, 0, 1)], 4, EOS)
        assert plan.setups[0].banned_ids == banned
