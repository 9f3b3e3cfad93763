"""What this machine allows at best: the planner's roofline on ceilings that are measured in the same run."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from peerlib.cases import CLIENTS, OUTPUT_TOKENS, PROMPT_TOKENS, Case, cases_of
from peerlib.engines import Engine
from ridgeline.cost import probe
from ridgeline.cost.facts import load_facts
from ridgeline.cost.hardware import Hardware
from ridgeline.cost.roofline import Roofline
from ridgeline.cost.this import from_probe

_EFFORT = dataclasses.replace(probe.FULL, repeats=3, budget_s=10.0)


def measure_ceilings() -> Hardware:
    """Takes about ten seconds."""
    return from_probe(probe.measure(_EFFORT).as_json())


def describe(hardware: Hardware) -> str:
    compute = ", ".join(f"{rate / 1e12:.2f} T{'OPS' if kind.startswith('int') else 'FLOPS'} {kind}"
                        for kind, rate in hardware.compute.items())  # fmt: skip
    return f"{hardware.bandwidth / 1e9:.1f} GB/s, {compute}"


def floors(part: str, checkpoint: Path, hardware: Hardware, engine: Engine) -> dict[str, float]:
    """By case, in its unit; a case of which nothing is predicted is not there."""
    options = engine.settings[""]
    kv_dtype = options.get("kv_dtype", "fp32" if options["dtype"] == "fp32" else "bf16")
    roofline = Roofline(load_facts(str(checkpoint)), hardware, options["dtype"], kv_dtype)
    found = {case.key: _floor(case, roofline) for case in cases_of(part)}
    return {key: value for key, value in found.items() if value is not None}


def _floor(case: Case, roofline: Roofline) -> float | None:
    if case.key == "http":
        return _http(roofline)
    if case.size is None:
        return None
    if case.part == "prefill":
        seconds = roofline.prefill_time(case.size)
        return case.size / seconds if seconds else None
    if case.part == "decode":
        seconds = roofline.time(roofline.decode(case.size))
        return seconds * 1e3 if seconds else None
    seconds = roofline.time(roofline.decode(PROMPT_TOKENS, batch=case.size))
    return case.size / seconds if seconds else None


def _http(roofline: Roofline) -> float | None:
    """Every client's prompt read alone, then its answer in steps of all clients, at the mean context."""
    prefill = roofline.prefill_time(PROMPT_TOKENS)
    step = roofline.time(roofline.decode(PROMPT_TOKENS + OUTPUT_TOKENS // 2, batch=CLIENTS))
    return CLIENTS * OUTPUT_TOKENS / (CLIENTS * prefill + OUTPUT_TOKENS * step) if prefill and step else None
