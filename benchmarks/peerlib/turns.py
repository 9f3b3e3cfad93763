"""An engine's turn in a round, for every part: what is started once, what is asked each time."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from peerlib.cases import CASES, Case, cases_of
from peerlib.engines import Driver, Engine, Setup, Worker, running
from peerlib.servers import Server, load, peak_rss_mib, serving

_WORSE = 0.9  # a setting below this share of the engine's best one takes no more turns

Taken = tuple[dict[str, float], list[str]]  # figures by case; notes
Samples = Mapping[str, Mapping[str, Sequence[float]]]  # by setting and case


@dataclass(frozen=True)
class Turn:
    """`take(seed, cases)` measures once."""

    engine: Engine
    setting: str
    version: str
    cases: tuple[Case, ...]
    take: Callable[[int, Sequence[Case]], Taken]


def turns_of(part: str, setup: Setup, engine: Engine, stack: ExitStack, sizes: Sequence[int] = ()) -> list[Turn]:
    """One per setting; what they started stands until `stack` is closed. Empty: this engine has no such part.

    `sizes`: only the cases of these sizes, if any are given.
    """
    make = {"http": _http_turn, "start": _start_turn}.get(part, _worker_turn)
    if part == "http" and not engine.has_server:
        return []
    cases = tuple(case for case in cases_of(part) if not sizes or case.size in sizes)
    return [make(setup, engine, setting, options, cases, stack) for setting, options in engine.settings.items()]


def going_on(turn: Turn, samples: Samples) -> list[Case]:
    """The cases in which the turn's setting is not far behind another of the same engine."""
    return [case for case in turn.cases if not _is_behind(case, turn.setting, samples)]


def _is_behind(case: Case, setting: str, samples: Samples) -> bool:
    medians = {name: statistics.median(cases[case.key]) for name, cases in samples.items() if case.key in cases}
    return setting in medians and any(case.ratio(medians[setting], other) < _WORSE for other in medians.values())


def _worker_turn(
    setup: Setup, engine: Engine, setting: str, options: dict[str, str], cases: tuple[Case, ...], stack: ExitStack
) -> Turn:
    driver = stack.enter_context(running(setup, engine, options))
    return Turn(engine, setting, setup.version(engine), cases, lambda seed, wanted: _ask(engine, driver, seed, wanted))


def _ask(engine: Engine, driver: Driver, seed: int, cases: Sequence[Case]) -> Taken:
    values, notes = {}, []
    for case in cases:
        try:
            values[case.key] = driver.ask(case, seed)
        except RuntimeError as error:
            notes.append(f"{engine.title}, {case.label}: {error}")
    return values, notes


def _http_turn(
    setup: Setup, engine: Engine, setting: str, options: dict[str, str], cases: tuple[Case, ...], stack: ExitStack
) -> Turn:
    server = stack.enter_context(serving(setup, engine, options))
    return Turn(engine, setting, setup.version(engine), cases, lambda seed, wanted: _load(setup, server, seed))


def _load(setup: Setup, server: Server, seed: int) -> Taken:
    values, reasons = load(setup, server, seed)
    notes = [f"{server.engine.title}, HTTP: the load test calls itself invalid: {reason}" for reason in reasons]
    return values | {"peak-rss": server.peak_rss_mib()}, notes


def _start_turn(
    setup: Setup, engine: Engine, setting: str, options: dict[str, str], cases: tuple[Case, ...], stack: ExitStack
) -> Turn:
    def take(seed: int, wanted: Sequence[Case]) -> Taken:
        if engine.has_server:
            with serving(setup, engine, options) as server:
                return {"ready": server.ready_s}, []
        with running(setup, engine, options) as worker:  # no server: the library alone, asked once for its memory
            assert isinstance(worker, Worker)
            worker.ask(CASES["decode-128"], seed)
            return {"ready": worker.ready_s, "peak-rss": peak_rss_mib(worker.process.pid)}, []

    return Turn(engine, setting, setup.version(engine), cases, take)
