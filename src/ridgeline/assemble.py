"""From a model's name and settings to an engine: what `LLM` and `ridgeline serve` both start with.

Heavy modules are imported inside: `import ridgeline` and `--help` must not wait for them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ridgeline.config import EngineConfig, ModelConfig
from ridgeline.errors import CheckpointError, ConfigError, RequestError
from ridgeline.units import format_bytes

if TYPE_CHECKING:
    from ridgeline.engine.disk_tier import DiskTier, PageMemory
    from ridgeline.engine.loop import Engine
    from ridgeline.model.runtime import ModelRuntime

DEFAULT_CACHE_DISK = 10 * 10**9  # bytes

Progress = Callable[[str, float], None]


def load_engine(
    model: str, model_config: ModelConfig, engine_config: EngineConfig, *, progress: Progress | None = None
) -> tuple[ModelRuntime, Engine]:
    """The model and an engine over it that is not started yet. `progress` gets a stage's name and its done share."""
    from ridgeline.cost.memory import available_memory
    from ridgeline.engine.loop import Engine
    from ridgeline.model.runtime import load_runtime

    rows = max(model_config.max_step_tokens, engine_config.max_batch_tokens or 0)
    model_config = dataclasses.replace(model_config, max_step_tokens=rows)
    try:
        runtime = load_runtime(model, model_config, num_sampler_slots=engine_config.max_requests, progress=progress)
    except MemoryError as error:
        raise ConfigError(
            f"the system refuses memory for weights and KV pages; {format_bytes(available_memory())} are free",
            hint="lower kv_memory (--kv-memory), or choose a smaller model or dtype",
        ) from error
    try:
        _check_defaults(runtime)
        tier = _open_tier(runtime, model_config, engine_config)
    except BaseException:
        runtime.close()
        raise
    engine = Engine(runtime.executor, runtime.tokenizer, engine_config, context_len=runtime.context_len, tier=tier)
    return runtime, engine


def _check_defaults(runtime: ModelRuntime) -> None:
    """The sampling that the checkpoint recommends must be possible: no request should be blamed for it later."""
    from ridgeline.engine.params import checked
    from ridgeline.engine.request import SamplingParams

    try:
        checked(SamplingParams(**runtime.generation_defaults), vocab_size=runtime.executor.vocab_size)
    except RequestError as error:
        raise CheckpointError(f"{runtime.files.path}: its recommended sampling: {error.message}") from error


def _open_tier(runtime: ModelRuntime, model_config: ModelConfig, engine_config: EngineConfig) -> DiskTier | None:
    """Where cached prefixes outlive memory and process, when `cache_dir` is given."""
    if engine_config.cache_dir is None:
        if engine_config.cache_disk is not None:
            raise ConfigError("cache_disk bounds cache_dir, which is not given", hint="give --cache-dir too")
        return None
    if not (engine_config.prefix_cache and engine_config.kv_cache):
        raise ConfigError("cache_dir keeps cached prefixes, and the prefix cache is off", hint="leave one of them out")
    if not hasattr(runtime.executor, "page_bytes"):
        raise ConfigError("cache_dir needs an executor whose KV pages can be copied", hint="use --executor native")
    from ridgeline.engine.disk_tier import DiskTier  # Linux has what it needs, as the native executor does
    from ridgeline.model.fingerprint import kv_fingerprint

    memory = cast("PageMemory", runtime.executor)
    fingerprint = kv_fingerprint(runtime.files, model_config.weights, runtime.executor, memory.page_bytes)
    path = Path(engine_config.cache_dir).expanduser()
    return DiskTier(path, memory, fingerprint=fingerprint, max_bytes=engine_config.cache_disk or DEFAULT_CACHE_DISK)
