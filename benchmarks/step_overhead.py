"""What a decode step costs outside the native call. Writes docs/results/step_overhead.md.

A step schedules, builds the plan, submits it, delivers the step before while the core computes, waits, and commits.
`outside` is a step's time without the core's own: what no kernel can win back. Delivery counts where it outlasts the
core. The engine runs on this thread, so that nothing else of a server is in the figures.

    .venv/bin/python benchmarks/step_overhead.py [MODEL] [--dtype int8] [--batches 1,16,64] [--steps 200]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from ridgeline.config import EngineConfig, ModelConfig
from ridgeline.engine.loop import Engine
from ridgeline.engine.plan import StepHandle, StepPlan, StepResult
from ridgeline.engine.request import Delta, Request, SamplingParams
from ridgeline.executors.native import NativeExecutor
from ridgeline.model.runtime import ModelRuntime, load_runtime
from runs import this_machine

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "step_overhead.md"
PROMPT_TOKENS = 128
WARM_STEPS = 20  # with the full batch, before any is counted


class TimedExecutor:
    """Keeps the core's time of each step."""

    def __init__(self, executor: NativeExecutor) -> None:
        self._executor = executor
        self.seconds: list[float] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._executor, name)

    def submit(self, plan: StepPlan) -> StepHandle:
        self._handle = self._executor.submit(plan)
        return self

    def wait(self) -> StepResult:
        result = self._handle.wait()
        self.seconds.append(result.duration_s)
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--batches", default="1,16,64")
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    batches = [int(batch) for batch in arguments.batches.split(",")]
    config = ModelConfig(dtype=arguments.dtype, context=1024, kv_memory=1 << 30)
    runtime = load_runtime(arguments.model, config, num_sampler_slots=max(batches))
    rows = [measure(runtime, batch, arguments.steps) for batch in batches]
    runtime.close()
    text = (
        "# A decode step outside the native call\n\n"
        f"Written by `benchmarks/step_overhead.py`: {arguments.model} in {arguments.dtype}, {this_machine()}.\n"
        f"Greedy requests with prompts of {PROMPT_TOKENS} tokens, {arguments.steps} steps with a full batch: medians,\n"
        "and the least seen outside: what the code takes when nothing else wants the core.\n\n"
        "| batch | step, ms | outside the core, us | of the step | outside, least, us |\n|---|---|---|---|---|\n"
        + "\n".join(rows)
        + "\n"
    )
    RESULTS.write_text(text)
    print(text)


def measure(runtime: ModelRuntime, batch: int, steps: int) -> str:
    executor = TimedExecutor(runtime.executor)
    engine = Engine(executor, runtime.tokenizer, EngineConfig(max_requests=batch), context_len=runtime.context_len)
    rng = np.random.default_rng(0)
    params = SamplingParams(temperature=0.0, max_tokens=2 * WARM_STEPS + steps + batch, ignore_eos=True)
    deltas: list[Delta] = []
    for i in range(batch):
        prompt = rng.integers(1000, runtime.spec.vocab_size, PROMPT_TOKENS).tolist()
        engine.submit(Request(str(i), prompt, params, deltas.append))
    while not deltas or engine.stats().last_step_tokens != batch:
        engine.step(looks_ahead=True)
    for _ in range(WARM_STEPS):
        engine.step(looks_ahead=True)
    executor.seconds.clear()
    whole = [_timed_step(engine) for _ in range(steps)]
    outside = np.array(whole) - np.array(executor.seconds)
    engine.shutdown(0.0)
    step_s, outside_s = float(np.median(whole)), float(np.median(outside))
    return (
        f"| {batch} | {step_s * 1e3:.2f} | {outside_s * 1e6:.0f} | {outside_s / step_s:.1%} "
        f"| {float(outside.min()) * 1e6:.0f} |"
    )


def _timed_step(engine: Engine) -> float:
    start = time.perf_counter()
    engine.step(looks_ahead=True)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
