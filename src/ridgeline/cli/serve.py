"""`ridgeline serve`: a model behind an OpenAI-compatible HTTP server."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.assemble import load_engine
from ridgeline.cli.options import ENGINE_OPTIONS, MODEL_OPTIONS, SERVER_OPTIONS, Json, Model, pick, takes
from ridgeline.cli.output import loading, print_json, warn
from ridgeline.config import EngineConfig, ModelConfig, ServerConfig, resolve
from ridgeline.cost.memory import admissible_requests
from ridgeline.errors import ConfigError
from ridgeline.llm import DEFAULT_MODEL
from ridgeline.quant.formats import PLAIN
from ridgeline.units import format_bytes, format_duration

if TYPE_CHECKING:
    from ridgeline.engine.loop import Engine
    from ridgeline.executors.op_profile import Profile as OpProfile
    from ridgeline.model.runtime import ModelRuntime
    from ridgeline.server.state import Served, ServerState

Profile = Annotated[bool, typer.Option("--profile", help="At the end, tell on stderr where the steps' time went.")]
_TYPICAL_LEN = 2500  # tokens, prompt and answer, of the users that the KV capacity is told in


@takes(MODEL_OPTIONS, ENGINE_OPTIONS, SERVER_OPTIONS)
def serve(model: Model = DEFAULT_MODEL, as_json: Json = False, profile: Profile = False, **options: Any) -> int:
    """Serve a model over HTTP, OpenAI-compatible, until Ctrl-C."""
    from ridgeline.server.run import serve as run_server

    model_config = resolve(ModelConfig, pick(MODEL_OPTIONS, options))
    engine_config = resolve(EngineConfig, pick(ENGINE_OPTIONS, options))
    server_config = _server_config(pick(SERVER_OPTIONS, options))

    def load() -> tuple[ModelRuntime, Engine]:
        with loading(log=True, quiet=as_json) as progress:
            runtime, engine = load_engine(model, model_config, engine_config, progress=progress)
        warn(runtime.spec.warnings)
        if profile:
            profiles.append(_profiled(runtime.executor))
        return runtime, engine

    def announce(state: ServerState) -> None:
        if as_json:
            print_json(ready_facts(state))
        else:
            print("\n".join(ready_lines(state)), flush=True)

    profiles: list[OpProfile] = []
    status = run_server(server_config, load, on_ready=announce)
    for finished in profiles:
        _print_profile(finished)
    return status


def _profiled(executor: Any) -> OpProfile:
    if not hasattr(executor, "profile"):
        raise ConfigError("--profile needs an executor that times its ops", hint="use --executor native")
    profile: OpProfile = executor.profile()
    return profile


def _print_profile(profile: OpProfile) -> None:
    """On stderr: stdout is what a program may read."""
    from rich.console import Console

    from ridgeline.cli.profile_view import profile_table
    from ridgeline.cost.ask import choose_hardware

    console = Console(stderr=True, width=None if sys.stderr.isatty() else 200)
    console.print(f"{profile.num_steps:,} steps, {format_duration(profile.seconds)}; floors of hardware `this`")
    if profile.num_steps:
        console.print(profile_table(profile, choose_hardware("this")))


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


def ready_facts(state: ServerState) -> dict[str, Any]:
    """What `--json` prints once requests are answered. Sizes are in bytes, lengths in tokens."""
    served = state.require()
    runtime, executor = served.runtime, served.runtime.executor
    num_pages = executor.num_pages - 1  # the null page holds nobody's tokens
    kv_tokens = num_pages * executor.page_size
    typical_len = min(_TYPICAL_LEN, runtime.context_len)
    return {
        "url": _url(state),
        "models": list(served.names),
        "parameters": runtime.spec.num_parameters,
        "dtype": runtime.dtype,
        "arithmetic": runtime.arithmetic,
        "kv_dtype": runtime.kv_dtype,
        "threads": runtime.threads,
        "threads_reason": runtime.threads_reason,
        "notices": list(runtime.notices),
        "assumptions": list(runtime.spec.warnings),
        "context_len": runtime.context_len,
        "kv_bytes": kv_tokens * runtime.kv_bytes_per_token,
        "kv_tokens": kv_tokens,
        "typical_len": typical_len,
        "typical_users": admissible_requests(num_pages, executor.page_size, typical_len),
    }


def ready_lines(state: ServerState) -> list[str]:
    """The same for people, down to a command to copy."""
    facts = ready_facts(state)
    return [
        f"serving   {facts['url']}",
        f"model     {', '.join(facts['models'])} ({facts['parameters'] / 1e6:,.0f} M parameters)",
        f"format    {_format(facts)}, KV cache {facts['kv_dtype']}",
        f"threads   {facts['threads']} ({facts['threads_reason']})",
        *(f"note      {notice}" for notice in facts["notices"]),
        *_faster(state.require().runtime),
        f"context   {facts['context_len']:,} tokens",
        f"KV cache  {format_bytes(facts['kv_bytes'])}: {facts['kv_tokens']:,} tokens, "
        f"{facts['typical_users']:,} users at {facts['typical_len']:,} tokens",
        "",
        "try it:",
        *_curl_lines(state.require(), facts["url"], needs_key=bool(state.config.api_keys)),
    ]


def _format(facts: dict[str, Any]) -> str:
    """The weights' format, and both sides of the products where that does not say it."""
    return facts["dtype"] if facts["dtype"] == facts["arithmetic"] else f"{facts['dtype']} ({facts['arithmetic']})"


def _faster(runtime: ModelRuntime) -> list[str]:
    """A hint for who runs in 16 or 32 bits."""
    if runtime.arithmetic not in PLAIN or not runtime.executor.arithmetic_id.startswith("native"):
        return []
    formats = "int8 or int4" if runtime.files.kind != "gguf" else "gguf, int8 or int4"
    return [f"faster    --dtype {formats}: fewer bytes a token, but approximate (activations in 8 bits)"]


def _url(state: ServerState) -> str:
    host = state.config.host
    return f"http://{f'[{host}]' if ':' in host else host}:{state.port}/v1"


def _curl_lines(served: Served, url: str, *, needs_key: bool) -> list[str]:
    """A request to copy and paste."""
    body: dict[str, Any] = {"model": served.names[0]}
    if served.runtime.chat_template is not None:
        endpoint, body["messages"] = "chat/completions", [{"role": "user", "content": "Hello!"}]
    else:
        endpoint, body["prompt"] = "completions", "Once upon a time"
    body["max_tokens"] = 50
    key = "-H 'Authorization: Bearer YOUR_KEY' " if needs_key else ""
    return [
        f"  curl {url}/{endpoint} {key}-H 'Content-Type: application/json' \\",
        f"    -d {shlex.quote(json.dumps(body))}",
    ]
