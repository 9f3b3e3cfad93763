import dataclasses

import pytest

from example_8b import DenseFacts
from ridgeline.cost.hardware import Hardware
from ridgeline.cost.roofline import Roofline
from ridgeline.cost.speculation import Speculation
from ridgeline.errors import ConfigError

FACTS = DenseFacts()
ROOFLINE = Roofline(FACTS, Hardware("gpu", 48 * 10**9, 1000e9, {"bf16": 100e12}), "bf16", "bf16")


@pytest.mark.parametrize(
    ("drafts", "acceptance", "tokens"), [(4, 0.7, (1 - 0.7**5) / 0.3), (3, 0.0, 1.0), (3, 1.0, 4.0)]
)
def test_tokens_per_step(drafts, acceptance, tokens):
    assert Speculation(drafts, acceptance).tokens_per_step == pytest.approx(tokens)


def test_free_drafts_at_batch_1_gain_nearly_all_accepted_tokens():
    speculation = Speculation(4, 0.7)
    assert speculation.speedup(ROOFLINE, 200, 1) == pytest.approx(speculation.tokens_per_step, rel=1e-3)


def test_a_draft_model_costs_its_own_steps():
    draft = dataclasses.replace(FACTS, layers=4)
    speculation = Speculation(4, 0.7, draft)
    drafter = dataclasses.replace(ROOFLINE, facts=draft)
    step = ROOFLINE.time(ROOFLINE.decode(204, tokens=5)) + 4 * drafter.time(drafter.decode(200))
    assert speculation.step_time(ROOFLINE, 200, 1) == pytest.approx(step)


def test_it_stops_paying_at_the_break_even_batch():
    speculation = Speculation(4, 0.5)
    batch = speculation.break_even_batch(ROOFLINE, 100)
    assert speculation.speedup(ROOFLINE, 100, batch) <= 1 < speculation.speedup(ROOFLINE, 100, batch - 1)


def test_with_long_contexts_it_pays_at_any_batch():
    # Every sequence brings KV to read, which verifying shares among its drafts.
    assert Speculation(4, 0.7).break_even_batch(ROOFLINE, 8000) is None


@pytest.mark.parametrize(("drafts", "acceptance"), [(0, 0.5), (65, 0.5), (4, 1.1), (4, -0.1), (4, float("nan"))])
def test_out_of_range(drafts, acceptance):
    with pytest.raises(ConfigError):
        Speculation(drafts, acceptance)
