"""`ridgeline serve`: a model behind an OpenAI-compatible HTTP server."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.cli.options import ENGINE_OPTIONS, MODEL_OPTIONS, SERVER_OPTIONS, Model, pick, takes
from ridgeline.cli.output import loading
from ridgeline.config import EngineConfig, ModelConfig, ServerConfig, resolve
from ridgeline.errors import ConfigError
from ridgeline.llm import DEFAULT_MODEL, load_engine
from ridgeline.units import format_bytes

if TYPE_CHECKING:
    from ridgeline.engine.loop import Engine
    from ridgeline.model.runtime import ModelRuntime
    from ridgeline.server.state import ServerState


@takes(MODEL_OPTIONS, ENGINE_OPTIONS, SERVER_OPTIONS)
def serve(model: Model = DEFAULT_MODEL, **options: Any) -> int:
    """Serve a model over HTTP, OpenAI-compatible, until Ctrl-C."""
    from ridgeline.server.run import serve as run_server

    model_config = resolve(ModelConfig, pick(MODEL_OPTIONS, options))
    engine_config = resolve(EngineConfig, pick(ENGINE_OPTIONS, options))
    server_config = _server_config(pick(SERVER_OPTIONS, options))

    def load() -> tuple[ModelRuntime, Engine]:
        with loading() as progress:
            return load_engine(model, model_config, engine_config, progress=progress)

    def announce(state: ServerState) -> None:
        print("\n".join(ready_lines(state)), flush=True)

    return run_server(server_config, load, on_ready=announce)


def _server_config(options: dict[str, Any]) -> ServerConfig:
    key_file: Path | None = options.pop("api_key_file")
    options["api_keys"] = (*options["api_keys"], *(_keys_of(key_file) if key_file else ()))
    options["served_model_names"] = tuple(options["served_model_names"])
    options["cors_origins"] = tuple(options["cors_origins"])
    return resolve(ServerConfig, options)


def _keys_of(path: Path) -> list[str]:
    """One key per line; empty lines and lines that start with # are no keys."""
    lines = [line.strip() for line in path.read_text().splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ConfigError(f"{path} holds no API key", hint="one key per line")
    return keys


def ready_lines(state: ServerState) -> list[str]:
    """What a person needs to know once the model is loaded, down to a command to copy."""
    runtime, summary = state.require().runtime, state.summary()
    kv_bytes = summary["kv_tokens"] * runtime.kv_bytes_per_token
    capacity = (
        f"{summary['kv_tokens']:,} tokens, {summary['typical_users']:,} users at {summary['typical_tokens']:,} tokens"
    )
    return [
        f"serving   {state.url}/v1",
        f"model     {', '.join(summary['models'])} ({runtime.spec.num_parameters / 1e6:,.0f} M parameters)",
        f"format    {runtime.dtype}, KV cache {runtime.kv_dtype}",
        *(f"note      {notice}" for notice in runtime.notices),
        f"context   {summary['context_len']:,} tokens",
        f"KV cache  {format_bytes(kv_bytes)}: {capacity}",
        "",
        "try it:",
        *curl_lines(state),
    ]


def curl_lines(state: ServerState) -> list[str]:
    """A request to copy and paste."""
    served = state.require()
    body: dict[str, Any] = {"model": served.names[0]}
    if served.runtime.chat_template is not None:
        endpoint, body["messages"] = "chat/completions", [{"role": "user", "content": "Hello!"}]
    else:
        endpoint, body["prompt"] = "completions", "Once upon a time"
    body["max_tokens"] = 50
    key = "-H 'Authorization: Bearer YOUR_KEY' " if state.config.api_keys else ""
    return [
        f"  curl {state.url}/v1/{endpoint} {key}-H 'Content-Type: application/json' \\",
        f"    -d {shlex.quote(json.dumps(body))}",
    ]
