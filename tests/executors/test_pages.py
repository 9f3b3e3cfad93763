"""KV pages as the engine moves them: copied within a step, read and written between steps."""

from __future__ import annotations

import numpy as np
import pytest

from checkpoints import VOCAB_SIZE, make_hf
from executors_under_test import EXECUTORS, open_executor
from ridgeline.errors import ConfigError
from step_plans import Context, Stepper

PROMPT = np.random.default_rng(3).integers(3, VOCAB_SIZE, 43).tolist()


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(make_hf(tmp_path_factory.mktemp("llama"), "llama"))


@pytest.mark.parametrize("kind", EXECUTORS)
def test_a_copied_page_continues_the_sequence_and_parts_from_its_source(kind, model):
    """A page that is filled to 11 of 32 tokens is copied; then both sequences write into their own."""
    with open_executor(kind, model) as executor:
        stepper = Stepper(executor)
        source = stepper.open(56)
        stepper.run([(source, PROMPT)])
        copy = Context([source.pages[0], *stepper.open(24).pages], length=len(PROMPT))
        copies = [(source.pages[1], copy.pages[1])]
        both = stepper.run([(copy, [7, 8]), (source, [9])], copy_pages=copies).logits
        after = stepper.run([(copy, [10]), (source, [11])]).logits
        for tokens, rows in (([7, 8, 10], (both[0], both[1], after[0])), ([9, 11], (both[2], after[1]))):
            (expected,) = stepper.logits([PROMPT + tokens])
            np.testing.assert_allclose(rows, expected[-len(tokens) :], atol=1e-5 if kind == "torch" else 0)


@pytest.mark.parametrize("kv_dtype", ["fp32", "int8"])
def test_a_page_that_was_read_and_written_back_elsewhere_gives_the_same_bits(kv_dtype, model):
    with open_executor("native", model, kv_dtype=kv_dtype) as executor:
        stepper = Stepper(executor)
        source, other = stepper.open(64), stepper.open(64)
        stepper.run([(source, PROMPT)])
        for page, target in zip(source.pages, other.pages, strict=True):
            data = executor.read_page(page)
            assert (data.dtype, data.shape) == (np.uint8, (executor.page_bytes,))
            executor.write_page(target, data)
        other.length = source.length
        logits = stepper.run([(source, [7]), (other, [7])]).logits
        np.testing.assert_array_equal(logits[0], logits[1])


def test_int8_pages_stay_near_fp32_and_have_one_result_in_any_chunks(model):
    logits = {}
    for kv_dtype in ("fp32", "int8"):
        with open_executor("native", model, kv_dtype=kv_dtype) as executor:
            stepper = Stepper(executor)
            (logits[kv_dtype],) = stepper.logits([PROMPT])
            for chunk in (1, 7):
                np.testing.assert_array_equal(stepper.logits([PROMPT], chunk=chunk)[0], logits[kv_dtype])
    p, q = (log_softmax(logits[kv_dtype].astype(np.float64)) for kv_dtype in ("fp32", "int8"))
    divergence = (np.exp(p) * (p - q)).sum(-1)
    assert 0 < divergence.mean() < 1e-4


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def test_the_torch_executor_refuses_int8_pages_by_name(model):
    with pytest.raises(ConfigError, match="kv_dtype 'int8'"), open_executor("torch", model, kv_dtype="int8"):
        pass
