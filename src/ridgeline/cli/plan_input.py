"""What `plan` is given on the command line, checked: a number out of range is an error, never clamped."""

from __future__ import annotations

import math
import re

from ridgeline.cost.ask import choose_hardware
from ridgeline.cost.facts import load_facts
from ridgeline.cost.hardware import THIS, Hardware
from ridgeline.cost.speculation import Speculation
from ridgeline.errors import ConfigError
from ridgeline.units import parse_tokens

_PER_SECOND = {"gb": 1e9, "gb/s": 1e9, "tb/s": 1e12, "": 1e9}
_FLOPS = {"tflops": 1e12, "pflops": 1e15, "gflops": 1e9, "": 1e12}
_BYTES = {"gb": 1e9, "gib": 2**30, "tb": 1e12, "mb": 1e6, "": 1e9}


def parse_count(flag: str, text: str) -> int:
    """A number of tokens or requests, 0 included, as in 2000 or 2k. Whether 0 makes sense, `Question` knows."""
    if re.fullmatch(r"\s*-?0+\s*", text):
        return 0
    try:
        return parse_tokens(text)
    except ConfigError as error:
        raise ConfigError(f"{flag}: {error.message}", hint=error.hint) from error


def parse_bandwidth(text: str) -> float:
    """Bytes/s of `1000` (GB/s) or `3.35TB/s`."""
    return _parse("--bandwidth", text, _PER_SECOND, 1e6, 1e18, "1000 (GB/s) or 3.35TB/s")


def parse_compute(text: str) -> float:
    """FLOP/s of `100` (TFLOPS)."""
    return _parse("--compute", text, _FLOPS, 1e6, 1e21, "100 (TFLOPS)")


def parse_memory(text: str) -> int:
    """Bytes of `48` (GB) or `48GiB`."""
    return round(_parse("--memory", text, _BYTES, 1e6, 1e18, "48 (GB) or 48GiB"))


def parse_price(text: str) -> float:
    """Dollars."""
    return _parse("--price-per-hour", text.strip().removeprefix("$"), {"": 1.0}, 1e-6, 1e6, "2.50")


def _parse(flag: str, text: str, units: dict[str, float], least: float, most: float, example: str) -> float:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?(?:e\d+)?)\s*([A-Za-z/]*)\s*", text)
    factor = units.get(match[2].lower()) if match else None
    value = float(match[1]) * factor if match and factor else math.nan
    if not least <= value <= most:
        raise ConfigError(f"{flag} {text!r} makes no sense", hint=f"write it as {example}")
    return value


def parse_speculation(text: str) -> Speculation:
    """`4,0.7` or `4,0.7,MODEL` (or `draft:MODEL`). Raises ConfigError."""
    parts = [part.strip() for part in text.split(",", 2)]
    hint = "write it as 4,0.7 (drafts per step, share accepted) or 4,0.7,MODEL"
    try:
        num_drafts, acceptance = int(parts[0]), float(parts[1])
    except (ValueError, IndexError):
        raise ConfigError(f"--speculate {text!r}", hint=hint) from None
    draft = re.sub(r"^draft[ :]\s*", "", parts[2]) if len(parts) == 3 else None
    return Speculation(num_drafts, acceptance, None if draft is None else load_facts(draft))


def choose_device(
    name: str | None,
    *,
    bandwidth: float | None = None,
    compute: float | None = None,
    memory_bytes: int | None = None,
    devices: int = 1,
) -> Hardware | None:
    """The named device with the given figures in place of its own; figures alone make a device of their own, and
    nothing at all is `this`. None when this machine cannot be measured."""
    has_figures = any(value is not None for value in (bandwidth, compute, memory_bytes))
    found = Hardware("custom") if name is None and has_figures else choose_hardware(name or THIS)
    if found is not None and has_figures:
        found = found.with_figures(bandwidth=bandwidth, compute=compute, memory_bytes=memory_bytes)
    return None if found is None else found.times(devices)
