"""The native sampler on rows of many blocks, held against its twin in numpy."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from ridgeline import _native
from ridgeline.executors.sampling import SamplerSlots
from step_plans import sampler_setup

VOCAB_SIZE = 5003  # 40 blocks of ids, the last one not full
FILTERS = [
    {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    for temperature, top_k, top_p, min_p in product((0.0, 0.7, 1e-310), (0, 1, 30, 900), (1.0, 0.9, 0.2), (0.0, 0.02))
]


def rows() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    peaked = rng.normal(0, 3, VOCAB_SIZE).astype(np.float32)
    impossible = np.full(VOCAB_SIZE, -np.inf, np.float32)
    impossible[[130, 131, 4999]] = 1.0, 2.0, 2.0
    return {
        "peaked": peaked,
        "flat": rng.normal(0, 0.01, VOCAB_SIZE).astype(np.float32),
        "ties": np.round(peaked),
        "one block": np.where(np.arange(VOCAB_SIZE) // 128 == 7, peaked + 9, peaked),
        "last id": np.where(np.arange(VOCAB_SIZE) == VOCAB_SIZE - 1, np.float32(40), peaked),
        "impossible": impossible,
    }


def native(setup, isa, logits, position, num_best=0):
    given = _native.SamplerSetup()
    for name in ("temperature", "top_k", "top_p", "min_p", "seed"):
        setattr(given, name, getattr(setup, name))
    return _native.kernels.sample(isa, given, logits, position, num_best)


@pytest.mark.parametrize("isa", _native.kernels.isas())
@pytest.mark.parametrize("name", rows())
def test_tokens_are_the_twins(isa, name):
    logits = rows()[name]
    for seed, filters in enumerate(FILTERS):
        setup = sampler_setup(seed=seed, **filters)
        twin = SamplerSlots(VOCAB_SIZE)
        twin.open(setup)
        for position in range(3):
            expected = twin.sample(0, logits, position).token_id
            assert native(setup, isa, logits, position)[0] == expected, (filters, position)


@pytest.mark.parametrize("count", [0, 1, 20, 39, 40, 41, 5003, 6000])
def test_the_best_ids_are_sorted_with_ties_to_the_lowest(count):
    for logits in rows().values():
        expected = np.argsort(-logits, kind="stable")[:count].tolist()
        assert native(sampler_setup(), _native.isa(), logits, 0, count)[1] == expected


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_row_that_is_not_finite_gives_no_token(value):
    for at in (0, 127, VOCAB_SIZE - 1):
        logits = rows()["peaked"]
        logits[at] = value
        assert native(sampler_setup(), _native.isa(), logits, 0)[0] == -1
