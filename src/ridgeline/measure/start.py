"""A MODEL in place of a URL: `ridgeline serve` as a process of its own, stopped when the measurement ends.

A process, because a client that shares the server's interpreter would measure itself, and because `measure` stays free
of the engine.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO, Any

from ridgeline.errors import ConfigError

_STOP_TIMEOUT_S = 30.0


@contextlib.contextmanager
def running_server(model: str, options: Sequence[str] = ()) -> Iterator[str]:
    """The URL of the model's server, ready, on any free port of this machine; `options` are `serve`'s.

    Raises ConfigError with the server's own words when it does not start. SIGTERM is a Ctrl-C meanwhile: it would end
    this process alone, and leave the server to nobody.
    """
    command = [sys.executable, "-m", "ridgeline.cli", "serve", model, "--port", "0", "--json", *options]
    with (
        _terminated_as_interrupted(),
        tempfile.TemporaryFile("w+") as log,
    ):  # not a pipe: nobody reads it while the server runs, and a pipe fills
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            yield str(_ready(process, model, log)["url"])
        finally:
            process.terminate()
            try:
                process.communicate(timeout=_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """What answers Ctrl-C now, an event loop or nobody, answers SIGTERM too."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _ready(process: subprocess.Popen[str], model: str, log: IO[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    facts: dict[str, Any] = json.loads(line) if line.startswith("{") else {}
    if "url" in facts:
        return facts
    process.wait(_STOP_TIMEOUT_S)
    log.seek(0)
    errors = log.read().strip()
    error = facts.get("error") or {"message": errors or f"it ended with status {process.returncode}", "hint": None}
    raise ConfigError(f"`ridgeline serve {model}` did not start: {error['message']}", hint=error["hint"])
