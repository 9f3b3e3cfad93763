"""How long `ridgeline plan qwen3-0.6b --hardware h100-sxm` takes, beside an interpreter that does nothing.

Both are run in turns, so that a noisy machine slows both; printed are the medians and what the command imported.

    python benchmarks/plan_startup.py [--runs 15]
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time

PLAN = ["-m", "ridgeline.cli", "plan", "qwen3-0.6b", "--hardware", "h100-sxm"]
NOTHING = ["-c", "pass"]
HEAVY = ("torch", "transformers", "numpy", "tokenizers", "starlette")
LISTING = (
    "import sys; from ridgeline.cli import main; main(sys.argv[1:]); "
    "print(*sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
)


def seconds(arguments: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    runs = parser.parse_args().runs
    seconds(PLAN)  # compiles what is not yet compiled
    pairs = [(seconds(NOTHING), seconds(PLAN)) for _ in range(runs)]
    nothing, plan = (statistics.median(column) for column in zip(*pairs, strict=True))
    listing = subprocess.run(
        [sys.executable, "-c", LISTING, *PLAN[2:]],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    heavy = sorted(set(HEAVY) & set(listing.stderr.split()))
    print(f"machine      {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(f"plan         {plan:.3f} s, median of {runs} (least {min(p for _, p in pairs):.3f} s)")
    print(f"interpreter  {nothing:.3f} s")
    print(f"heavy        {', '.join(heavy) or 'none'} of {', '.join(HEAVY)}")


if __name__ == "__main__":
    main()
