"""`ridgeline measure`: the latency of a server, beside what its device could do."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.options import Json
from ridgeline.cli.output import print_json
from ridgeline.errors import ConfigError
from ridgeline.units import parse_tokens

if TYPE_CHECKING:
    from ridgeline.measure.latency import Latency

_SHORTEST = 32


def _option(kind: Any, flag: str, help: str, metavar: str | None = None, **settings: Any) -> Any:
    return Annotated[kind, typer.Option(flag, help=help, metavar=metavar, **settings)]


Target = Annotated[
    str,
    typer.Argument(metavar="TARGET", help="URL, host:port, ollama:NAME (in the running Ollama), or a MODEL to serve."),
]
ModelName = _option(str | None, "--model", "Of the server's models; its first unless given.", "NAME")
Spec = _option(str | None, "--spec", "The model's files or name, where the server's own name says nothing.", "MODEL")
DeviceName = _option(str | None, "--hardware", "The device that runs the model: of `plan --list`, or this.", "NAME")
Dtype = _option(str | None, "--dtype", "Weight format that it runs in; as served, or stored, unless given.", "FMT")
HeadDtype = _option(str | None, "--head-dtype", "Of the output matrix; as --dtype unless given.", "FMT")
KvDtype = _option(str | None, "--kv-dtype", "KV cache format.", "FMT")
ApiKey = _option(str | None, "--api-key", "Of the server.", "KEY", envvar="OPENAI_API_KEY", show_envvar=True)
Timeout = _option(float, "--timeout", "Seconds of silence after which a request has failed.", min=0.1)


def measure(
    target: Target,
    model: ModelName = None,
    spec: Spec = None,
    hardware: DeviceName = None,
    dtype: Dtype = None,
    head_dtype: HeadDtype = None,
    kv_dtype: KvDtype = None,
    repeats: _option(int | None, "--repeats", "Of one short prompt; 20.", min=1) = None,
    output_len: _option(str | None, "--output", "Tokens of each answer; 128.", "TOKENS") = None,
    lengths: _option(str | None, "--lengths", "Prompts; 256,1k,4k,8k.", "TOKENS,...") = None,
    length_repeats: _option(int | None, "--length-repeats", "Of each length; 5.", min=1) = None,
    quick: _option(bool, "--quick", "Fewer and shorter: 5 repeats, 32 tokens, 256 and 1k, 3 times each.") = False,
    report: _option(Path | None, "--report", "Charts and figures as .html, charts as .png or .svg.", "FILE") = None,
    api_key: ApiKey = None,
    timeout: Timeout = 600.0,
    as_json: Json = False,
) -> int:
    """Measure a server's latency one request at a time, and explain its distance from the limit."""
    from ridgeline.cli.measure_run import Options, measure_latency, served
    from ridgeline.measure.experiment import QUICK, Settings

    given = {
        "repeats": repeats,
        "output_len": output_len and _output_len(output_len),
        "lengths": lengths and parse_lengths(lengths),
        "length_repeats": length_repeats,
    }
    settings = QUICK if quick else Settings()
    settings = dataclasses.replace(settings, **{name: value for name, value in given.items() if value})
    if report is not None:
        from ridgeline.measure.report import check_report_path

        check_report_path(report)
    options = Options(model, spec, hardware, dtype, head_dtype, kv_dtype, api_key, timeout)
    with served(target, options) as (url, found):
        latency = measure_latency(url, settings, found, quiet=as_json)
    if as_json:
        print_json(latency.as_json())
    else:
        from ridgeline.cli.measure_view import print_latency

        print_latency(latency)
    saved = report is None or _saved(report, latency)
    return 0 if latency.findings.valid and saved else 1


def _saved(report: Path, latency: Latency) -> bool:
    """After the figures are printed: what took minutes to measure must not depend on a file that can be written."""
    from ridgeline.measure.report import save_report

    try:
        save_report(report, latency)
    except ConfigError as error:
        print(f"no report: {error}", file=sys.stderr)
        return False
    print(f"report in {report}", file=sys.stderr)
    return True


def parse_lengths(text: str) -> tuple[int, ...]:
    """Prompt lengths of `256,1k`, ascending. Raises ConfigError."""
    lengths = sorted({parse_tokens(part) for part in text.split(",")})
    if lengths[0] < _SHORTEST:
        raise ConfigError(f"--lengths {text}", hint=f"at least {_SHORTEST} tokens: the unique line needs some of them")
    return tuple(lengths)


def _output_len(text: str) -> int:
    tokens = parse_tokens(text)
    if tokens < 2:
        raise ConfigError(f"--output {text}", hint="at least 2: the time per token is that between tokens")
    return tokens
