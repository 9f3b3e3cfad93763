"""Decoding on a machine that others use: tokens/s beside the fair share of its processor time.

    .venv/bin/python benchmarks/busy.py [MODEL] [--dtypes int8,bf16] [--batches 1] [--burners 0,1,2,4] [--nice 10]
                                        [--seconds 4] [--rounds 3] [--twins]

Writes docs/results/busy.md. A burner is a process that keeps a core busy in its registers, started and ended here. The
fair share is what a scheduler without any grain would give our threads: to every thread a part of the cores in
proportion to its weight, to none more than a core. `fair` says how much of our threads' full time that is: tokens/s of
the quiet machine times `fair` is what a process has left that loses nothing to itself, and `of fair` is tokens/s over
that. `got` is the processor time that this process had, in cores. `others` is what neither of us had, the hypervisor's
part included: a round with much of it says little. `--twins`: also two of us at once, by themselves.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from ridgeline.config import EngineConfig, ModelConfig
from ridgeline.cost.cores import usable_cores
from ridgeline.engine.loop import Engine
from ridgeline.engine.request import Delta, Request, SamplingParams
from ridgeline.model.runtime import ModelRuntime, load_runtime
from runs import this_machine

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "busy.md"
BURN = "import os\nwhile os.getppid() == {parent}:\n    for _ in range(1_000_000): pass"
PROMPT_TOKENS, OUTPUT_TOKENS = 32, 96  # of a request; another follows it at once, so that contexts stay the same
NICE_STEP = 1.25  # between the weights of two neighbouring niceness values: sched(7)
HEADINGS = ("step", "burners", "tokens/s", "fair", "of fair", "got", "others", "longest step, ms")
WARM_S = 0.5  # with the burners, before anything is counted


@dataclass(frozen=True)
class Load:
    burners: int
    nice: int

    @property
    def name(self) -> str:
        return f"{self.burners}, nice {self.nice}" if self.nice else f"{self.burners}"


class Round(NamedTuple):
    tokens_per_s: float
    longest_step_s: float
    cores: float  # processor time over wall time
    others: float  # the same, of all but us and the burners


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--dtypes", default="int8,bf16")
    parser.add_argument("--batches", default="1")
    parser.add_argument("--burners", default="0,1,2,4")
    parser.add_argument("--nice", type=int, default=10, help="of the burners of the second half; 0: no such half")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--twins", action="store_true")
    arguments = parser.parse_args()
    counts = [int(count) for count in arguments.burners.split(",")]
    loads = [Load(count, nice) for nice in sorted({0, arguments.nice}) for count in counts if count or not nice]
    lines = []
    for dtype in arguments.dtypes.split(","):
        config = ModelConfig(dtype=dtype, context=1024, kv_memory=1 << 28, threads=arguments.threads)
        runtime = load_runtime(arguments.model, config)
        for batch in (int(batch) for batch in arguments.batches.split(",")):
            rounds: dict[Load, list[Round]] = defaultdict(list)
            for _ in range(arguments.rounds):
                for load in loads:
                    with burning(load) as burners:
                        rounds[load].append(measure(runtime, batch, arguments.seconds, burners))
            threads = arguments.threads or usable_cores()
            lines += list(rows(f"{dtype}, batch {batch}", rounds, threads))
        runtime.close()
        if arguments.twins:
            quiet = statistics.median(r.tokens_per_s for r in rounds[loads[0]])
            for twin in twins(arguments.model, config, batch, arguments.seconds):
                lines.append(row(f"{dtype}, batch {batch}", "another of us", twin, quiet, 0.5))
    text = (
        "# Decoding beside processes that burn a core each\n\n"
        f"Written by `benchmarks/busy.py`: {arguments.model}, {this_machine()}.\nRequests of {PROMPT_TOKENS} tokens in "
        f"and {OUTPUT_TOKENS} out, one after another; medians of {arguments.rounds} rounds of {arguments.seconds:g} s "
        "in which the loads take turns.\n`fair`: what proportional sharing would leave of our threads' time; `of fair`:"
        " tokens/s over the quiet machine's times that; `got` and\n`others`: processor time over wall time, in cores, "
        "of this process, and of all but it and the burners.\n\n"
        f"| {' | '.join(HEADINGS)} |\n{'|---' * len(HEADINGS)}|\n" + "\n".join(lines) + "\n"
    )
    RESULTS.write_text(text)
    print(text)


def rows(step: str, rounds: dict[Load, list[Round]], threads: int) -> Iterator[str]:
    medians = {load: Round(*map(statistics.median, zip(*measured, strict=True))) for load, measured in rounds.items()}
    quiet = next(iter(medians.values())).tokens_per_s
    for load, median in medians.items():
        yield row(step, load.name, median, quiet, fair_share(usable_cores(), threads, load))


def row(step: str, load: str, median: Round, quiet: float, fair: float) -> str:
    return (
        f"| {step} | {load} | {median.tokens_per_s:.1f} | {fair:.2f} | {median.tokens_per_s / quiet / fair:.2f} "
        f"| {median.cores:.2f} | {median.others:.2f} | {median.longest_step_s * 1e3:.0f} |"
    )


def twins(model: str, config: ModelConfig, batch: int, seconds: float) -> list[Round]:
    """Two processes that decode at the same time."""
    spawn = multiprocessing.get_context("spawn")
    start, results = spawn.Barrier(2), spawn.SimpleQueue()
    both = [spawn.Process(target=_twin, args=(model, config, batch, seconds, start, results)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join()
    return [Round(*results.get()) for _ in both]


def _twin(model: str, config: ModelConfig, batch: int, seconds: float, start: Any, results: Any) -> None:
    runtime = load_runtime(model, config)
    start.wait()
    results.put(tuple(measure(runtime, batch, seconds, [])))


def fair_share(cores: int, threads: int, load: Load) -> float:
    """Of each of our threads' time: cores by weight, and what a thread cannot use goes to the others."""
    weight = NICE_STEP**-load.nice
    weights, left = sorted([1.0] * threads + [weight] * load.burners, reverse=True), float(cores)
    for i, heaviest in enumerate(weights):
        per_weight = left / sum(weights[i:])
        if per_weight * heaviest <= 1:
            return min(1.0, per_weight)
        left -= 1
    return 1.0


@contextlib.contextmanager
def burning(load: Load) -> Iterator[list[psutil.Process]]:
    """They also end when this process does."""
    command = ["nice", "-n", str(load.nice), sys.executable, "-c", BURN.format(parent=os.getpid())]
    burners = [psutil.Popen(command) for _ in range(load.burners)]
    try:
        yield burners
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def measure(runtime: ModelRuntime, batch: int, seconds: float, burners: list[psutil.Process]) -> Round:
    """`batch` requests at any time, for `seconds` after a short start."""
    engine = Engine(
        runtime.executor, runtime.tokenizer, EngineConfig(max_requests=batch), context_len=runtime.context_len
    )
    params = SamplingParams(temperature=0.0, max_tokens=OUTPUT_TOKENS, ignore_eos=True)
    num_tokens, free, serial = 0, list(range(batch)), 0

    def sink(delta: Delta) -> None:
        nonlocal num_tokens
        num_tokens += len(delta.token_ids)
        if delta.finish_reason is not None:
            free.append(0)

    def run(until_s: float) -> float:
        nonlocal serial
        longest = 0.0
        while (start := time.perf_counter()) < until_s:
            for _ in range(len(free)):
                free.pop()
                serial += 1
                prompt = [1000 + (serial * 31 + i * 7) % 40_000 for i in range(PROMPT_TOKENS)]
                engine.submit(Request(str(serial), prompt, params, sink))
            engine.step(looks_ahead=True)
            longest = max(longest, time.perf_counter() - start)
        return longest

    run(time.perf_counter() + WARM_S)
    tokens_before, busy_before, start = num_tokens, busy_times(burners), time.perf_counter()
    longest = run(start + seconds)
    wall, tokens = time.perf_counter() - start, num_tokens - tokens_before
    own, burnt, all_ = ((now - before) / wall for now, before in zip(busy_times(burners), busy_before, strict=True))
    engine.shutdown(0.0)
    return Round(tokens / wall, longest, own, all_ - own - burnt)


def busy_times(burners: list[psutil.Process]) -> tuple[float, float, float]:
    """Processor time so far, in seconds: this process's, the burners', and all that was not idle."""
    own, machine = psutil.Process().cpu_times(), psutil.cpu_times()
    burnt = sum(sum(burner.cpu_times()[:2]) for burner in burners)
    return own.user + own.system, burnt, sum(machine[:8]) - machine.idle - machine.iowait


if __name__ == "__main__":
    main()
