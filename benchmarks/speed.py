"""How fast one step is, beside its floor on this machine: writes docs/results/speed.md.

Ceilings and steps are measured in the same run. All cases of a format take turns for several rounds; the figure is the
median. Floors come from the planner (`cost/roofline.py`), with the bandwidth of the step's own working set and the
best matrix throughput of our own kernels.

    .venv/bin/python benchmarks/speed.py [MODEL]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ridgeline import _native
from ridgeline.config import ModelConfig
from ridgeline.cost.bandwidth import read_bandwidth
from ridgeline.cost.cores import usable_cores
from ridgeline.cost.facts import load_facts
from ridgeline.cost.hardware import Hardware
from ridgeline.cost.roofline import Roofline, Work
from ridgeline.engine.plan import Executor, StepPlan
from ridgeline.model.runtime import load_runtime
from runs import Rows, plan_of, this_machine

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "speed.md"
FORMATS = ("fp32", "bf16")
PREFILLS = (128, 512, 2048)
DECODES = ((1, 128), (1, 2048), (4, 128), (16, 128))  # (batch, context)
ROUNDS = 7
WIDTH, OUTPUTS = 1024, 4096  # of the matrix whose throughput is the compute ceiling


@dataclass(frozen=True)
class Case:
    name: str
    plan: StepPlan
    work: Callable[[Roofline], Work]
    num_tokens: int


def main(arguments: list[str]) -> None:
    model = arguments[0] if arguments else "smollm2-135m"
    lines = []
    for dtype in FORMATS:
        lines += measure_format(model, dtype)
    text = (
        "# One step beside its floor\n\n"
        f"Written by `benchmarks/speed.py`: {model}, {this_machine()}.\nMedians of {ROUNDS} rounds in which the cases "
        "take turns; ceilings measured in the same run. The machine is shared: compare rows, not days.\n\n"
        "| format | step | ms | tokens/s | floor, ms | floor / measured | bound by |\n|---|---|---|---|---|---|---|\n"
        + "\n".join(lines)
        + "\n"
    )
    RESULTS.write_text(text)
    print(text)


def measure_format(model: str, dtype: str) -> list[str]:
    runtime = load_runtime(model, ModelConfig(dtype=dtype, context=4096, kv_memory=1 << 30))
    facts = load_facts(model)
    cases = make_cases(runtime.executor, runtime.spec.vocab_size)
    weights = facts.decode_read_bytes(dtype)
    hardware = Hardware(
        "this run",
        bandwidth=read_bandwidth(int(weights), seconds=2.0),
        compute={
            dtype: max(_native.matmul_flops(dtype, rows, WIDTH, OUTPUTS, usable_cores(), 0.5) for rows in (64, 512))
        },
    )
    seconds: dict[str, list[float]] = {case.name: [] for case in cases}
    for _ in range(ROUNDS + 1):  # the first one touches the memory
        for case in cases:
            start = time.perf_counter()
            runtime.executor.submit(case.plan).wait()
            seconds[case.name].append(time.perf_counter() - start)
    runtime.close()
    roofline = Roofline(facts, hardware, dtype, dtype)
    ceilings = f"{hardware.bandwidth / 1e9:.1f} GB/s, {hardware.compute[dtype] / 1e12:.2f} TFLOPS"
    print(f"{dtype}: {ceilings}")
    return [row(dtype, case, float(np.median(seconds[case.name][1:])), roofline) for case in cases] + [
        f"| {dtype} | ceilings: {ceilings} | | | | | |"
    ]


def make_cases(executor: Executor, vocab_size: int) -> list[Case]:
    rng = np.random.default_rng(0)
    pages = 1 + rng.permutation(executor.num_pages - 1).astype(np.int32)  # pages of a used pool lie anywhere

    def rows(index: int, start: int, count: int) -> Rows:
        num_pages = -(-(start + count) // executor.page_size)
        first = index * num_pages
        return Rows(rng.integers(0, vocab_size, count).tolist(), start, pages[first : first + num_pages])

    def step(sequences: list[Rows]) -> StepPlan:
        return plan_of(sequences, executor.page_size, all_logits=False)

    return [
        *(
            Case(f"prefill {n}", step([rows(0, 0, n)]), lambda roofline, n=n: roofline.prefill(n), n)  # type: ignore[misc]
            for n in PREFILLS
        ),
        *(
            Case(
                f"decode, batch {batch}, {context} in context",
                step([rows(i, context - 1, 1) for i in range(batch)]),
                lambda roofline, batch=batch, context=context: roofline.decode(context, batch=batch),  # type: ignore[misc]
                batch,
            )
            for batch, context in DECODES
        ),
    ]


def row(dtype: str, case: Case, seconds: float, roofline: Roofline) -> str:
    work = case.work(roofline)
    floor = roofline.time(work)
    assert floor is not None
    return (
        f"| {dtype} | {case.name} | {seconds * 1e3:.1f} | {case.num_tokens / seconds:,.0f} | {floor * 1e3:.1f} "
        f"| {floor / seconds:.2f} | {roofline.binds(work)} |"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
