"""Quality, memory, TTFT and TPOT of each number format in one table: writes docs/results/quantization.md.

Quality is what `benchmarks/quality.py` found (docs/results/quality.json). Times are measured here: all formats are
loaded and take turns for several rounds, on one sequence; figures are medians. Two minutes with SmolLM2 on two cores.

    .venv/bin/python benchmarks/quantization.py [MODEL] [--formats bf16,int8,int4-g32+head=int8-g32] [--rounds N]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

import numpy as np

from divergence import mean, relative_perplexity
from held_out import parse_format
from ridgeline.config import EngineConfig
from ridgeline.model.runtime import ModelRuntime, load_runtime
from runs import Timed, this_machine, timed_generate

DIRECTORY = Path(__file__).parents[1] / "docs" / "results"
FORMATS = "fp32,bf16,int8,int8-g32,int4-g128,int4-g64,int4-g32,int4-g32-zp,gguf"
PROMPT_TOKENS, OUTPUT_TOKENS = 512, 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--formats", default=FORMATS)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    runtimes = {name: _load(arguments.model, name) for name in arguments.formats.split(",")}
    timed = measure(runtimes, arguments.rounds)
    model = next(iter(runtimes.values())).name
    text = (
        "# What a number format gives and costs\n\n"
        f"Written by `benchmarks/quantization.py`: {model}, {this_machine()}.\n"
        f"TTFT of {PROMPT_TOKENS} prompt tokens and TPOT over the {OUTPUT_TOKENS} after them, one sequence, medians of "
        f"{arguments.rounds} rounds in which the\nformats take turns. Quality is against fp32, from `quality.md`.\n\n"
        "| format | weights, MB | perplexity | mean KL | TTFT, ms | TPOT, ms | TPOT against bf16 |\n"
        "|---|---|---|---|---|---|---|\n"
        + "\n".join(_row(name, runtimes[name], timed, quality_of(model, name)) for name in runtimes)
        + "\n"
    )
    (DIRECTORY / "quantization.md").write_text(text)
    print(text)


def _load(model: str, name: str) -> ModelRuntime:
    print(f"loading {name}", file=sys.stderr)
    context = 2 * (PROMPT_TOKENS + OUTPUT_TOKENS)
    return load_runtime(model, dataclasses.replace(parse_format(name), context=context), num_sampler_slots=1)


def measure(runtimes: dict[str, ModelRuntime], rounds: int) -> dict[str, list[Timed]]:
    """The first round touches the memory and does not count."""
    timed: dict[str, list[Timed]] = {name: [] for name in runtimes}
    whole_prompts = EngineConfig(max_batch_tokens=PROMPT_TOKENS, max_requests=1)
    for seed in range(rounds + 1):
        for name, runtime in runtimes.items():
            prompt = np.random.default_rng(seed).integers(1000, runtime.spec.vocab_size, PROMPT_TOKENS).tolist()
            timed[name].append(timed_generate(runtime, prompt, OUTPUT_TOKENS, whole_prompts))
        print(f"round {seed} of {rounds}", file=sys.stderr)
    return {name: runs[1:] for name, runs in timed.items()}


def quality_of(model: str, name: str) -> tuple[str, str]:
    """Perplexity against fp32 and mean KL, as stored; dashes for what was not measured."""
    path = DIRECTORY / "quality.json"
    rows = json.loads(path.read_text()).get(model, {}).get("rows", {}) if path.exists() else {}
    if name not in rows:
        return "-", "-"
    change = relative_perplexity(rows[name]["nll"], rows["fp32"]["nll"])
    # rounding can leave fp32's own divergence a hair below 0
    return f"{change.value:+.2%} ± {change.error:.2%}", f"{abs(mean(rows[name]['kl']).value):.5f}"


def _row(name: str, runtime: ModelRuntime, timed: dict[str, list[Timed]], quality: tuple[str, str]) -> str:
    ttft = np.median([run.ttft_s for run in timed[name]])
    tpot = np.median([run.tpot_s() for run in timed[name]])
    gain = f"{np.median([run.tpot_s() for run in timed['bf16']]) / tpot:.2f} x" if "bf16" in timed else "-"
    return (
        f"| {name} | {runtime.executor.weight_bytes / 1e6:,.1f} | {quality[0]} | {quality[1]} "
        f"| {ttft * 1e3:.1f} | {tpot * 1e3:.1f} | {gain} |"
    )


if __name__ == "__main__":
    main()
