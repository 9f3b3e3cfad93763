"""The whole report, as one object: facts, then findings; with nothing in it that names a person."""

from __future__ import annotations

import getpass
import re
import socket
from pathlib import Path
from typing import Any

from ridgeline.doctor.findings import as_json, find
from ridgeline.doctor.machine import machine_facts, system_facts
from ridgeline.doctor.software import bundled_model, environment, gpu_facts, native_facts, versions
from ridgeline.doctor.storage import storage_facts

_CONNECT_TIMEOUT_S = 0.5


def examine(port: int, *, cache_dir: Path | None = None, packed_dir: Path | None = None) -> dict[str, Any]:
    """What `ridgeline doctor --json` prints. `port` is where `serve` would listen, the directories as it is given."""
    machine = machine_facts()
    report: dict[str, Any] = {
        "machine": machine,
        "system": system_facts(),
        "native": native_facts(),
        "versions": versions(),
        "storage": storage_facts(cache_dir, packed_dir),
        "model": bundled_model(),
        "gpu": gpu_facts() if machine["has_nvidia_gpu"] else None,
        "environment": environment(),
        "port": {"number": port, "busy": _is_busy(port)},
    }
    findings = find(report)
    report |= {"findings": as_json(findings), "ok": not any(finding.severity == "error" for finding in findings)}
    cleaned: dict[str, Any] = _without_names(report)
    return cleaned


def _is_busy(port: int) -> bool:
    with socket.socket() as asked:
        asked.settimeout(_CONNECT_TIMEOUT_S)
        return asked.connect_ex(("127.0.0.1", port)) == 0


def _without_names(value: Any) -> Any:
    """Every text with `~` for the home directory and `USER` for the user's name in a path."""
    if isinstance(value, dict):
        return {key: _without_names(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_names(item) for item in value]
    return hidden(value, str(Path.home()), _user()) if isinstance(value, str) else value


def hidden(text: str, home: str, user: str | None) -> str:
    if len(home) > 1:
        text = re.sub(rf"{re.escape(home)}(?![\w.-])", "~", text)
    return re.sub(rf"(?<=[/\\]){re.escape(user)}(?![\w.-])", "USER", text) if user else text


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):  # a container's user without a name
        return None
