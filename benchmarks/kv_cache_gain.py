"""What the KV cache saves: 256 tokens with it and without. Writes docs/results/kv_cache_gain.md.

Without, every token computes the whole sequence anew (`--no-kv-cache`), so its time grows with the sequence and the
total with its square. The tokens must be the same, or nothing is written. Both take turns; figures are medians. Four
minutes with SmolLM2 on two cores.

    .venv/bin/python benchmarks/kv_cache_gain.py [MODEL] [--dtype DTYPE ...] [--rounds N]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from ridgeline.config import EngineConfig, ModelConfig
from ridgeline.model.resolve import resolve_model
from ridgeline.model.runtime import load_runtime
from runs import Timed, this_machine, timed_generate

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "kv_cache_gain.md"
PROMPT_TOKENS, OUTPUT_TOKENS = 64, 256
STRETCH = 32  # tokens over which a time per token is averaged
MODES = {
    mode: EngineConfig(kv_cache=kept, max_requests=1, max_batch_tokens=PROMPT_TOKENS + OUTPUT_TOKENS)
    for mode, kept in (("with", True), ("without", False))
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--dtype", nargs="+", default=["fp32", "bf16", "int8"])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    lines = [line for dtype in arguments.dtype for line in measure(arguments.model, dtype, arguments.rounds)]
    text = (
        "# What the KV cache saves\n\n"
        f"Written by `benchmarks/kv_cache_gain.py`: {resolve_model(arguments.model).name}, {this_machine()}.\n"
        f"A prompt of {PROMPT_TOKENS} tokens and {OUTPUT_TOKENS} greedy ones, the same with and without "
        f"(`--no-kv-cache`). Medians of {arguments.rounds} rounds in which\nboth take turns; a time per token is the "
        f"mean over {STRETCH} tokens.\n\n"
        "| format | KV cache | 256 tokens, s | first token, ms | per token at the start, ms | at the end, ms | gain |\n"
        "|---|---|---|---|---|---|---|\n" + "\n".join(lines) + "\n"
    )
    RESULTS.write_text(text)
    print(text)


def measure(model: str, dtype: str, rounds: int) -> list[str]:
    config = ModelConfig(dtype=dtype, context=2 * (PROMPT_TOKENS + OUTPUT_TOKENS))
    runtime = load_runtime(model, config, num_sampler_slots=1)
    prompt = np.random.default_rng(0).integers(1000, runtime.spec.vocab_size, PROMPT_TOKENS).tolist()
    found: dict[str, list[Timed]] = {mode: [] for mode in MODES}
    for number in range(rounds):
        for mode, engine in MODES.items():
            found[mode].append(run := timed_generate(runtime, prompt, OUTPUT_TOKENS, engine))
            print(f"{dtype}, round {number + 1} of {rounds}, {mode}: {run.seconds[-1]:.1f} s", file=sys.stderr)
    runtime.close()
    sequences = {tuple(run.token_ids) for runs in found.values() for run in runs}
    if len(sequences) > 1:
        raise SystemExit(f"{dtype}: the tokens with and without KV cache differ; no time of theirs compares")
    totals = {mode: float(np.median([run.seconds[-1] for run in runs])) for mode, runs in found.items()}
    gain = {"with": f"{totals['without'] / totals['with']:.1f} x", "without": ""}
    return [_row(dtype, mode, found[mode], gain[mode]) for mode in MODES]


def _row(dtype: str, mode: str, runs: list[Timed], gain: str) -> str:
    total = np.median([run.seconds[-1] for run in runs])
    first = np.median([run.ttft_s for run in runs])
    start = np.median([run.tpot_s(0, STRETCH) for run in runs])
    end = np.median([run.tpot_s(OUTPUT_TOKENS - 1 - STRETCH) for run in runs])
    return f"| {dtype} | {mode} | {total:.2f} | {first * 1e3:.1f} | {start * 1e3:.1f} | {end * 1e3:.1f} | {gain} |"


if __name__ == "__main__":
    main()
