"""The hardware `this`: what `ridgeline probe` measured here, kept in the user's data directory.

Its memory is not kept but asked for at each use: what a process may take now, as the loader asks. `this-gpu` is the
NVIDIA GPU that the same probe found.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ridgeline.cost.hardware import THIS, Hardware
from ridgeline.cost.memory import available_memory
from ridgeline.errors import ConfigError

THIS_GPU = "this-gpu"
_MEASURE = "`ridgeline probe` measures this machine"


def saved_path() -> Path:
    home = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(home).expanduser() / "ridgeline" / "this.json"


def save(probe: dict[str, Any]) -> Path:
    """Raises ConfigError when the data directory cannot be written."""
    path = saved_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(probe, indent=1), encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot save {path}: {error.strerror}", hint="XDG_DATA_HOME moves it") from error
    return path


def load_this() -> Hardware | None:
    """None when this machine was not probed. Raises ConfigError for a file that is damaged."""
    probe = load_probe()
    return None if probe is None else from_probe(probe)


def load_this_gpu() -> Hardware:
    """Raises ConfigError when no probe found one."""
    probe = load_probe()
    if probe is None or probe.get("gpu") is None:
        raise ConfigError("no GPU was probed on this machine", hint=f"{_MEASURE}; GPUs need NVIDIA and torch")
    gpu = probe["gpu"]
    return Hardware(
        name=THIS_GPU,
        memory_bytes=gpu["memory_bytes"],
        bandwidth=gpu["bytes_per_s"],
        compute=gpu["compute"],
        confidence="measured",
        source=f"{gpu['name']}, probed {probe['date']}",
        bandwidth_by_working_set=((0, gpu["bytes_per_s"]),),
    )


def from_probe(probe: dict[str, Any]) -> Hardware:
    sets = _never_rising(sorted((row["bytes"], row["bytes_per_s"]) for row in probe["bandwidth_by_working_set"]))
    quality = "measured in two seconds" if probe["quick"] else "measured"
    return Hardware(
        name=THIS,
        memory_bytes=available_memory(),
        bandwidth=sets[-1][1],
        compute=probe["compute"],
        kind="cpu",
        confidence=quality if probe["spread"] is None else f"{quality}, spread {probe['spread']:.0%}",
        source=f"{probe['machine']['cpu']}, {probe['machine']['usable_cores']} cores, probed {probe['date'][:10]}",
        bandwidth_by_working_set=tuple(sets),
    )


def _never_rising(sets: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """A larger working set is never faster than a smaller one: where a reading says so, the smaller one's was
    disturbed."""
    best, cleaned = 0.0, []
    for size, rate in reversed(sets):
        best = max(best, rate)
        cleaned.append((size, best))
    return cleaned[::-1]


def load_probe() -> dict[str, Any] | None:
    """What was saved; None: nothing yet. Raises ConfigError for a file that is damaged."""
    path = saved_path()
    if not path.exists():
        return None
    try:
        probe: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        from_probe(probe)
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise ConfigError(f"{path} is damaged: {error!r}", hint="`ridgeline probe` writes it anew") from error
    return probe
