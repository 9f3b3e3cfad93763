"""Runs and what follows from them: medians, the best setting, the best peer. Pure functions on the JSON of a file.

A run is one part for one model with some engines in turns:

    {"model": "smollm2", "part": "decode", "rounds": 5, "machine": "...", "ceilings": "...",
     "engines": {name: {"title": "llama.cpp Q8_0", "bits": 8, "is_peer": true, "version": "..."}},
     "floors": {name: {case: value}},
     "samples": {name: {setting: {case: [value, ...]}}},
     "notes": ["..."],
     "sizes": [128],  where only cases of these were measured
     "isa": "avx2",  where all engines were kept to an instruction set below the machine's
     "unfinished": true}  while rounds are still to come

Ratios are taken within a run only: what two runs found is not comparable on a machine that is shared.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peerlib.cases import CASES, Case

Run = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """The median of `count` samples with an engine's best setting, in the case's unit."""

    value: float
    setting: str
    count: int


@dataclass(frozen=True)
class Comparison:
    """One of our formats beside the best peer of the same run; `peer` None: no run had one to compare with."""

    case: Case
    ours: str  # title
    bits: int
    figure: Figure
    floor: float | None
    peer: str | None = None
    peer_figure: Figure | None = None

    @property
    def ratio(self) -> float | None:
        return self.case.ratio(self.figure.value, self.peer_figure.value) if self.peer_figure else None

    @property
    def target(self) -> float | None:
        return dict(self.case.target).get(self.bits)

    @property
    def floor_share(self) -> float | None:
        """How close to the floor: 1 is at it."""
        return self.case.ratio(self.figure.value, self.floor) if self.floor else None


def isa_of(run: Run) -> str:
    """The instruction set that engines were kept to; "": the machine's best."""
    return str(run.get("isa", ""))


def load(path: Path) -> list[Run]:
    return list(json.loads(path.read_text())["runs"]) if path.exists() else []


def record(path: Path, run: Run) -> list[Run]:
    """Adds `run` to the file and returns all that it then holds: what other processes added meanwhile stays."""
    with _locked(path.parent):
        runs = merged(load(path), run)
        save(path, runs)
    return runs


def save(path: Path, runs: Sequence[Run]) -> None:
    """Whoever is killed here leaves the old file or the new one."""
    making = path.with_suffix(".making")
    making.write_text(json.dumps({"runs": runs}, indent=1) + "\n")
    making.replace(path)


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def merged(runs: Sequence[Run], run: Run) -> list[Run]:
    """`run` at the end, in place of an earlier one of the same part, sizes, model, instruction set and engines.

    An unfinished one replaces none that was finished: it may never be.
    """
    return [other for other in runs if not _replaces(run, other)] + [run]


def _replaces(run: Run, other: Run) -> bool:
    return _identity(run) == _identity(other) and ("unfinished" not in run or "unfinished" in other)


def _identity(run: Run) -> tuple[Any, ...]:
    return (run["model"], run["part"], isa_of(run), run.get("sizes"), sorted(run["engines"]))


def figures(run: Run) -> dict[str, dict[str, Figure]]:
    """By engine and case."""
    found: dict[str, dict[str, Figure]] = {}
    for engine, settings in run["samples"].items():
        for setting, samples in settings.items():
            for case, values in samples.items():
                figure = Figure(statistics.median(values), setting, len(values))
                other = found.setdefault(engine, {}).get(case)
                if other is None or CASES[case].ratio(figure.value, other.value) > 1:
                    found[engine][case] = figure
    return found


def latest(runs: Sequence[Run], model: str) -> dict[str, dict[str, Figure]]:
    """By engine and case, from the last run that has it."""
    found: dict[str, dict[str, Figure]] = {}
    for run in runs:
        if run["model"] == model:
            for engine, cases in figures(run).items():
                found.setdefault(engine, {}).update(cases)
    return found


def comparisons(runs: Sequence[Run], model: str) -> list[Comparison]:
    """One for each case and format of ours, by case: from the run whose peer leaves us the smallest ratio."""
    found: dict[tuple[str, str], Comparison] = {}
    for run in runs:
        if run["model"] != model:
            continue
        for comparison in _within(run):
            key = (comparison.case.key, comparison.ours)
            if key not in found or _leaves_less(comparison, found[key]):
                found[key] = comparison
    order = list(CASES)
    return sorted(found.values(), key=lambda comparison: order.index(comparison.case.key))


def _leaves_less(one: Comparison, other: Comparison) -> bool:
    """Without a peer: the later run."""
    if one.ratio is None or other.ratio is None:
        return other.ratio is None
    return one.ratio < other.ratio


def _within(run: Run) -> list[Comparison]:
    engines, found = run["engines"], figures(run)
    result = []
    for name, facts in engines.items():
        if facts["is_peer"]:
            continue
        for key, figure in found.get(name, {}).items():
            case = CASES[key]
            rivals = {
                other: found[other][key]
                for other, rival in engines.items()
                if rival["is_peer"] and key in found.get(other, {}) and _comparable(case, facts, rival)
            }
            best = min(rivals, key=lambda other: case.ratio(figure.value, rivals[other].value), default=None)
            result.append(
                Comparison(
                    case, facts["title"], facts["bits"], figure, run["floors"].get(name, {}).get(key),
                    None if best is None else engines[best]["title"], None if best is None else rivals[best],
                )
            )  # fmt: skip
    return result


def _comparable(case: Case, ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    return not case.same_bits or ours["bits"] == theirs["bits"]
