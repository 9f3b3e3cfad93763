"""What the profile says of the ops adds up to what the planner says of the model, and their times to the steps'."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoints import make_hf
from executors_under_test import open_executor
from ridgeline.cost.facts import ModelFacts, load_facts
from ridgeline.cost.hardware import Hardware
from ridgeline.engine.plan import NO_TOKEN
from ridgeline.executors.op_profile import REST, OpLine, Profile
from step_plans import Stepper

PRODUCTS = ("matmul", "logits")
LAST_ROW = {
    name: np.array([value], np.int32)
    for name, value in (("logit_rows", 19), ("sampler_slots", -1), ("score_ids", NO_TOKEN), ("score_top", 0))
}  # of a step of 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_hf(tmp_path_factory.mktemp("profile"), "llama")


@pytest.fixture(params=["fp32 fp32", "bf16 bf16", "int8-g32 bf16", "bf16 int8"])
def executor(request: pytest.FixtureRequest, model: Path) -> Iterator[Any]:
    dtype, kv_dtype = request.param.split()
    with open_executor("native", str(model), dtype=dtype, kv_dtype=kv_dtype) as executor:
        yield executor


def prefill_and_decode(executor: Any) -> tuple[Profile, float]:
    """20 tokens, then one more; the profile, and what the steps took."""
    steps = Stepper(executor)
    context, profile = steps.open(32), executor.profile()
    plans = (
        lambda: steps.plan([(context, range(20))], **LAST_ROW),
        lambda: steps.plan([(context, [1])]),
    )
    return profile, sum(executor.submit(plan()).wait().duration_s for plan in plans)


def total(profile: Profile, field: str, kinds: tuple[str, ...]) -> float:
    return sum(getattr(line, field) for line in profile.lines if line.kind in kinds)


def test_flops_are_the_planners(executor: Any, model: Path) -> None:
    facts: ModelFacts = load_facts(str(model))
    profile, _ = prefill_and_decode(executor)
    assert total(profile, "flops", PRODUCTS) == facts.linear_flops(21, 2)
    assert total(profile, "flops", ("attention",)) == facts.attention_flops(0, 21)


def test_bytes_are_those_of_the_memory(executor: Any, model: Path) -> None:
    """Every matrix once a step, and K and V of the whole context; products are packed in whole blocks."""
    facts, kv_dtype = load_facts(str(model)), executor.arithmetic_id.rpartition("-")[2]
    profile, _ = prefill_and_decode(executor)
    matrices = sum(section.nbytes for section in executor._core.sections()) - vectors(executor)
    assert total(profile, "bytes_moved", PRODUCTS) == 2 * matrices
    assert total(profile, "bytes_moved", ("attention",)) == facts.kv_bytes(20, kv_dtype) + facts.kv_bytes(21, kv_dtype)


def vectors(executor: Any) -> int:
    """Bytes of norms, which no product reads; an untied embedding would count among them."""
    works = executor._core.op_works
    return int(executor.weight_bytes - sum(work.step_bytes for work in works))


def test_times_sum_to_those_of_the_steps(executor: Any) -> None:
    profile, seconds = prefill_and_decode(executor)
    assert profile.num_steps == 2
    assert profile.seconds == pytest.approx(seconds)
    assert all(line.seconds >= 0 for line in profile.lines if line.kind != REST)


def test_lines_tell_rows_apart_and_stand_in_the_programs_order(executor: Any) -> None:
    profile, _ = prefill_and_decode(executor)
    assert [line.rows for line in profile.lines] == sorted(line.rows for line in profile.lines)
    decode = [line.kind for line in profile.lines if line.rows == (1, 1)]
    assert decode[0] == "embed"
    assert decode[-3:] == ["gather", "logits", REST] or decode[-2:] == ["logits", REST]
    prefill = {line.kind for line in profile.lines if line.rows == (20, 20)}
    assert "attention" in prefill
    assert not {"gather", "logits"} & prefill  # of one row, though twenty were computed


def test_the_floor_takes_the_slower_of_both_ceilings() -> None:
    hardware = Hardware("test", bandwidth=10.0, compute={"bf16": 100.0})
    product = OpLine("matmul", "4 x 4", "bf16", (1, 1), calls=2, seconds=9.0, bytes_moved=40.0, flops=100.0)
    assert product.floor_s(hardware, 1e9) == 4.0
    product.flops = 1000.0
    assert product.floor_s(hardware, 1e9) == 10.0
    assert OpLine(REST, "", "", (1, 1), calls=1, seconds=1.0).floor_s(hardware, 1e9) is None
