"""What a server runs and on which device: what a limit is computed from.

The device is the one that runs the model: this machine's CPU never stands in for a GPU or for another host. Where it
cannot be told, there is no limit but a reason, and `--hardware` and `--spec` settle it.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.cost.facts import STORED, ModelFacts, load_facts
from ridgeline.cost.hardware import THIS
from ridgeline.cost.this import THIS_GPU
from ridgeline.errors import RidgelineError
from ridgeline.measure.endpoints import Endpoint

_GPU_PATHS = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/kfd", "/dev/dxg")  # NVIDIA, AMD, a GPU under WSL
_KV_DTYPE = "bf16"  # two bytes per value, as all servers do unless told otherwise


@dataclass(frozen=True)
class Loaded:
    """A model in Ollama's memory, as /api/ps has it. `context_len` is its `num_ctx`."""

    size_bytes: int
    vram_bytes: int
    context_len: int | None = None
    expires_at: str | None = None

    @property
    def share_outside_gpu(self) -> float:
        return 1 - self.vram_bytes / self.size_bytes if self.size_bytes else 0.0

    @property
    def is_split(self) -> bool:
        """Part on a GPU, part on the CPU."""
        return 0 < self.vram_bytes < self.size_bytes


@dataclass(frozen=True)
class ServedModel:
    facts: ModelFacts
    dtype: str
    kv_dtype: str


@dataclass(frozen=True)
class Device:
    """`name` as `--hardware` takes it; None: unknown. `reason` says how it was found, or what to do."""

    name: str | None
    reason: str


def loaded_names(running: Any) -> list[str]:
    """The models in Ollama's memory, of /api/ps's answer."""
    return [str(entry.get("name")) for entry in _entries(running)]


def loaded_model(running: Any, model: str) -> Loaded | None:
    """Of /api/ps's answer; None when the model is not loaded, or it was no such answer."""
    for entry in _entries(running):
        if model in (entry.get("name"), entry.get("model")):
            context = entry.get("context_length")
            return Loaded(
                size_bytes=int(entry.get("size") or 0),
                vram_bytes=int(entry.get("size_vram") or 0),
                context_len=int(context) if context else None,
                expires_at=entry.get("expires_at"),
            )
    return None


def _entries(running: Any) -> list[dict[str, Any]]:
    return (running.get("models") if isinstance(running, dict) else None) or []


def find_device(endpoint: Endpoint, loaded: Loaded | None, given: str | None, *, has_gpu: bool) -> Device:
    if given is not None:
        return Device(given, "named by --hardware")
    if not endpoint.is_local:
        return Device(None, f"{endpoint.url} is another host: name the device that runs the model with --hardware")
    if endpoint.server == "ridgeline":
        return Device(THIS, "Ridgeline computes on this machine's CPU")
    if loaded is not None:
        if loaded.vram_bytes == 0:
            return Device(THIS, "Ollama runs this model on the CPU (size_vram is 0)")
        return Device(THIS_GPU, "Ollama runs this model on a GPU (size_vram is above 0)")
    if has_gpu:
        return Device(None, "a GPU of this machine may run the model: name it with --hardware (`this` is the CPU)")
    return Device(THIS, "the server is on this machine, which has no GPU")


def machine_has_gpu() -> bool:
    apple = platform.system() == "Darwin" and platform.machine() == "arm64"
    return apple or any(Path(path).exists() for path in _GPU_PATHS)


def find_model(endpoint: Endpoint, spec: str | None, dtype: str | None, kv_dtype: str | None) -> ServedModel | str:
    """The model's facts, from `--spec` or by the name that the server gives it; else a sentence that says why not.
    Formats are as given, else as the server tells (Ridgeline's model card), else as stored.

    Raises ConfigError or CheckpointError for a `--spec` that is wrong.
    """
    card = endpoint.facts.get("card") or {}
    dtype, kv_dtype = dtype or card.get("dtype") or STORED, kv_dtype or card.get("kv_dtype") or _KV_DTYPE
    if spec is not None:
        return ServedModel(load_facts(spec, dtype), dtype, kv_dtype)
    name = _name(endpoint)
    try:
        return ServedModel(load_facts(name, dtype), dtype, kv_dtype)
    except RidgelineError as error:
        return f"nothing is known of the model {name!r} ({error.message}): give its files or its name with --spec"


def _name(endpoint: Endpoint) -> str:
    """What to look for: Ollama's store, the file that llama.cpp serves, or the server's own word."""
    if endpoint.kind == "ollama":
        return f"ollama:{endpoint.model}"
    path = (endpoint.facts.get("props") or {}).get("model_path")
    if path and endpoint.is_local and Path(path).exists():
        return str(path)
    return str((endpoint.facts.get("card") or {}).get("root") or endpoint.model)
