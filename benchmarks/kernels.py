"""Every op of a step beside its roofline: writes docs/results/kernels.md.

    .venv/bin/python benchmarks/kernels.py [MODEL] [--dtypes bf16,int8,int4] [--rounds 7]

The steps are those of `speed.py`, and the executor times its own ops, as `ridgeline serve --profile` has it do. The
ceilings are those of `ridgeline probe`: run it first. An op's time is that of all its calls, in all layers and rounds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from ridgeline import _native
from ridgeline.cli.profile_view import HEADINGS, profile_cells
from ridgeline.config import ModelConfig
from ridgeline.cost.ask import choose_hardware
from ridgeline.cost.hardware import Hardware
from ridgeline.model.runtime import load_runtime
from speed import make_cases

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "kernels.md"
CONTEXT = 4096


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--dtypes", default="bf16,int8,int4")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    hardware = choose_hardware("this")
    command = f"benchmarks/kernels.py --dtypes {arguments.dtypes} --rounds {arguments.rounds}"
    lines = [
        "# Every op beside its roofline",
        "",
        f"Written by `{command}`: {arguments.model}, ISA path {_native.isa()}.",
        "Products count their weights, attention K and V, other ops what they pass on. Times are those that the first",
        "thread sees; `floor / time` is the share of the roofline, with the ceilings of `ridgeline probe`.",
    ]
    for dtype in arguments.dtypes.split(","):
        lines += measure_format(arguments.model, dtype, arguments.rounds, hardware)
    RESULTS.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def measure_format(model: str, dtype: str, rounds: int, hardware: Hardware | None) -> Iterator[str]:
    """A table per case. The first round touches the memory and is not counted."""
    config = ModelConfig(dtype=dtype, context=CONTEXT, kv_memory=1 << 30)
    runtime = load_runtime(model, config)
    executor = runtime.executor
    for case in make_cases(executor, runtime.spec.vocab_size):
        executor.submit(case.plan).wait()
        profile = executor.profile()
        for _ in range(rounds):
            executor.submit(case.plan).wait()
        print(f"{dtype}, {case.name}: {profile.seconds / rounds * 1e3:.1f} ms", file=sys.stderr)
        yield from ("", f"## {dtype}, {case.name}: {profile.seconds / rounds * 1e3:.1f} ms a step", "")
        yield f"| {' | '.join(HEADINGS)} |"
        yield "|---" * len(HEADINGS) + "|"
        for cells in profile_cells(profile, hardware):
            yield f"| {' | '.join(cells)} |"
    runtime.close()


if __name__ == "__main__":
    main()
