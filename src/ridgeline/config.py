"""Settings: small frozen dataclasses, one per owner.

A setting has one name everywhere: the command line's `--max-batch-tokens` is `max_batch_tokens` here and in
`LLM(...)`. `resolve` builds one of them from given values; an unknown key is an error that names the nearest.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from ridgeline.errors import ConfigError

SchedulerKind = Literal["continuous", "static"]
Policy = Literal["fcfs", "priority"]

_Config = TypeVar("_Config")


@dataclass(frozen=True)
class ModelConfig:
    """How a checkpoint becomes something that runs. Owned by `model/runtime.py`."""

    dtype: str = "auto"  # auto | fp32 | bf16
    kv_dtype: str | None = None  # None: as dtype
    threads: int | None = None  # None: the usable cores
    weights: str = "checkpoint"  # checkpoint | random
    executor: str = "native"  # native | torch
    kv_memory: int | None = None  # bytes; None: from what the machine has free
    context: int | None = None  # tokens; None: the model's own limit
    max_step_tokens: int = 2048  # rows of the executor's buffers


@dataclass(frozen=True)
class EngineConfig:
    """Scheduling. Owned by `engine/`."""

    max_batch_tokens: int | None = None  # per step; None: from `target_gap_s` and the measured prefill rate
    target_gap_s: float = 0.1  # the longest pause that a prefill chunk should cause in running decodes
    max_requests: int = 64  # running at once
    max_waiting: int = 512
    scheduler: SchedulerKind = "continuous"
    policy: Policy = "fcfs"
    static_wait_s: float = 0.05  # a static batch starts when full, or this long after its first request
    kv_cache: bool = True  # False: recompute the whole sequence at every token, to show what that costs


@dataclass(frozen=True)
class ServerConfig:
    """HTTP. Owned by `server/`."""

    host: str = "127.0.0.1"
    port: int = 8000
    served_model_names: tuple[str, ...] = ()
    api_keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    max_body_bytes: int = 8 << 20
    request_timeout_s: float = 600.0
    shutdown_timeout_s: float = 30.0


def nearest(name: str, known: list[str]) -> str:
    """A phrase that names what the person probably meant, or lists what there is."""
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if close:
        return "did you mean " + " or ".join(repr(c) for c in close) + "?"
    return "known: " + ", ".join(sorted(known))


def resolve(kind: type[_Config], given: Mapping[str, Any]) -> _Config:
    """A `kind` with `given` values in place of the defaults."""
    known = [f.name for f in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for key in given:
        if key not in known:
            raise ConfigError(f"unknown option {key!r}", hint=nearest(key, known))
    return kind(**given)
