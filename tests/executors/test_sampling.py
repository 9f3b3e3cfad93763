"""The sampler's specification, held against Random123's vectors and against naive readings of each rule."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.engine.plan import NO_LOGPROBS, NO_TOKEN
from ridgeline.executors.philox import philox4x32, uniform
from ridgeline.executors.sampling import SamplerSlots, score
from step_plans import sampler_setup

F = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [  # the known-answer vectors that Random123 publishes for philox4x32 with 10 rounds
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((F, F, F, F), (F, F), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(counter, key, words):
    assert philox4x32(counter, key) == words


def test_uniform_depends_on_every_key_and_stays_in_range():
    draws = {
        uniform(seed, choice, position, purpose)
        for seed in (0, 1, 2**32, 2**64 - 1) for choice in (0, 1) for position in (1, 2) for purpose in (0, 1)
    }  # fmt: skip
    assert len(draws) == 32
    assert all(0 <= u < 1 for u in draws)


def sample(logits, position=1, **params):
    slots = SamplerSlots(len(logits))
    slots.open(sampler_setup(**params))
    return slots.sample(0, np.array(logits, np.float32), position)


def frequencies(logits, num_draws=4000, **params):
    slots = SamplerSlots(len(logits))
    slots.open(sampler_setup(**params))
    logits = np.array(logits, np.float32)
    ids = [slots.sample(0, logits, position).token_id for position in range(num_draws)]
    return np.bincount(ids, minlength=len(logits)) / num_draws


def test_greedy_ties_go_to_the_lowest_id():
    assert sample([1, 3, 3, 2]).token_id == 1


def test_sampling_follows_the_softmax_at_the_temperature():
    logits, temperature = np.array([2.0, 1.0, 0.0, -1.0]), 0.7
    expected = np.exp(logits / temperature) / np.exp(logits / temperature).sum()
    assert np.abs(frequencies(logits, temperature=temperature, seed=5) - expected).max() < 0.03


@pytest.mark.parametrize(
    ("filters", "kept"),
    [
        ({"top_k": 2}, {1, 2}),  # ids 2 and 3 tie, the lower one is kept
        ({"top_p": 0.4}, {1}),
        ({"top_p": 0.6}, {1, 2}),
        ({"min_p": 0.2}, {1, 2, 3}),
        ({"min_p": 0.2, "top_k": 2, "top_p": 0.99}, {1, 2}),
        ({"top_p": 0.0}, {1}),
    ],
)
def test_filters_keep_the_documented_candidates(filters, kept):
    logits = np.log([0.1, 0.5, 0.15, 0.15, 0.05, 0.05])
    seen = frequencies(logits, num_draws=300, temperature=1.0, seed=1, **filters)
    assert set(np.flatnonzero(seen)) == kept


def test_top_p_stops_where_the_sum_is_reached_exactly():
    seen = frequencies([1.0, 1.0, 1.0, 1.0], num_draws=100, temperature=1.0, seed=1, top_p=0.5)
    assert set(np.flatnonzero(seen)) == {0, 1}


def test_logit_bias_is_added():
    assert sample([1.0, 3.5], logit_bias=((0, 2.25),)).token_id == 1
    assert sample([1.0, 3.5], logit_bias=((0, 2.75),)).token_id == 0


def test_repetition_penalty_counts_prompt_and_output_once():
    params = {"repetition_penalty": 2.0, "prompt_ids": (0, 0, 2), "output_ids": (0,)}
    assert sample([4.0, 2.5, -1.0], **params).token_id == 1  # 4 / 2 = 2 < 2.5
    assert sample([4.0, 1.9, -1.0], **params).token_id == 0
    assert sample([-2.0, -3.0, -1.2], **params).token_id == 2  # -4, -3, -2.4


def test_presence_and_frequency_penalties_count_output_only():
    params = {"presence_penalty": 0.5, "frequency_penalty": 0.5, "prompt_ids": (1, 1, 1), "output_ids": (0, 0)}
    assert sample([3.0, 1.4], **params).token_id == 0  # 3 - 0.5 - 2 * 0.5 = 1.5
    assert sample([3.0, 1.6], **params).token_id == 1


def test_banned_ids_return_after_min_tokens():
    slots = SamplerSlots(3)
    slots.open(sampler_setup(banned_ids=(2,), min_tokens=2))
    logits = np.array([0.0, 1.0, 5.0], np.float32)
    assert [slots.sample(0, logits, p).token_id for p in range(4)] == [1, 1, 2, 2]


def test_logprobs_are_of_the_raw_distribution():
    logits = np.array([1.0, 2.0, 3.0, 3.0], np.float32)
    choice = sample(logits, logit_bias=((0, 100.0),), temperature=0.5, top_logprobs=3)
    expected = logits - np.log(np.exp(logits.astype(np.float64)).sum())
    assert choice.token_id == 0
    assert choice.logprob == pytest.approx(expected[0], abs=1e-6)
    assert [i for i, _ in choice.top] == [2, 3, 1]
    assert choice.top[2][1] == pytest.approx(expected[1], abs=1e-6)
    assert score(logits, 1, 0).logprob == pytest.approx(expected[1], abs=1e-6)


def test_logprobs_that_nobody_wants_are_not_computed():
    choice = sample([1.0, 2.0], top_logprobs=NO_LOGPROBS)
    assert (choice.token_id, choice.top, choice.finite) == (1, (), True)
    assert np.isnan(choice.logprob)


@pytest.mark.parametrize("logits", [[np.nan, 1, 2], [np.inf, 1, 2], [-np.inf] * 3])
def test_unusable_logits_give_no_token_and_count_nothing(logits):
    slots = SamplerSlots(3)
    slots.open(sampler_setup(banned_ids=(0,), min_tokens=1, frequency_penalty=1.0))
    refused = slots.sample(0, np.array(logits, np.float32), 1)
    assert (refused.token_id, refused.finite) == (NO_TOKEN, False)
    assert slots.sample(0, np.array([9, 1, 2], np.float32), 1).token_id == 2  # still below min_tokens


def test_banning_every_id_gives_no_token():
    assert not sample([1.0, 2.0], banned_ids=(0, 1), min_tokens=1).finite


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**64 - 1),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 5]),
    top_p=st.sampled_from([1.0, 0.9, 0.3]),
    frequency_penalty=st.sampled_from([0.0, 0.7]),
    split=st.integers(0, 12),
)
def test_a_reopened_slot_goes_on_as_if_never_closed(seed, split, **params):
    """Preemption: a slot opened with the first `split` outputs samples the rest exactly as before."""
    rows = np.random.default_rng(seed % 1000).normal(size=(12, 20)).astype(np.float32) * 3
    setup = params | {"seed": seed, "repetition_penalty": 1.2, "prompt_ids": (3, 4)}
    slots = SamplerSlots(20)
    slots.open(sampler_setup(**setup))
    whole = [slots.sample(0, row, p).token_id for p, row in enumerate(rows)]
    slots.open(sampler_setup(**setup, output_ids=tuple(whole[:split])))
    assert [slots.sample(0, rows[p], p).token_id for p in range(split, 12)] == whole[split:]


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**64 - 1),
    top_k=st.integers(0, 6),
    top_p=st.sampled_from([1.0, 0.8, 0.2]),
    min_p=st.sampled_from([0.0, 0.1, 0.5]),
)
def test_choice_equals_a_naive_reading_of_the_specification(seed, top_k, top_p, min_p):
    logits = np.round(np.random.default_rng(seed % 997).normal(size=12) * 2).astype(np.float32)  # many ties
    weights = {i: float(np.exp(float(l) - float(logits.max()))) for i, l in enumerate(logits)}
    kept = list(weights)
    if top_k or top_p < 1 or min_p:
        kept.sort(key=lambda i: (-logits[i], i))
        kept = [i for i in kept if weights[i] >= min_p][: top_k or None]
        *_, total = accumulate(weights[i] for i in sorted(kept))
        sums = accumulate(weights[i] for i in kept)
        kept = kept[: 1 + next((n for n, running in enumerate(sums) if running >= top_p * total), len(kept))]
    sums = list(accumulate(weights[i] for i in kept))  # sequential, where sum() compensates from Python 3.12 on
    threshold = uniform(seed, 0, 7) * sums[-1]
    expected = next(i for i, running in zip(kept, sums, strict=True) if running > threshold)
    params = {"temperature": 1.0, "seed": seed, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    assert sample(logits, position=7, **params).token_id == expected
