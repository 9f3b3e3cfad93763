"""Every op of a step beside its roofline: writes docs/results/kernels.md.

    .venv/bin/python benchmarks/kernels.py [MODEL] [--random] [--dtypes bf16,int8,int4] [--rounds 7]

The steps are those of `speed.py`, and the executor times its own ops, as `ridgeline serve --profile` has it do. The
ceilings are measured in the same run. An op's time is that of all its calls, in all layers and rounds.
`--random`: MODEL is a config.json alone and gets random weights; written to docs/results/kernels_random.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from peerlib.floors import describe, measure_ceilings
from ridgeline.cli.profile_view import HEADINGS, profile_cells
from ridgeline.config import ModelConfig
from ridgeline.cost.hardware import Hardware
from ridgeline.model.resolve import resolve_model
from ridgeline.model.runtime import load_runtime
from runs import this_machine
from speed import make_cases

RESULTS = Path(__file__).parents[1] / "docs" / "results"
CONTEXT = 4096
KV_BYTES = 3 << 29  # room for all cases, as in `speed.py`


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--random", action="store_true")
    parser.add_argument("--dtypes", default="bf16,int8,int4")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    hardware = measure_ceilings()
    named = f"{resolve_model(arguments.model).name}{' with random weights (speed only)' if arguments.random else ''}"
    lines = [
        "# Every op beside its roofline",
        "",
        f"Written by `benchmarks/kernels.py`: {named}, {this_machine()}; {arguments.rounds} rounds.",
        f"Ceilings, measured in the same run: {describe(hardware)}; `floor / time` is the share of the roofline.",
        "Products count their weights, attention K and V, other ops what they pass on. Times are those that the first",
        "thread sees.",
    ]
    weights = "random" if arguments.random else "checkpoint"
    for dtype in arguments.dtypes.split(","):
        config = ModelConfig(dtype=dtype, weights=weights, context=CONTEXT, kv_memory=KV_BYTES)
        lines += measure_format(arguments.model, config, arguments.rounds, hardware)
    (RESULTS / ("kernels_random.md" if arguments.random else "kernels.md")).write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def measure_format(model: str, config: ModelConfig, rounds: int, hardware: Hardware) -> Iterator[str]:
    """A table per case. The first round touches the memory and is not counted."""
    runtime = load_runtime(model, config)
    executor = runtime.executor
    for case in make_cases(executor, runtime.spec.vocab_size):
        executor.submit(case.plan).wait()
        profile = executor.profile()
        for _ in range(rounds):
            executor.submit(case.plan).wait()
        print(f"{config.dtype}, {case.name}: {profile.seconds / rounds * 1e3:.1f} ms", file=sys.stderr)
        yield from ("", f"## {config.dtype}, {case.name}: {profile.seconds / rounds * 1e3:.1f} ms a step", "")
        yield f"| {' | '.join(HEADINGS)} |"
        yield "|---" * len(HEADINGS) + "|"
        for cells in profile_cells(profile, hardware):
            yield f"| {' | '.join(cells)} |"
    runtime.close()


if __name__ == "__main__":
    main()
