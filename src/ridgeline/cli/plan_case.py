"""One case to plan, from the command line's options: a model in given formats on a device, for a workload."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from ridgeline.cli.plan_input import (
    choose_device,
    parse_bandwidth,
    parse_compute,
    parse_count,
    parse_memory,
    parse_price,
    parse_speculation,
)
from ridgeline.cost.ask import choose_dtype
from ridgeline.cost.facts import ModelFacts, load_facts
from ridgeline.cost.hardware import Hardware
from ridgeline.cost.plan import Plan, make_plan
from ridgeline.cost.question import Question
from ridgeline.cost.roofline import Roofline
from ridgeline.cost.service import Service, Slo, parse_slo, plan_service
from ridgeline.cost.speculation import Speculation
from ridgeline.errors import ConfigError
from ridgeline.quant.formats import joined


@dataclass(frozen=True)
class Case:
    """`hardware` None: not known, nor what follows from it. `price_per_hour` is that of all devices together."""

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
        return choose_dtype(self.facts, self.wanted_dtype)

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


@dataclass(frozen=True)
class Devices:
    """The hardware options, not yet looked up: a comparison looks up several."""

    name: str | None
    count: int
    figures: dict[str, Any]  # in place of the device's own
    prices: list[float]  # per hour, of one device

    def find(self, name: str | None) -> Hardware | None:
        return choose_device(name, devices=self.count, **self.figures)

    def one_price(self) -> float | None:
        if len(self.prices) > 1:
            raise ConfigError(
                f"--price-per-hour has {len(self.prices)} prices", hint="several go with as many devices in --compare"
            )
        return self.prices[0] * self.count if self.prices else None


def read_devices(options: dict[str, Any]) -> Devices:
    bandwidth, compute, memory, price = (options[k] for k in ("bandwidth", "compute", "memory", "price_per_hour"))
    figures = {
        "bandwidth": None if bandwidth is None else parse_bandwidth(bandwidth),
        "compute": None if compute is None else parse_compute(compute),
        "memory_bytes": None if memory is None else parse_memory(memory),
    }
    prices = [] if price is None else [parse_price(part) for part in price.split(",")]
    return Devices(options["hardware"], options["devices"], figures, prices)


def read_case(model: str, options: dict[str, Any]) -> Case:
    """Without hardware and price. Raises ConfigError for a value that makes no sense."""
    rate, slo, speculate = options["rate"], options["slo"], options["speculate"]
    if rate is not None and (slo is None or not 0 < rate < 1e9):
        raise ConfigError(f"--rate {rate:g}", hint="above 0, and beside --slo: it asks how many devices meet it")
    context = options["context"]
    question = Question(
        input_len=parse_count("--input", options["input_len"]),
        output_len=parse_count("--output", options["output_len"]),
        batch=parse_count("--batch", options["batch"]),
        cached=parse_count("--cached", options["cached"]),
        context=None if context is None else parse_count("--context", context),
        devices=options["devices"],
    )
    return Case(
        facts=load_facts(model, options["dtype"]),
        hardware=None,
        question=question,
        wanted_dtype=joined(options["dtype"], options["head_dtype"]),
        kv_dtype=options["kv_dtype"].lower(),
        speculation=None if speculate is None else parse_speculation(speculate),
        slo=None if slo is None else parse_slo(slo),
        rate=rate,
    )


def on_device(case: Case, devices: Devices) -> Case:
    price = devices.one_price()
    return dataclasses.replace(case, hardware=devices.find(devices.name), price_per_hour=price)
