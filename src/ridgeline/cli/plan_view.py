"""A plan on the terminal: memory as a bar, exact figures beside the textbook's, and the sentences that say why."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ridgeline.cli.output import print_json
from ridgeline.cli.plan_case import Case
from ridgeline.cost.hardware import load_devices
from ridgeline.cost.plan import Plan
from ridgeline.cost.question import Question
from ridgeline.cost.roofline import Roofline
from ridgeline.units import format_bytes, format_duration

_BAR_WIDTH = 60
_LEAST_WIDTH = 100  # a figure that is cut off misleads: rather let a narrow terminal break lines
UNKNOWN = "-"

Row = tuple[str, str, str]  # figure, exact, textbook


def print_plan(
    plan: Plan,
    case: Case,
    service: dict[str, Any] | None,
    hints: list[str],
    work: dict[str, str] | None,
    *,
    textbook_first: bool = False,
) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, _LEAST_WIDTH)
    question = case.question
    devices = f"{plan.devices} x " if plan.devices > 1 else ""
    console.print(
        f"[bold]{plan.model}[/] on [bold]{devices}{plan.hardware or 'unknown hardware'}[/]: {plan.dtype} weights, "
        f"{plan.kv_dtype} KV, {question.input_len:,} tokens in ({question.cached:,} cached), "
        f"{question.output_len:,} out, batch {question.batch:,}\n"
    )
    _print_memory_bar(console, plan, case.roofline, question)
    _print_rows(console, [*_memory_rows(plan, question), *_speed_rows(plan, question)], textbook_first)
    for title, lines in (
        ("speculation", _speculation_lines(plan)),
        ("price", _price_lines(plan.prices)),
        ("under the SLO", _service_lines(service)),
        ("nothing fits; what would", hints),
        ("why", plan.why),
        ("assumed", plan.assumptions),
        ("work", [f"{name} = {arithmetic}" for name, arithmetic in (work or {}).items()]),
    ):
        if lines:
            console.print(f"\n[bold]{title}[/]")
            for line in lines:
                console.print(Text(f"  {line}"))


def _print_rows(console: Console, rows: list[Row], textbook_first: bool) -> None:
    names = ("textbook", "exact") if textbook_first else ("exact", "textbook")
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("", no_wrap=True)
    for name, style in zip(names, ("bold", "dim"), strict=True):
        table.add_column(name, style=style, no_wrap=True)
    for figure, exact, book in rows:
        table.add_row(figure, *((book, exact) if textbook_first else (exact, book)))
    console.print(table)


def _print_memory_bar(console: Console, plan: Plan, roofline: Roofline, question: Question) -> None:
    memory = roofline.hardware.memory_bytes
    if memory is None:
        return
    kv_bytes = min(question.batch, plan.max_concurrent_requests or 0) * roofline.facts.kv_bytes(
        question.final_len, plan.kv_dtype
    )
    if plan.weight_bytes > memory:
        console.print(f"[red]{'█' * _BAR_WIDTH}[/]  {_gb(plan.weight_bytes)} of weights in {_gb(memory)}: too large\n")
        return
    weights_width = round(_BAR_WIDTH * plan.weight_bytes / memory)
    kv_width = min(_BAR_WIDTH - weights_width, max(1, round(_BAR_WIDTH * kv_bytes / memory)))
    free_width = _BAR_WIDTH - weights_width - kv_width
    console.print(
        f"[blue]{'█' * weights_width}[/][green]{'█' * kv_width}[/][dim]{'░' * free_width}[/]  {_gb(memory)}: "
        f"[blue]weights {_gb(plan.weight_bytes)}[/], [green]KV of the batch {_gb(kv_bytes)}[/], "
        f"free {_gb(memory - plan.weight_bytes - kv_bytes)}\n"
    )


def _memory_rows(plan: Plan, question: Question) -> list[Row]:
    book = plan.textbook
    active = f" ({plan.active_parameters:,} per token)" if plan.active_parameters < plan.parameters else ""
    return [
        ("parameters", f"{plan.parameters:,}{active}", f"{book['parameters']:,.0f}"),
        ("weights", format_bytes(plan.weight_bytes), format_bytes(book["weight_bytes"])),
        ("KV per token", f"{plan.kv_bytes_per_token:,} bytes", ""),
        (f"KV at {question.context_len:,} tokens", format_bytes(plan.kv_bytes_total), ""),
        (
            f"requests of {question.final_len:,} tokens",
            f"{_count(plan.max_concurrent_requests)} ({_count(plan.admissible_requests)} in the engine's pages)",
            _count(book["max_concurrent_requests"]),
        ),
        ("largest context, alone", _count(plan.largest_context, " tokens"), ""),
    ]


def _speed_rows(plan: Plan, question: Question) -> list[Row]:
    book = plan.textbook
    rows = [
        ("ridge", _number(plan.ridge_intensity, " FLOP/byte"), ""),
        ("prefill intensity", _bound(plan.prefill_intensity, plan.prefill_binds), _number(book["prefill_intensity"])),
        ("decode intensity", _bound(plan.decode_intensity, plan.decode_binds), _number(book["decode_intensity"])),
        ("compute used in decode", _share(plan.compute_used_in_decode), _share(book["compute_used_in_decode"])),
        ("TTFT", _time(plan.ttft_floor_s), _time(book["ttft_s"])),
        ("TPOT, weights only", _time(plan.tpot_floor_s), _time(book["tpot_s"])),
        ("TPOT, with KV", _time(plan.tpot_floor_with_kv_s), ""),
        ("decode limit", _number(plan.decode_limit_tokens_per_s, " tokens/s"), _number(book["decode_tokens_per_s"])),
        (
            "output token, in input ones",
            _number(plan.output_to_input_ratio),
            _number(book["output_to_input_ratio"]),
        ),
        (
            "prefill, in decode steps",
            _number(plan.decode_steps_per_prefill),
            _number(book["decode_steps_per_prefill"]),
        ),
        (f"{question.output_len:,} tokens decoded", _time(plan.decode_floor_s), _time(book["decode_s"])),
        ("whole request", _time(plan.request_latency_floor_s), _time(book["request_latency_s"])),
        (
            "compute-bound from batch",
            _count(plan.compute_bound_batch, none="never" if plan.ridge_intensity else UNKNOWN),
            _count(book["compute_bound_batch"]),
        ),
    ]
    if plan.tpot_expected_s is not None:
        low, high = plan.tpot_expected_s
        rows.insert(7, ("TPOT, commonly reached", f"{_time(low)} to {_time(high)}", ""))
    if question.batch > 1:
        rate, book_rate = plan.batch_throughput_tokens_per_s, book["batch_tokens_per_s"]
        rows += [
            (f"step at batch {question.batch:,}", _time(plan.batch_step_floor_s), _time(book["batch_step_s"])),
            ("tokens/s of the batch", _number(rate), _number(book_rate)),
            ("times a single stream", _number(plan.speedup), _number(book["speedup"])),
        ]
    return rows


def _speculation_lines(plan: Plan) -> list[str]:
    facts = plan.speculation
    if facts is None:
        return []
    return [
        f"{facts['num_drafts']} drafts ({facts['draft'] or 'free of cost, as n-grams'}), each accepted with "
        f"probability {facts['acceptance']:g}: {facts['tokens_per_step']:.2f} tokens per step",
        f"TPOT {_time(facts['tpot_floor_s'])}, {_number(facts['speedup'])} times as fast as without",
        f"stops paying at batch {_count(facts['break_even_batch'], none='never')}",
    ]


def _price_lines(prices: dict[str, Any] | None) -> list[str]:
    if prices is None:
        return []
    cached = prices["cached_input_per_million"]
    return [
        f"per million tokens: input {_dollars(prices['input_per_million'])}, "
        + (f"cached input {_dollars(cached)}, " if cached is not None else "")
        + f"output {_dollars(prices['output_per_million'])}: {prices['output_to_input_ratio']:,.1f} times the input's"
    ]


def _service_lines(service: dict[str, Any] | None) -> list[str]:
    if service is None:
        return []
    by = ", ".join(f"{name} {_count(limit, none='any')}" for name, limit in service["batch_by"].items())
    lines = [f"largest batch {service['batch']:,}: {service['binds']} binds ({by})"]
    if service["batch"] == 0:
        return [*lines, "not even one request fits within these limits"]
    lines.append(
        f"TTFT {_time(service['ttft_s'])}, TPOT {_time(service['tpot_s'])}, "
        f"{service['requests_per_s']:,.2f} requests/s, {service['output_tokens_per_s']:,.0f} output tokens/s"
    )
    if service["replicas"] is not None:
        lines.append(f"{service['rate']:g} requests/s need {service['replicas']:,} of these")
    return lines + _price_lines(service["prices"])


def print_listing(as_json: bool) -> None:
    """The catalog of models and the table of devices."""
    from ridgeline.model.catalog import catalog_names

    devices = load_devices()
    if as_json:
        rows = [
            {
                "name": d.name, "memory_bytes": d.memory_bytes, "bandwidth_bytes_per_s": d.bandwidth,
                "compute_flops_per_s": dict(d.compute), "confidence": d.confidence, "source": d.source, "note": d.note,
            }
            for d in devices.values()
        ]  # fmt: skip
        print_json({"models": catalog_names(), "hardware": rows})
        return
    console = Console(highlight=False)
    console.print("[bold]models[/]")
    console.print(Text("  " + "  ".join(catalog_names())))
    table = Table("hardware", "memory GB", "GB/s", "bf16 TFLOPS", "confidence", box=None, pad_edge=False)
    for d in devices.values():
        memory = UNKNOWN if d.memory_bytes is None else f"{d.memory_bytes / 1e9:g}"
        bf16 = f"{d.compute['bf16'] / 1e12:g}" if "bf16" in d.compute else UNKNOWN
        table.add_row(d.name, memory, f"{(d.bandwidth or 0) / 1e9:g}", bf16, d.confidence)
    console.print()
    console.print(table)


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:,.3g} GB"


def _time(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else format_duration(seconds)


def _count(number: int | None, unit: str = "", none: str = UNKNOWN) -> str:
    return none if number is None else f"{number:,}{unit}"


def _number(value: float | None, unit: str = "") -> str:
    if value is None:
        return UNKNOWN
    return f"{value:,.{0 if value >= 1000 else 1 if value >= 10 else 2}f}{unit}"


def _share(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.1%}"


def _bound(intensity: float, binds: str | None) -> str:
    return _number(intensity) + (f", {binds} binds" if binds else "")


def _dollars(amount: float) -> str:
    return f"${amount:,.4f}" if amount < 0.1 else f"${amount:,.2f}"
