"""A server that `measure` and `bench` start ends with them, however they end."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from ridgeline.measure import start


def test_sigterm_while_a_model_starts_stops_its_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that never gets ready, and a SIGTERM to us as soon as it runs: without a handler this process would be
    gone, and the server would stay."""
    told, script = tmp_path / "pid", tmp_path / "server"
    os.mkfifo(told)
    script.write_text(f"#!/bin/sh\necho $$ > {told}\nexec sleep 600\n")
    script.chmod(0o700)
    monkeypatch.setattr(start.sys, "executable", str(script))
    pids: list[int] = []

    def terminate_us() -> None:
        pids.append(int(told.read_text()))
        os.kill(os.getpid(), signal.SIGTERM)

    terminator = threading.Thread(target=terminate_us)
    terminator.start()
    with pytest.raises(KeyboardInterrupt), start.running_server("model"):
        raise AssertionError("it is never ready")
    terminator.join()
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
