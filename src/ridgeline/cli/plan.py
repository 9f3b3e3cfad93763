"""`ridgeline plan`: what fits, how fast it can go, and why. Parses, calls `cost/`, prints."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ridgeline.cli.options import Group, Json, takes
from ridgeline.cli.output import print_json, warn
from ridgeline.cli.plan_case import Case, on_device, read_case, read_devices
from ridgeline.cost.capacity import advice
from ridgeline.cost.emit import ENGINES, Setup, emit
from ridgeline.cost.hardware import load_devices
from ridgeline.cost.plan import Plan
from ridgeline.cost.work import show_work
from ridgeline.errors import ConfigError


def _option(kind: Any, flag: str, help: str, metavar: str | None = None, panel: str = "Workload") -> Any:
    return Annotated[kind, typer.Option(flag, help=help, metavar=metavar, rich_help_panel=panel)]


def _device(kind: Any, flag: str, help: str, metavar: str | None = None) -> Any:
    return _option(kind, flag, help, metavar, "Hardware")


def _output(kind: Any, flag: str, help: str, metavar: str | None = None) -> Any:
    return _option(kind, flag, help, metavar, "Output")


HARDWARE_OPTIONS: Group = {
    "hardware": (_device(str | None, "--hardware", "A device of --list, or this; this unless given.", "NAME"), None),
    "bandwidth": (_device(str | None, "--bandwidth", "Read bandwidth.", "GB/s"), None),
    "compute": (_device(str | None, "--compute", "Dense, at the matrices' input type.", "TFLOPS"), None),
    "memory": (_device(str | None, "--memory", "Memory.", "GB"), None),
    "devices": (_device(int, "--devices", "So many of them, as one (tensor parallel)."), 1),
    "price_per_hour": (
        _device(str | None, "--price-per-hour", "Of one device; a list beside --compare.", "DOLLARS"),
        None,
    ),
}
WORKLOAD_OPTIONS: Group = {
    "dtype": (_option(str, "--dtype", "Weight format; auto: as the checkpoint.", "FMT"), "auto"),
    "head_dtype": (_option(str | None, "--head-dtype", "Of the output matrix; as --dtype unless given.", "FMT"), None),
    "kv_dtype": (_option(str, "--kv-dtype", "KV cache format.", "FMT"), "bf16"),
    "input_len": (_option(str, "--input", "Prompt, as in 2000 or 2k.", "TOKENS"), "2000"),
    "output_len": (_option(str, "--output", "Answer.", "TOKENS"), "500"),
    "batch": (_option(str, "--batch", "Requests that decode together.", "N"), "1"),
    "cached": (_option(str, "--cached", "Prompt tokens that the prefix cache holds.", "TOKENS"), "0"),
    "context": (
        _option(str | None, "--context", "Where KV memory is told; input + output unless given.", "TOKENS"),
        None,
    ),
    "speculate": (
        _option(str | None, "--speculate", "Drafts per step, their acceptance, who drafts.", "K,RATE[,MODEL]"),
        None,
    ),
    "slo": (_option(str | None, "--slo", "Largest batch within limits, as in tpot=50ms,ttft=1s.", "LIMITS"), None),
    "rate": (_option(float | None, "--rate", "Requests per second: how many devices, beside --slo.", "R"), None),
}
OUTPUT_OPTIONS: Group = {
    "textbook": (_output(bool, "--textbook", "The textbook's figures first."), False),
    "work": (_output(bool, "--show-work", "The arithmetic behind every number."), False),
    "chart": (_output(Path | None, "--chart", "Roofline and memory as .png, .svg or .html.", "FILE"), None),
    "compare": (_output(str | None, "--compare", "Devices, models or formats, side by side.", "A,B,..."), None),
    "engine": (_output(str | None, "--emit", "A command to run it: " + ", ".join(ENGINES) + ".", "ENGINE"), None),
    "listing": (_output(bool, "--list", "Models and devices that are known by name."), False),
}


@takes(HARDWARE_OPTIONS, WORKLOAD_OPTIONS, OUTPUT_OPTIONS)
def plan(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Name, config.json, directory, .gguf or id.")
    ] = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Show what fits, how fast it can go and why, from a model's config alone."""
    if options["listing"]:
        from ridgeline.cli.plan_view import print_listing

        print_listing(as_json)
        return
    if model is None:
        raise typer.BadParameter("MODEL is missing (or --list)")
    case, devices = read_case(model, options), read_devices(options)
    draft = case.speculation and case.speculation.draft
    warn((*case.facts.warnings, *(draft.warnings if draft else ())))
    if options["compare"] is None:
        _plan_one(on_device(case, devices), as_json, options)
        return
    for flag, name in (("--chart", "chart"), ("--emit", "engine"), ("--show-work", "work")):
        if options[name]:
            raise ConfigError(f"{flag} is for one case, --compare for several", hint="leave one of them out")
    from ridgeline.cli.plan_compare import print_comparison

    print_comparison(case, options["compare"].split(","), devices, as_json)


def _plan_one(case: Case, as_json: bool, options: dict[str, Any]) -> None:
    result, service = case.plan(), case.service()
    hints = advice(case.roofline, case.question.final_len, load_devices())
    work = show_work(result, case.roofline, case.question) if options["work"] else None
    command = None if options["engine"] is None else _command(options["engine"], case, result, service)
    if options["chart"] is not None:
        from ridgeline.cli.plan_chart import save_chart

        save_chart(options["chart"], result, case.roofline, case.question)
        print(f"chart in {options['chart']}", file=sys.stderr)
    if as_json:
        headline = "textbook" if options["textbook"] else "exact"
        extra = {"headline": headline, "service": service, "advice": hints, "work": work, "command": command}
        print_json(result.as_json() | extra)
    elif command is not None:
        print(command)
    else:
        from ridgeline.cli.plan_view import print_plan

        print_plan(result, case, service, hints, work, textbook_first=options["textbook"])


def _command(engine: str, case: Case, result: Plan, service: dict[str, Any] | None) -> str:
    requests = service["batch"] if service else result.admissible_requests
    if not requests:
        raise ConfigError(
            "no request is known to fit, so there is nothing to run", hint="without --emit, plan says why"
        )
    memory_bytes = case.hardware.memory_bytes if case.hardware else None
    return emit(engine, Setup(result, case.question.context_len, requests, memory_bytes))
