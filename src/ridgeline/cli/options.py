"""The options that commands share, each declared once.

An option has the name and the default of a field in `config.py`; `takes` adds a group of them to a command, which
receives them as keyword arguments. Sampling options default to None: what is left out is as the checkpoint recommends,
and greedy where it says nothing, since small models make no sense at OpenAI's default temperature of 1.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from ridgeline.config import Admission, EngineConfig, ModelConfig, Policy, SchedulerKind, ServerConfig
from ridgeline.errors import ConfigError
from ridgeline.quant.formats import served_format
from ridgeline.units import parse_bytes, parse_tokens

if TYPE_CHECKING:
    from ridgeline.engine.request import SamplingParams

Group = dict[str, tuple[Any, Any]]  # name -> (annotation, default)
_Command = TypeVar("_Command", bound=Callable[..., Any])

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, nothing else.")]
Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="Directory, .gguf file, name, Hugging Face id or ollama:NAME.")
]


def takes(*groups: Group) -> Callable[[_Command], _Command]:
    """Gives a command the options of `groups`; it takes their values as **options."""

    def decorate(command: _Command) -> _Command:
        signature = inspect.signature(command, eval_str=True)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        added = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for group in groups
            for name, (annotation, default) in group.items()
        ]
        command.__signature__ = signature.replace(parameters=own + added)  # type: ignore[attr-defined]
        return command

    return decorate


def pick(group: Group, options: dict[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in group}


def _argument_parser(parse: Callable[[str], int]) -> Callable[[str], int]:
    """`parse`, with its ConfigError turned into a usage error (exit status 2)."""

    def parse_argument(text: str) -> int:
        try:
            return parse(text)
        except ConfigError as error:
            raise typer.BadParameter(str(error)) from error

    return parse_argument


def _parse_dtype(text: str) -> str:
    return text if text == "auto" else served_format(text, known_too=("auto",))


def _option(kind: Any, flag: str, help: str, panel: str, **settings: Any) -> Any:
    return Annotated[kind, typer.Option(flag, help=help, rich_help_panel=panel, **settings)]


def _model(kind: Any, flag: str, help: str, **settings: Any) -> Any:
    return _option(kind, flag, help, "Model", **settings)


_BYTES = {"parser": _argument_parser(parse_bytes), "metavar": "SIZE"}
_DTYPE = {"parser": _argument_parser(_parse_dtype), "metavar": "FMT"}
_HEAD_DTYPE = {"parser": _argument_parser(served_format), "metavar": "FMT"}
_TOKENS = {"parser": _argument_parser(parse_tokens), "metavar": "TOKENS"}

MODEL_OPTIONS: Group = {
    "dtype": (
        _model(
            str,
            "--dtype",
            "auto: bf16 or fp32, as the checkpoint. int8, int4, gguf (a GGUF file's own groups) are faster and "
            "approximate: activations in 8 bits. Groups: int8-g64, int4-g32, int4-g128-zp, ...",
            **_DTYPE,
        ),
        ModelConfig.dtype,
    ),
    "head_dtype": (
        _model(str | None, "--head-dtype", "Of the output matrix; as --dtype unless given.", **_HEAD_DTYPE),
        ModelConfig.head_dtype,
    ),
    "kv_dtype": (
        _model(
            Literal["fp32", "bf16", "int8"] | None,
            "--kv-dtype",
            "KV cache format; as --dtype unless given, bf16 beside quantized weights. int8 is approximate.",
        ),
        ModelConfig.kv_dtype,
    ),
    "kv_memory": (
        _model(
            int | None, "--kv-memory", "KV cache size, as in 2GB or 1.5GiB; from free memory unless given.", **_BYTES
        ),
        ModelConfig.kv_memory,
    ),
    "context": (
        _model(
            int | None,
            "--context",
            "Longest sequence, as in 4096 or 4k; the model's own limit unless given.",
            **_TOKENS,
        ),
        ModelConfig.context,
    ),
    "threads": (
        _model(
            int | None,
            "--threads",
            "Compute threads; unless given the usable cores, by affinity and control groups.",
            min=1,
        ),
        ModelConfig.threads,
    ),
    "priority": (
        _model(
            int | None,
            "--priority",
            "Niceness of the compute threads: 19 takes what others leave, -20 (root) goes first; as the process unless "
            "given.",
            min=-20,
            max=19,
        ),
        ModelConfig.priority,
    ),
    "executor": (
        _model(Literal["native", "torch"], "--executor", "What computes; torch: plain PyTorch, slow, for comparison."),
        ModelConfig.executor,
    ),
    "weights": (
        _model(Literal["checkpoint", "random"], "--weights", "random: from a config.json alone, to measure speed."),
        ModelConfig.weights,
    ),
    "packed_file": (
        _model(bool, "--packed-file/--no-packed-file", "Keep the packed weights in a file, which the next start maps."),
        ModelConfig.packed_file,
    ),
    "packed_dir": (
        _model(str | None, "--packed-dir", "Where packed weights are kept; in the user's cache unless given."),
        ModelConfig.packed_dir,
    ),
    "packed_disk": (
        _model(
            int | None,
            "--packed-disk",
            "The most that packed files may take there, the longest unused are deleted; 50GB unless given.",
            **_BYTES,
        ),
        ModelConfig.packed_disk,
    ),
}


def _engine(kind: Any, flag: str, help: str, **settings: Any) -> Any:
    return _option(kind, flag, help, "Scheduling", **settings)


ENGINE_OPTIONS: Group = {
    "max_batch_tokens": (
        _engine(int | None, "--max-batch-tokens", "Tokens per step; from --target-gap unless given.", min=1),
        EngineConfig.max_batch_tokens,
    ),
    "target_gap_s": (
        _engine(float, "--target-gap", "Longest pause, in seconds, that a prefill should cause in running decodes."),
        EngineConfig.target_gap_s,
    ),
    "max_requests": (
        _engine(int, "--max-requests", "Requests that run at once.", min=1),
        EngineConfig.max_requests,
    ),
    "max_waiting": (
        _engine(int, "--max-waiting", "Requests that may wait; more get a 429.", min=0),
        EngineConfig.max_waiting,
    ),
    "scheduler": (
        _engine(SchedulerKind, "--scheduler", "static: fill a batch, run it to its end (for comparison)."),
        EngineConfig.scheduler,
    ),
    "static_wait_s": (
        _engine(float, "--static-wait", "A static batch starts when full, or so many seconds after its first request."),
        EngineConfig.static_wait_s,
    ),
    "policy": (
        _engine(
            Policy,
            "--policy",
            "Who runs first: by arrival, by the requests' priority field, or whose prompt is cached the furthest.",
        ),
        EngineConfig.policy,
    ),
    "prefix_cache": (
        _engine(bool, "--prefix-cache/--no-prefix-cache", "Keep computed prefixes for requests that start the same."),
        EngineConfig.prefix_cache,
    ),
    "prefix_ttl_s": (
        _engine(
            float | None,
            "--prefix-ttl",
            "Seconds that a cached prefix outlives its last use; until space is needed unless given.",
        ),
        EngineConfig.prefix_ttl_s,
    ),
    "cache_dir": (
        _engine(str | None, "--cache-dir", "Cached prefixes are kept in this directory too, and survive a restart."),
        EngineConfig.cache_dir,
    ),
    "cache_disk": (
        _engine(int | None, "--cache-disk", "The most that --cache-dir may take; 10GB unless given.", **_BYTES),
        EngineConfig.cache_disk,
    ),
    "admission": (
        _engine(
            Admission, "--admission", "reserve: pages for max_tokens are set aside; optimistic: preempt if need be."
        ),
        EngineConfig.admission,
    ),
    "kv_cache": (
        _engine(
            bool, "--kv-cache/--no-kv-cache", "Without: recompute the whole sequence at every token (for comparison)."
        ),
        EngineConfig.kv_cache,
    ),
}


def _server(kind: Any, flag: str, help: str, **settings: Any) -> Any:
    return _option(kind, flag, help, "HTTP", **settings)


SERVER_OPTIONS: Group = {
    "host": (_server(str, "--host", "Address to listen on."), ServerConfig.host),
    "port": (_server(int, "--port", "Port to listen on; 0: any free one.", min=0, max=65535), ServerConfig.port),
    "served_model_names": (
        _server(list[str], "--served-model-name", "Model id in the API (repeatable); MODEL unless given."),
        [],
    ),
    "api_keys": (_server(list[str], "--api-key", "A key that clients may use (repeatable)."), []),
    "api_key_file": (
        _server(Path | None, "--api-key-file", "A file with one key per line.", exists=True, dir_okay=False),
        None,
    ),
    "admin_key": (
        _server(str | None, "--admin-key", "The key for /cache/tree and /cache/flush; without one both are refused."),
        ServerConfig.admin_key,
    ),
    "cors_origins": (_server(list[str], "--cors-origin", "An origin that browsers may call from (repeatable)."), []),
    "max_body_bytes": (
        _server(int, "--max-body", "Largest request body.", **_BYTES),
        ServerConfig.max_body_bytes,
    ),
    "request_timeout_s": (
        _server(float, "--request-timeout", "Seconds until a request is ended.", min=0.001),
        ServerConfig.request_timeout_s,
    ),
    "shutdown_timeout_s": (
        _server(float, "--shutdown-timeout", "Seconds that running requests get at shutdown.", min=0),
        ServerConfig.shutdown_timeout_s,
    ),
}


def _sampling(kind: Any, flag: str, help: str, **settings: Any) -> Any:
    return _option(kind | None, flag, help, "Sampling", **settings)


SAMPLING_OPTIONS: Group = {
    name: (annotation, None)
    for name, annotation in {
        "max_tokens": _sampling(int, "--max-tokens", "Longest answer; as far as the context goes unless given."),
        "temperature": _sampling(
            float, "--temperature", "0: always the likeliest token. As the checkpoint recommends unless given, else 0."
        ),
        "top_k": _sampling(int, "--top-k", "Sample among the k likeliest; 0: off."),
        "top_p": _sampling(float, "--top-p", "Sample among the likeliest that hold this share; 1: off."),
        "min_p": _sampling(float, "--min-p", "Drop tokens below this share of the likeliest one's; 0: off."),
        "repetition_penalty": _sampling(float, "--repetition-penalty", "Above 1: against repeating; 1: off."),
        "presence_penalty": _sampling(float, "--presence-penalty", "Taken from tokens that have occurred."),
        "frequency_penalty": _sampling(float, "--frequency-penalty", "Taken from tokens, per occurrence."),
        "seed": _sampling(int, "--seed", "The same seed gives the same answer."),
        "stop": _sampling(list[str], "--stop", "Text that ends the answer (repeatable)."),
        "min_tokens": _sampling(int, "--min-tokens", "No end before so many tokens."),
        "ignore_eos": _sampling(bool, "--ignore-eos", "Go on after the end token."),
    }.items()
}


def sampling_params(defaults: SamplingParams, options: dict[str, Any]) -> SamplingParams:
    """`defaults` with what was given on the command line in its place."""
    given = {name: value for name, value in pick(SAMPLING_OPTIONS, options).items() if value not in (None, [])}
    return dataclasses.replace(defaults, **given)
