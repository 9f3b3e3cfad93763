"""Counts the instructions that a weight costs on each arm64 path, under qemu: an estimate of speed, and none of time.

    .venv/bin/python benchmarks/arm64_instructions.py

One row is a decode step's product, eight rows a prompt's; per weight and row. The difference between a program that
takes a product twice and one that takes it once, so that nothing else counts. Wants what `make test-arm64` wants.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "arm64"
PROGRAM = BUILD / "instructions"
PATHS = ["generic", "neon", "neondot", "i8mm"]
FORMATS = ["fp32", "bf16", "int8", "int4-g32", "q4_k", "q6_k"]
ROWS = [1, 8]
OUTPUTS, INNER = 64, 1024


def main() -> None:
    subprocess.run([sys.executable, ROOT / "tools" / "arm64.py", "--build"], check=True)
    compiler = ["aarch64-linux-gnu-g++", "-std=c++20", "-O2", "-static", ROOT / "benchmarks" / "arm64_instructions.cpp"]
    subprocess.run(
        [
            *compiler,
            ROOT / "native" / "throughput.cpp",
            BUILD / "cmake" / "native" / "libridgeline_core.a",
            "-o",
            PROGRAM,
        ],
        check=True,
    )
    print("| instructions per weight and row | " + " | ".join(PATHS) + " |")
    print("|---|" + "---|" * len(PATHS))
    for rows in ROWS:
        for number_format in FORMATS:
            counts = [per_weight(path, number_format, rows) for path in PATHS]
            print(
                f"| {number_format}, {rows} row{'s' * (rows > 1)} | "
                + " | ".join(f"{count:.3f}" for count in counts)
                + " |"
            )


def per_weight(path: str, number_format: str, rows: int) -> float:
    once, twice = (executed(path, number_format, rows, count) for count in (1, 2))
    return (twice - once) / (rows * OUTPUTS * INNER)


def executed(path: str, number_format: str, rows: int, count: int) -> int:
    """Instructions of the whole program: each is a block of its own, and a line of qemu's log."""
    emulator = ["qemu-aarch64", "-cpu", "max", "-singlestep", "-d", "exec,nochain"]
    command = [*emulator, PROGRAM, path, number_format, *(str(size) for size in (rows, OUTPUTS, INNER, count))]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        return sum(line.startswith(b"Trace") for line in process.stderr)


if __name__ == "__main__":
    main()
