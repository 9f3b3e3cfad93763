"""How fast one step is, beside its floor on this machine: writes docs/results/speed.md.

Ceilings and steps are measured in the same run. All cases of a format take turns for several rounds; the figure is the
median. Floors come from the planner (`cost/roofline.py`), with the bandwidth of the step's own working set and the
best matrix throughput of our own kernels.

    .venv/bin/python benchmarks/speed.py [MODEL] [--random] [--formats bf16,int8]

`--random`: MODEL is a config.json alone and gets random weights; written to docs/results/speed_random.md.
"""

from __future__ import annotations

import argparse
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
from ridgeline.executors.native_build import PLAIN_DTYPES
from ridgeline.model.resolve import resolve_model
from ridgeline.model.runtime import load_runtime
from runs import Rows, plan_of, this_machine

RESULTS = Path(__file__).parents[1] / "docs" / "results"
FORMATS = "fp32,bf16,int8,int4-g32"
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--random", action="store_true")
    parser.add_argument("--formats", default=FORMATS)
    arguments = parser.parse_args()
    lines = []
    for dtype in arguments.formats.split(","):
        lines += measure_format(arguments.model, dtype, "random" if arguments.random else "checkpoint")
    named = f"{resolve_model(arguments.model).name}{' with random weights (speed only)' if arguments.random else ''}"
    text = (
        "# One step beside its floor\n\n"
        f"Written by `benchmarks/speed.py`: {named}, {this_machine()}.\nMedians of {ROUNDS} rounds in which the cases "
        "take turns; ceilings measured in the same run. The machine is shared: compare rows, not days.\n\n"
        "| format | step | ms | tokens/s | floor, ms | floor / measured | bound by |\n|---|---|---|---|---|---|---|\n"
        + "\n".join(lines)
        + "\n"
    )
    (RESULTS / ("speed_random.md" if arguments.random else "speed.md")).write_text(text)
    print(text)


def measure_format(model: str, dtype: str, weights: str) -> list[str]:
    config = ModelConfig(dtype=dtype, weights=weights, context=4096, kv_memory=3 << 29)
    runtime = load_runtime(model, config)
    facts = load_facts(model)
    cases = make_cases(runtime.executor, runtime.spec.vocab_size)
    product = dtype if dtype in PLAIN_DTYPES else "int8"
    hardware = Hardware(
        "this run",
        kind="cpu",
        bandwidth=read_bandwidth(int(facts.decode_read_bytes(dtype)), seconds=2.0),
        compute={
            product: max(_native.matmul_flops(product, rows, WIDTH, OUTPUTS, usable_cores(), 0.5) for rows in (64, 512))
        },
    )
    seconds: dict[str, list[float]] = {case.name: [] for case in cases}
    for _ in range(ROUNDS + 1):  # the first one touches the memory
        for case in cases:
            start = time.perf_counter()
            runtime.executor.submit(case.plan).wait()
            seconds[case.name].append(time.perf_counter() - start)
    runtime.close()
    kv_dtype = dtype if dtype in PLAIN_DTYPES else "bf16"
    roofline = Roofline(facts, hardware, dtype, kv_dtype)
    ceilings = f"{hardware.bandwidth / 1e9:.1f} GB/s, {hardware.compute[product] / 1e12:.2f} TFLOPS"
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
    main()
