"""`ridgeline plan`: what fits, how fast it can go, and why. Parses, calls `cost/`, prints."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ridgeline.cli.options import Json
from ridgeline.cli.output import print_json
from ridgeline.cli.plan_input import (
    choose_hardware,
    parse_bandwidth,
    parse_compute,
    parse_count,
    parse_memory,
    parse_price,
    parse_speculation,
)
from ridgeline.cost.capacity import advice
from ridgeline.cost.emit import ENGINES, emit
from ridgeline.cost.facts import STORED, ModelFacts, load_facts
from ridgeline.cost.hardware import Hardware, load_devices
from ridgeline.cost.plan import Plan, make_plan
from ridgeline.cost.question import Question
from ridgeline.cost.roofline import Roofline
from ridgeline.cost.service import Service, Slo, parse_slo, plan_service
from ridgeline.cost.speculation import Speculation
from ridgeline.cost.work import show_work
from ridgeline.errors import ConfigError
from ridgeline.quant.formats import FORMATS


def _option(kind: Any, flag: str, help: str, metavar: str | None = None, panel: str = "Workload") -> Any:
    return Annotated[kind, typer.Option(flag, help=help, metavar=metavar, rich_help_panel=panel)]


def _device(kind: Any, flag: str, help: str, metavar: str | None = None) -> Any:
    return _option(kind, flag, help, metavar, "Hardware")


def _output(kind: Any, flag: str, help: str, metavar: str | None = None) -> Any:
    return _option(kind, flag, help, metavar, "Output")


@dataclass(frozen=True)
class Case:
    """One thing to plan: a model in given formats on a device, for a workload."""

    facts: ModelFacts
    hardware: Hardware | None
    question: Question
    wanted_dtype: str
    kv_dtype: str
    speculation: Speculation | None = None
    price_per_hour: float | None = None
    slo: Slo | None = None
    rate: float | None = None

    @property
    def dtype(self) -> str:
        """`auto`: as the checkpoint holds it, part by part where its parts differ."""
        if self.wanted_dtype != "auto":
            return self.wanted_dtype.lower()
        facts = self.facts
        return facts.stored_format if facts.stored_format in FORMATS and not facts.anatomy.quantization else STORED

    @property
    def roofline(self) -> Roofline:
        return Roofline(self.facts, self.hardware or Hardware("unknown"), self.dtype, self.kv_dtype)

    def plan(self) -> Plan:
        return make_plan(
            self.facts,
            self.hardware,
            self.question,
            dtype=self.dtype,
            kv_dtype=self.kv_dtype,
            speculation=self.speculation,
            price_per_hour=self.price_per_hour,
        )

    def service(self) -> dict[str, Any] | None:
        """What is sustained under the SLO; None without one."""
        if self.slo is None:
            return None
        service = Service(self.roofline, self.question)
        return plan_service(service, self.slo, rate=self.rate, price_per_hour=self.price_per_hour)


def plan(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Name, config.json, directory, .gguf or id.")
    ] = None,
    hardware: _device(str | None, "--hardware", "A device of --list, or this; this unless given.", "NAME") = None,
    bandwidth: _device(str | None, "--bandwidth", "Read bandwidth.", "GB/s") = None,
    compute: _device(str | None, "--compute", "Dense, at the matrices' input type.", "TFLOPS") = None,
    memory: _device(str | None, "--memory", "Memory.", "GB") = None,
    devices: _device(int, "--devices", "So many of them, as one (tensor parallel).") = 1,
    price_per_hour: _device(
        str | None, "--price-per-hour", "Of one device; a list beside --compare.", "DOLLARS"
    ) = None,
    dtype: _option(str, "--dtype", "Weight format; auto: as the checkpoint.", "FMT") = "auto",
    kv_dtype: _option(str, "--kv-dtype", "KV cache format.", "FMT") = "bf16",
    input_len: _option(str, "--input", "Prompt, as in 2000 or 2k.", "TOKENS") = "2000",
    output_len: _option(str, "--output", "Answer.", "TOKENS") = "500",
    batch: _option(str, "--batch", "Requests that decode together.", "N") = "1",
    cached: _option(str, "--cached", "Prompt tokens that the prefix cache holds.", "TOKENS") = "0",
    context: _option(str | None, "--context", "Where KV memory is told; input + output unless given.", "TOKENS") = None,
    speculate: _option(str | None, "--speculate", "Drafts per step, their acceptance.", "K,RATE[,MODEL]") = None,
    slo: _option(str | None, "--slo", "Largest batch within limits, as in tpot=50ms,ttft=1s.", "LIMITS") = None,
    rate: _option(float | None, "--rate", "Requests per second: how many devices, beside --slo.", "R") = None,
    as_json: Json = False,
    textbook: _output(bool, "--textbook", "The textbook's figures first.") = False,
    work: _output(bool, "--show-work", "The arithmetic behind every number.") = False,
    chart: _output(Path | None, "--chart", "Roofline and memory as .png, .svg or .html.", "FILE") = None,
    compare: _output(str | None, "--compare", "Devices, models or formats, side by side.", "A,B,...") = None,
    engine: _output(str | None, "--emit", "The command for an engine: " + ", ".join(ENGINES) + ".", "ENGINE") = None,
    listing: _output(bool, "--list", "Models and devices that are known by name.") = False,
) -> None:
    """Show what fits, how fast it can go and why, from a model's config alone."""
    from ridgeline.cli import plan_view

    if listing:
        plan_view.print_listing(as_json)
        return
    if model is None:
        raise typer.BadParameter("MODEL is missing (or --list)")
    question = Question(
        input_len=parse_count("--input", input_len),
        output_len=parse_count("--output", output_len),
        batch=parse_count("--batch", batch),
        cached=parse_count("--cached", cached),
        context=None if context is None else parse_count("--context", context),
        devices=devices,
    )
    if rate is not None and (slo is None or not 0 < rate < 1e9):
        raise ConfigError(f"--rate {rate:g}", hint="above 0, and beside --slo: it asks how many devices meet it")
    facts = load_facts(model)
    prices = [] if price_per_hour is None else [parse_price(part) for part in price_per_hour.split(",")]
    given = {
        "bandwidth": bandwidth and parse_bandwidth(bandwidth),
        "compute": compute and parse_compute(compute),
        "memory_bytes": memory and parse_memory(memory),
    }
    items = compare.split(",") if compare else []
    base = Case(
        facts=facts,
        hardware=None,
        question=question,
        wanted_dtype=dtype,
        kv_dtype=kv_dtype,
        speculation=speculate and parse_speculation(speculate),
        price_per_hour=prices[0] * devices if prices else None,
        slo=slo and parse_slo(slo),
        rate=rate,
    )
    if items:
        from ridgeline.cli.plan_compare import print_comparison

        print_comparison(base, items, hardware, given, prices, as_json)
        return
    case = dataclasses.replace(base, hardware=choose_hardware(hardware, devices=devices, **given))
    result, service, hints = case.plan(), case.service(), advice(case.roofline, question.final_len, load_devices())
    lines = show_work(result, case.roofline, question) if work else None
    command = None if engine is None else _emitted(engine, case, result, service)
    if chart is not None:
        from ridgeline.cli.plan_chart import save_chart

        save_chart(chart, result, case.roofline, question)
    if as_json:
        extra = {"service": service, "advice": hints, "work": lines, "command": command}
        headline = {"headline": "textbook" if textbook else "exact"}
        print_json(result.as_json() | headline | {name: value for name, value in extra.items() if value})
    elif command is not None:
        print(command)
    else:
        plan_view.print_plan(result, case.roofline, question, service, hints, textbook_first=textbook)
        if lines:
            plan_view.print_work(lines)
        if chart is not None:
            print(f"chart in {chart}", file=sys.stderr)


def _emitted(engine: str, case: Case, result: Plan, service: dict[str, Any] | None) -> str:
    requests = service["batch"] if service else result.admissible_requests
    if not requests:
        raise ConfigError(
            "no request fits, so there is nothing to run", hint="`ridgeline plan` without --emit says why"
        )
    memory_bytes = case.hardware.memory_bytes if case.hardware else None
    return emit(engine, result, context=case.question.context_len, requests=requests, memory_bytes=memory_bytes)
