"""The planner from Python: names in, a plan out."""

import pytest

import ridgeline
from ridgeline.cost.ask import choose_dtype
from ridgeline.cost.facts import STORED, load_facts
from ridgeline.errors import ConfigError


def test_plan():
    plan = ridgeline.plan("example-8b", hardware="example-gpu", batch=32, input_len=2000, output_len=500)
    assert plan.textbook["speedup"] == pytest.approx(19.3, abs=0.05)
    two = ridgeline.plan("example-8b", hardware="example-gpu", devices=2)
    assert two.tpot_floor_s == pytest.approx(ridgeline.plan("example-8b", hardware="example-gpu").tpot_floor_s / 2)


def test_auto_is_what_the_checkpoint_holds():
    assert choose_dtype(load_facts("example-8b"), "auto") == "bf16"
    assert choose_dtype(load_facts("gpt-oss-20b"), "auto") == STORED
    assert ridgeline.plan("deepseek-v3", hardware="h200").dtype == "fp8-128x128"


@pytest.mark.parametrize("bad", [{"hardware": "h100"}, {"dtype": "int3"}, {"batch": 0}])
def test_refusals(bad):
    with pytest.raises(ConfigError):
        ridgeline.plan("example-8b", **{"hardware": "example-gpu", **bad})
