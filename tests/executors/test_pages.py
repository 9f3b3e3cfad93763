"""KV pages as the engine moves them: copied within a step, read and written between steps."""

from __future__ import annotations

import numpy as np
import pytest

from checkpoints import VOCAB_SIZE, make_hf
from executors_under_test import EXECUTORS, open_executor
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


def test_a_page_that_was_read_and_written_back_elsewhere_gives_the_same_bits(model):
    with open_executor("native", model) as executor:
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
