"""Sizes, counts and durations as people write and read them.

Bytes: GB is 10^9 and GiB 2^30, never mixed up. Token counts: `k` is 1,024, as in "a context of 8k". Durations carry
their unit.
"""

from __future__ import annotations

import re

from ridgeline.errors import ConfigError

_BYTE_UNITS = {
    "": 1, "B": 1,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip
_TOKEN_UNITS = {"": 1, "K": 2**10, "M": 2**20}


def parse_bytes(text: str | int) -> int:
    """`2GB`, `1.5 GiB` or a plain number of bytes. Raises ConfigError."""
    return _parse(str(text), _BYTE_UNITS, "size", "write it as 2GB, 1.5GiB or a number of bytes")


def parse_tokens(text: str | int) -> int:
    """`4096` or `4k`. Raises ConfigError."""
    return _parse(str(text), _TOKEN_UNITS, "token count", "write it as 4096 or 4k")


def parse_duration(text: str) -> float:
    """Seconds of `50ms` or `1.5s`. Raises ConfigError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(us|ms|s)\s*", text)
    seconds = float(match[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[match[2]] if match else 0.0
    if seconds <= 0:
        raise ConfigError(f"{text!r} is no duration", hint="write it as 50ms or 1.5s")
    return seconds


def format_duration(seconds: float) -> str:
    """`16.0 ms`: three digits, in the unit that suits."""
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= 0.9995 * unit or name == "us":
            value = seconds / unit
            return f"{value:,.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {name}"
    raise AssertionError("unreachable")


def _parse(text: str, units: dict[str, int], what: str, hint: str) -> int:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    factor = units.get(match[2].upper()) if match else None
    if match is None or factor is None:
        raise ConfigError(f"{text!r} is no {what}", hint=hint)
    value = int(float(match[1]) * factor) if "." in match[1] else int(match[1]) * factor
    if value < 1:
        raise ConfigError(f"a {what} of {text!r} leaves nothing", hint=hint)
    return value


def format_bytes(num_bytes: int) -> str:
    """`270 MB (257 MiB)`: three digits in either unit."""
    if num_bytes < 1000:
        return f"{num_bytes} B"
    return f"{_scaled(num_bytes, 1000, 'B')} ({_scaled(num_bytes, 1024, 'iB')})"


def _scaled(num_bytes: int, base: int, suffix: str) -> str:
    value, prefixes = num_bytes / base, "KMGT"
    while value >= 999.5 and len(prefixes) > 1:
        value, prefixes = value / base, prefixes[1:]
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {prefixes[0]}{suffix}"
