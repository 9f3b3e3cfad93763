"""How long `ridgeline serve` takes from the process's start to its first 200 of /health: writes docs/results/start.md.

    python benchmarks/start.py [--rounds 5] [--model MODEL [MODEL ...]] [--dtype FMT]

Every start is a process of its own; the ways to start take turns: with the packed file in the page cache, with it on
the disk only (dropped from the page cache before), and packing anew (--no-packed-file). A `config.json` runs on random
weights: making those takes most of its packing, which is therefore measured once. Beside the medians stands what cannot
be avoided: an interpreter that does nothing, and the packed file's bytes at the bandwidth of the memory, or of the disk
as a plain read of the file takes it in the same round. Processor time, of all threads, is what a busy machine leaves
comparable. Peak memory is VmHWM, mapped weights included. Bytecode is compiled before the first round, as in an
installed package.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

from ridgeline import __version__
from ridgeline.cost.bandwidth import read_bandwidth
from ridgeline.cost.cores import usable_cores

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results" / "start.md"
MODELS = ("smollm2-135m", "tests/golden/configs/Qwen3-0.6B/config.json")
MIB = 1 << 20


@dataclass
class Starts:
    """What was measured of one way to start."""

    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    floors_s: list[float] = field(default_factory=list)


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory() as directory:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = f"{directory}/bytecode"
        lines = []
        for model in options.model:
            lines += _measure(model, options, Path(directory) / "packed", environment)
    text = (
        "# From the process's start to the first healthy answer\n\n"
        f"Written by `benchmarks/start.py`: ridgeline {__version__}, {platform.machine()}, {usable_cores()} threads, "
        f"Python {platform.python_version()}, load average {os.getloadavg()[1]:.0f}. "
        f"Medians of {options.rounds} rounds in which the ways to start take turns; the machine is shared: compare "
        "rows, not days. The floor is an interpreter that does nothing and one reading of the packed file.\n\n"
        "| model | start | s | of the processor, s | floor, s | peak RSS, MiB | beyond the weights, MiB |\n"
        "|---|---|---|---|---|---|---|\n" + "\n".join(lines) + "\n"
    )
    RESULTS.write_text(text)
    print(text)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", nargs="+", default=list(MODELS))
    parser.add_argument("--dtype", default="auto")
    return parser.parse_args()


def _measure(model: str, options: argparse.Namespace, packed: Path, environment: dict[str, str]) -> list[str]:
    arguments = [str(ROOT / model) if model.endswith(".json") else model, "--dtype", options.dtype]
    arguments += ["--weights", "random"] if model.endswith(".json") else []
    keep = [*arguments, "--packed-dir", str(packed)]
    _start(keep, environment)  # packs, and compiles the bytecode
    file = max(packed.iterdir(), key=lambda path: path.stat().st_mtime)
    size = file.stat().st_size
    warm, cold, anew = Starts(), Starts(), Starts()
    for number in range(options.rounds):
        nothing_s = _seconds_of([sys.executable, "-c", "pass"], environment)
        if number == 0 or not model.endswith(".json"):
            _add(anew, _start([*arguments, "--no-packed-file"], environment), nothing_s)
        _read(file)
        _add(warm, _start(keep, environment), nothing_s + size / read_bandwidth(size, seconds=0.5))
        _drop(file)
        disk_s = _read(file)
        _drop(file)
        _add(cold, _start(keep, environment), nothing_s + disk_s)
    name = f"{Path(model).parent.name if model.endswith('.json') else model}, {size / 1e9:.2f} GB packed"
    ways = (("packed file in the page cache", warm), ("packed file on the disk", cold), ("packing anew", anew))
    return [_row(name, way, starts, size) for way, starts in ways]


def _row(model: str, way: str, starts: Starts, size: int) -> str:
    times = " | ".join(f"{statistics.median(x):.2f}" for x in (starts.seconds, starts.cpu_s, starts.floors_s))
    beyond = (starts.peak_bytes - size) / MIB
    return f"| {model} | {way} | {times} | {starts.peak_bytes / MIB:,.0f} | {beyond:,.0f} |"


def _add(starts: Starts, measured: tuple[float, float, int], floor_s: float) -> None:
    seconds, cpu_s, peak_bytes = measured
    starts.seconds.append(seconds)
    starts.cpu_s.append(cpu_s)
    starts.peak_bytes = max(starts.peak_bytes, peak_bytes)
    starts.floors_s.append(floor_s)


def _start(arguments: Sequence[str], environment: dict[str, str]) -> tuple[float, float, int]:
    """Seconds until the server is healthy, the processor time spent on it, and its peak memory then, in bytes."""
    command = [sys.executable, "-m", "ridgeline.cli", "serve", *arguments, "--port", "0", "--json"]
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit("the server did not start")
        with urlopen(json.loads(line)["url"].removesuffix("/v1") + "/health") as answer:
            assert answer.status == 200
        seconds = time.perf_counter() - started
        of_process = Path(f"/proc/{process.pid}")
        status = (of_process / "status").read_text()
        ticks = (of_process / "stat").read_text().rpartition(")")[2].split()  # from the third field on
        process.terminate()
    [peak_kib] = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")]
    return seconds, sum(map(int, ticks[11:13])) / os.sysconf("SC_CLK_TCK"), peak_kib * 1024


def _seconds_of(command: Sequence[str], environment: dict[str, str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, env=environment)
    return time.perf_counter() - started


def _read(path: Path) -> float:
    """Seconds of a plain read of the whole file."""
    started, buffer = time.perf_counter(), bytearray(8 * MIB)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return time.perf_counter() - started


def _drop(path: Path) -> None:
    """Out of the page cache."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    main()
