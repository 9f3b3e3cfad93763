"""Invariant 5 for the prefix cache on the bundled model: what is reused, from memory or from disk, changes no bit.

The quick form takes 6 prompts; `make test-full` takes the issue's 40 and the whole product, and writes what it saw to
docs/results/prefix_cache.md.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from exactness import Outcome, Schedule, open_runtime, related_prompts_of, run, run_cold_warm_restarted
from ridgeline.cost.memory import PAGE_SIZE

ALONE = Schedule(alone=True, prefix_cache=False)
RESULTS = Path(__file__).parents[1] / "docs" / "results" / "prefix_cache.md"

HEADER = """# Exactness of the prefix cache

Written by `make test-full` (tests/test_prefix_exactness.py): SmolLM2-135M-Instruct, {num_prompts} prompts that share
their beginnings, {num_tokens} greedy tokens each; tokens and all logits of every sampled row against the prompts alone
without prefix cache. Restarted: a new engine over emptied pages and the files that the one before left. Arithmetic:
{ids}.

| dtype | schedule | run | prompt tokens | found in memory | loaded from disk | logit rows that differ |
|---|---|---|---|---|---|---|
"""


def assert_same(outcome: Outcome, expected: Outcome, what: str) -> None:
    assert outcome.token_ids == expected.token_ids, f"tokens differ: {what}"
    assert outcome.digests == expected.digests, f"logits differ: {what}"


def assert_warm(outcome: Outcome, prompts: list[list[int]], what: str) -> None:
    """Everything that may hit does: whole pages, and never the last token."""
    expected = [(len(prompt) - 1) // PAGE_SIZE * PAGE_SIZE for prompt in prompts]
    assert [sum(reused) for reused in outcome.reused] == expected, what
    assert sum(expected) > 0
    assert any(len(prompt) % PAGE_SIZE == 0 for prompt in prompts), "no prompt is exactly as long as some pages"


@pytest.mark.parametrize(("dtype", "schedule"), [("bf16", Schedule(chunk=16)), ("fp32", Schedule(alone=True))])
def test_cold_warm_and_restarted_give_the_same_bits(dtype: str, schedule: Schedule, tmp_path: Path) -> None:
    runtime = open_runtime(dtype, threads=2)
    prompts = related_prompts_of(runtime, 6)
    expected = run(runtime, prompts, 3, ALONE)
    assert len(expected.digests) == 6 * 3
    assert expected.reused == [(0, 0)] * 6
    runs = run_cold_warm_restarted(runtime, prompts, 3, schedule, tmp_path)
    for name, outcome in zip(("cold", "warm", "restarted"), runs, strict=True):
        assert_same(outcome, expected, f"{name}, {schedule}")
    _, warm, restarted = runs
    assert_warm(warm, prompts, f"warm, {schedule}")
    assert_warm(restarted, prompts, f"restarted, {schedule}")
    assert sum(loaded for _, loaded in warm.reused) == 0
    assert sum(loaded for _, loaded in restarted.reused) > 0
    choices = [prompts[1]] * 4
    forked = run(runtime, choices, 3, Schedule())
    assert_same(forked, run(runtime, choices, 3, ALONE), "choices of one prompt")
    assert forked.reused == [(0, 0)] + [(PAGE_SIZE, 0)] * 3
    assert forked.num_copied == 3 * (len(prompts[1]) - 1 - PAGE_SIZE) > 0
    runtime.close()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_whole_product_gives_the_same_bits(tmp_path: Path) -> None:
    num_prompts, num_tokens = 40, 16
    lines, arithmetic_ids = [], []
    for dtype in ("fp32", "bf16", "int8", "int4"):
        runtime = open_runtime(dtype, threads=2)
        arithmetic_ids.append(runtime.executor.arithmetic_id)
        prompts = related_prompts_of(runtime, num_prompts)
        num_prompt = sum(map(len, prompts))
        expected = run(runtime, prompts, num_tokens, ALONE)
        for chunk, alone in itertools.product((16, 64, None), (True, False)):
            schedule = Schedule(chunk=chunk, alone=alone, prefix_cache=False)
            outcomes = {"cold": run(runtime, prompts, num_tokens, schedule)}
            assert sum(map(sum, outcomes["cold"].reused)) == 0
            lines += check(dtype, schedule, outcomes, expected, num_prompt)
            schedule = Schedule(chunk=chunk, alone=alone)
            runs = run_cold_warm_restarted(runtime, prompts, num_tokens, schedule, tmp_path / f"{dtype}{chunk}{alone}")
            outcomes = dict(zip(("cold", "warm", "restarted"), runs, strict=True))
            assert_warm(outcomes["warm"], prompts, str(schedule))
            assert_warm(outcomes["restarted"], prompts, str(schedule))
            lines += check(dtype, schedule, outcomes, expected, num_prompt)
        runtime.close()
    header = HEADER.format(num_prompts=num_prompts, num_tokens=num_tokens, ids=" and ".join(arithmetic_ids))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(header + "\n".join(lines) + "\n")


def check(
    dtype: str, schedule: Schedule, outcomes: dict[str, Outcome], expected: Outcome, num_prompt: int
) -> list[str]:
    lines = []
    for name, outcome in outcomes.items():
        assert_same(outcome, expected, f"{dtype}, {schedule}, {name}")
        cached, loaded = (sum(column) for column in zip(*outcome.reused, strict=True))
        lines.append(f"| {dtype} | {schedule} | {name} | {num_prompt} | {cached} | {loaded} | 0 |")
    return lines
