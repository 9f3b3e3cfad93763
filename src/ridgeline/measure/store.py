"""Runs, kept: a summary each in SQLite, every request in a JSON-lines file beside it, in the user's data directory.

<data>/ridgeline/bench/runs.sqlite     one row per run: id, when, what was asked, the points
<data>/ridgeline/bench/<id>.jsonl      one line per request: the point it belongs to, its times, its token events
"""

from __future__ import annotations

import dataclasses
import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from ridgeline.errors import ConfigError
from ridgeline.measure.events import Failure, Record, TokenEvent

_SCHEMA = "CREATE TABLE IF NOT EXISTS runs (id TEXT PRIMARY KEY, started TEXT NOT NULL, summary TEXT NOT NULL)"


def data_directory() -> Path:
    home = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(home).expanduser() / "ridgeline" / "bench"


class Store:
    """Raises ConfigError when the directory cannot be written."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = data_directory() if directory is None else directory

    def save(self, summary: dict[str, Any], points: Sequence[Sequence[Record]]) -> str:
        """Its id: the time it started, which sorts; `summary` must have `started` in ISO 8601."""
        with self._connected() as database:
            run_id = self._free_id(database, summary["started"])
            with (self.directory / f"{run_id}.jsonl").open("w", encoding="utf-8") as file:
                for i, records in enumerate(points):
                    for record in records:
                        file.write(json.dumps({"point": i, **as_row(record)}) + "\n")
            row = (run_id, summary["started"], json.dumps(summary | {"id": run_id}))
            database.execute("INSERT INTO runs VALUES (?, ?, ?)", row)
        return run_id

    def runs(self) -> list[dict[str, Any]]:
        """All summaries, oldest first."""
        with self._connected() as database:
            return [json.loads(row[0]) for row in database.execute("SELECT summary FROM runs ORDER BY started, id")]

    def load(self, run_id: str) -> tuple[dict[str, Any], list[list[Record]]]:
        """Summary and records, by point. `last` is the newest run, `last-1` the one before; the start of an
        id will do. Raises ConfigError."""
        runs = {run["id"]: run for run in self.runs()}
        ids = list(runs)
        if run_id.startswith("last"):
            back = run_id.removeprefix("last").removeprefix("-") or "0"
            run_id = ids[-1 - int(back)] if back.isdigit() and int(back) < len(ids) else run_id
        matches = [run_id] if run_id in runs else [known for known in ids if known.startswith(run_id)]
        if len(matches) != 1:
            found = "is ambiguous" if matches else "is not there"
            raise ConfigError(f"run {run_id!r} {found}", hint="`ridgeline bench list` shows all; `last`, `last-1`, ...")
        summary = runs[matches[0]]
        records: list[list[Record]] = [[] for _ in summary["points"]]
        for line in (self.directory / f"{matches[0]}.jsonl").read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            records[row.pop("point")].append(from_row(row))
        return summary, records

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.directory / "runs.sqlite", timeout=10.0)) as database, database:
                database.execute(_SCHEMA)
                yield database
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"{self.directory}: {error}", hint="XDG_DATA_HOME moves it") from error

    def _free_id(self, database: sqlite3.Connection, started: str) -> str:
        base = "".join(c for c in started if c.isdigit())[:14]
        taken = {row[0] for row in database.execute("SELECT id FROM runs")}
        return next(name for name in (base, *(f"{base}-{i}" for i in range(2, 10_000))) if name not in taken)


def as_row(record: Record) -> dict[str, Any]:
    """Without its text; token events as [seconds after t_send, tokens, channel, characters]."""
    row = {
        field.name: getattr(record, field.name)
        for field in dataclasses.fields(record)
        if field.name not in ("events", "text", "reasoning", "tool_arguments", "error")
    }
    row["error"] = None if record.error is None else dataclasses.asdict(record.error)
    row["events"] = [[round(e.time - record.t_send, 6), e.count, e.channel, e.size] for e in record.events]
    return row


def from_row(row: dict[str, Any]) -> Record:
    error = None if row["error"] is None else Failure(**row["error"])
    events = [TokenEvent(row["t_send"] + after, channel, size, count) for after, count, channel, size in row["events"]]
    return Record(**(row | {"error": error, "events": events}))
