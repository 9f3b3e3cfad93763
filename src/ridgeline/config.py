"""Settings: small frozen dataclasses, one per owner.

A setting has one name everywhere: the command line's `--max-batch-tokens` is `max_batch_tokens` here and in
`LLM(...)`. `resolve` builds one of them from given values; an unknown key is an error that names the nearest.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from ridgeline.errors import ConfigError

SchedulerKind = Literal["continuous", "static"]
Policy = Literal["fcfs", "priority", "longest-prefix"]
Admission = Literal["reserve", "optimistic"]

_Config = TypeVar("_Config")


@dataclass(frozen=True)
class ModelConfig:
    """How a checkpoint becomes something that runs. Owned by `model/runtime.py`."""

    dtype: str = "auto"  # auto | fp32 | bf16 | int8, int4, ... | gguf: quant/formats.py
    head_dtype: str | None = None  # of the output matrix; None: as dtype
    kv_dtype: str | None = None  # None: as dtype
    threads: int | None = None  # None: the usable cores
    priority: int | None = None  # niceness of the compute threads, -20 (before others) to 19; None: as the process
    weights: str = "checkpoint"  # checkpoint | random
    executor: str = "native"  # native | torch
    kv_memory: int | None = None  # bytes; None: from what the machine has free
    context: int | None = None  # tokens; None: the model's own limit
    max_step_tokens: int = 2048  # rows of the executor's buffers
    packed_file: bool = True  # keep the packed weights in a file, which the next start maps
    packed_dir: str | None = None  # where; None: in the user's cache directory
    packed_disk: int | None = None  # bytes that all packed files there may take; None: 50 GB


@dataclass(frozen=True)
class EngineConfig:
    """Scheduling. Owned by `engine/`."""

    max_batch_tokens: int | None = None  # per step; None: from `target_gap_s` and what prefill was seen to cost
    target_gap_s: float = 0.1  # the longest pause that a prefill chunk should cause in running decodes
    max_requests: int = 64  # running at once
    max_waiting: int = 512
    scheduler: SchedulerKind = "continuous"
    policy: Policy = "fcfs"
    static_wait_s: float = 0.05  # a static batch starts when full, or this long after its first request
    kv_cache: bool = True  # False: recompute the whole sequence at every token, to show what that costs
    prefix_cache: bool = True  # keep computed prefixes for later requests; off without `kv_cache`
    prefix_ttl_s: float | None = None  # a cached prefix lives so long after its last use; None: until space is needed
    cache_dir: str | None = None  # cached prefixes also go to this directory, and survive a restart
    cache_disk: int | None = None  # bytes that `cache_dir` may take; None: 10 GB
    admission: Admission = "reserve"  # which pages must be there before a request starts; engine/policy.py
    stuck_after_s: float = 60.0  # work waits and no step finished for so long: `/health` turns red


@dataclass(frozen=True)
class ServerConfig:
    """HTTP. Owned by `server/`."""

    host: str = "127.0.0.1"
    port: int = 8000
    served_model_names: tuple[str, ...] = ()
    api_keys: tuple[str, ...] = ()
    admin_key: str | None = None  # for `/cache/...`, which nobody may use without one
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


def field_names(kind: type[Any]) -> list[str]:
    return [f.name for f in dataclasses.fields(kind)]


def resolve(kind: type[_Config], given: Mapping[str, Any]) -> _Config:
    """A `kind` with `given` values in place of the defaults. Raises ConfigError for an unknown key or choice."""
    known = field_names(kind)
    for key in given:
        if key not in known:
            raise ConfigError(f"unknown option {key!r}", hint=nearest(key, known))
    for name, annotation in get_type_hints(kind).items():
        if name in given and get_origin(annotation) is Literal and given[name] not in get_args(annotation):
            raise ConfigError(f"{name} cannot be {given[name]!r}", hint="one of " + ", ".join(get_args(annotation)))
    return kind(**given)


def split(kinds: Sequence[type[Any]], given: Mapping[str, Any]) -> list[Any]:
    """One object of each kind, every given value in the one that has a field of that name."""
    known = [name for kind in kinds for name in field_names(kind)]
    for key in given:
        if key not in known:
            raise ConfigError(f"unknown option {key!r}", hint=nearest(key, known))
    return [resolve(kind, {k: v for k, v in given.items() if k in field_names(kind)}) for kind in kinds]
