"""What several commands print: loading progress on stderr, JSON on stdout."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any


def print_json(value: Any) -> None:
    """Plain ASCII, which every locale can write."""
    print(json.dumps(value), flush=True)


def tell(notices: Iterable[str]) -> None:
    """What loading decided on its own, for people at a terminal."""
    if sys.stderr.isatty():
        for notice in notices:
            print(f"note: {notice}", file=sys.stderr)


def warn(sentences: Iterable[str]) -> None:
    """What may be wrong with an answer, for people and logs alike."""
    for sentence in sentences:
        print(f"warning: {sentence}", file=sys.stderr, flush=True)


def say(sentence: str) -> None:
    """What a figure cannot be read without, wherever stderr goes."""
    print(f"note: {sentence}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def loading(*, log: bool = False, quiet: bool = False) -> Iterator[Callable[[str, float], None]]:
    """A callback for `progress(stage, done share)`: a bar when stderr is a terminal, else nothing, or with `log` a line
    per stage."""
    if quiet or not (log or sys.stderr.isatty()):
        yield lambda stage, share: None
    elif sys.stderr.isatty():
        with _bar() as callback:
            yield callback
    else:
        yield _stage_lines()


def _stage_lines() -> Callable[[str, float], None]:
    seen: set[str] = set()

    def progress(stage: str, share: float) -> None:
        if share < 1.0 and stage not in seen:
            seen.add(stage)
            print(f"{stage} ...", file=sys.stderr, flush=True)

    return progress


@contextlib.contextmanager
def _bar() -> Iterator[Callable[[str, float], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("starting", total=1.0)
        yield lambda stage, share: bars.update(task, description=stage, completed=share)
