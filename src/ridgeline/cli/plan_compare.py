"""`plan --compare A,B,...`: devices, models or formats side by side, ranked.

What kind of things are compared follows from their names: all formats, all devices, or else all models (with MODEL
itself). Devices are ranked by what a request costs where prices are given, else by what they sustain: with `--slo` the
requests per second within it, without, the decode limit of the batch. Models and formats stay in the order given.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from ridgeline.cli.output import print_json, warn
from ridgeline.cli.plan_case import Case, Devices, on_device
from ridgeline.cost.facts import load_facts
from ridgeline.cost.hardware import THIS, find_device
from ridgeline.cost.plan import Plan
from ridgeline.cost.this import THIS_GPU
from ridgeline.errors import ConfigError
from ridgeline.quant.formats import weight_format
from ridgeline.units import format_duration


@dataclasses.dataclass(frozen=True)
class Entry:
    name: str
    plan: Plan
    service: dict[str, Any] | None

    @property
    def rate(self) -> float:
        """What ranks without prices, higher is better."""
        if self.service is not None:
            return float(self.service["requests_per_s"] or 0.0)
        return self.plan.batch_throughput_tokens_per_s or 0.0

    @property
    def dollars_per_million(self) -> float | None:
        """Of output tokens."""
        prices = self.service["prices"] if self.service is not None else self.plan.prices
        return None if prices is None else float(prices["output_per_million"])


def print_comparison(base: Case, items: Sequence[str], devices: Devices, as_json: bool) -> None:
    """Raises ConfigError for an item that is none of the kinds, or a list of prices that does not match."""
    kind, cases = _cases(base, [item.strip() for item in items], devices)
    entries = [Entry(name, case.plan(), case.service()) for name, case in cases]
    if kind == "hardware":
        entries.sort(key=_rank)
    if as_json:
        print_json({"compared": kind, "ranked_by": _ranking(kind, entries), "plans": [_as_json(e) for e in entries]})
    else:
        _print_table(kind, entries)


def _cases(base: Case, names: list[str], devices: Devices) -> tuple[str, list[tuple[str, Case]]]:
    if _all(names, _check_device):
        return "hardware", list(_device_cases(base, names, devices))
    here = on_device(base, devices)
    if _all(names, weight_format):
        return "format", [(name, dataclasses.replace(here, wanted_dtype=name)) for name in names]
    others = [load_facts(name) for name in names if name != base.facts.name]
    for facts in others:
        warn(facts.warnings)
    models = [base.facts, *others]
    return "model", [(facts.name, dataclasses.replace(here, facts=facts)) for facts in models]


def _device_cases(base: Case, names: list[str], devices: Devices) -> Iterator[tuple[str, Case]]:
    prices = devices.prices
    if len(prices) not in (0, 1, len(names)):
        raise ConfigError(
            f"{len(prices)} prices for {len(names)} devices", hint="give one for all, or one each, in their order"
        )
    for index, name in enumerate(names):
        price = prices[index % len(prices)] * devices.count if prices else None
        yield name, dataclasses.replace(base, hardware=devices.find(name), price_per_hour=price)


def _all(names: list[str], check: Callable[[str], object]) -> bool:
    """Whether every name passes. Raises the check's error when only some do, or when one is ambiguous: then the kind is
    clear and a name is wrong."""
    errors = []
    for name in names:
        try:
            check(name)
        except ConfigError as error:
            errors.append(error)
    if errors and (len(errors) < len(names) or "ambiguous" in errors[0].message):
        raise errors[0]
    return not errors


def _check_device(name: str) -> None:
    if name not in (THIS, THIS_GPU):
        find_device(name)


def _rank(entry: Entry) -> tuple[bool, float, float]:
    """Those that serve at all, by dollars where there are prices, else by rate."""
    return entry.rate == 0, entry.dollars_per_million or 0.0, -entry.rate


def _ranking(kind: str, entries: list[Entry]) -> str | None:
    if kind != "hardware":
        return None
    if entries[0].dollars_per_million is not None:
        return "dollars per million output tokens"
    return "requests per second within the SLO" if entries[0].service else "output tokens per second of the batch"


def _as_json(entry: Entry) -> dict[str, Any]:
    return {"name": entry.name, **entry.plan.as_json(), "service": entry.service}


def _print_table(kind: str, entries: list[Entry]) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for name in (kind, "weights GB", "KV B/token", "requests", "TTFT", "TPOT with KV", "batch tokens/s"):
        table.add_column(name, no_wrap=True)
    has_service, has_prices = entries[0].service is not None, any(e.dollars_per_million is not None for e in entries)
    if has_service:
        for name in ("batch in SLO", "binds", "requests/s"):
            table.add_column(name, no_wrap=True)
    if has_prices:
        table.add_column("$/M output", no_wrap=True)
    for entry in entries:
        plan, service = entry.plan, entry.service
        cells = [
            entry.name,
            f"{plan.weight_bytes / 1e9:,.2f}",
            f"{plan.kv_bytes_per_token:,}",
            "-" if plan.max_concurrent_requests is None else f"{plan.max_concurrent_requests:,}",
            "-" if plan.ttft_floor_s is None else format_duration(plan.ttft_floor_s),
            "-" if plan.tpot_floor_with_kv_s is None else format_duration(plan.tpot_floor_with_kv_s),
            "-" if plan.batch_throughput_tokens_per_s is None else f"{plan.batch_throughput_tokens_per_s:,.0f}",
        ]
        if service is not None:
            cells += [f"{service['batch']:,}", service["binds"], f"{service['requests_per_s'] or 0:,.2f}"]
        if has_prices:
            cells.append("-" if entry.dollars_per_million is None else f"{entry.dollars_per_million:,.3f}")
        table.add_row(*cells)
    console = Console(highlight=False, soft_wrap=True, width=160)  # wider than a terminal: cut figures mislead
    console.print(table)
    ranking = _ranking(kind, entries)
    if ranking:
        console.print(f"ranked by {ranking}")
