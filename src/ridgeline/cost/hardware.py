"""What a device can do: memory, read bandwidth, matrix throughput. A table of 95 devices, and this machine.

The table (`data/hardware.csv`) holds vendors' peak figures, dense, with source and confidence; a peak is never
reached, which is fine for a floor. `this` is the machine that `ridgeline probe` measured. There the bandwidth depends
on the working set, since a small model may sit in a cache.

An unknown figure is None, never a guess: some vendors publish no compute, and a CPU has the memory that is installed.
"""

from __future__ import annotations

import csv
import dataclasses
import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ridgeline.errors import ConfigError

THIS = "this"
_TABLE = Path(__file__).parents[1] / "data" / "hardware.csv"
_COMPUTE_COLUMNS = {
    "bf16": "bf16_dense_tflops", "fp8": "fp8_dense_tflops", "int8": "int8_dense_tops", "fp4": "fp4_dense_tflops",
}  # fmt: skip


@dataclass(frozen=True)
class Hardware:
    """`bandwidth` in bytes/s, `compute` in FLOP/s by the matmul's input type. `devices` of them work as one."""

    name: str
    memory_bytes: int | None = None
    bandwidth: float | None = None
    compute: Mapping[str, float] = field(default_factory=dict)
    kind: str = ""
    vendor: str = ""
    confidence: str = "given"
    source: str = "the command line"
    note: str = ""
    devices: int = 1
    bandwidth_by_working_set: tuple[tuple[int, float], ...] = ()  # measured: (bytes, bytes/s), ascending

    @property
    def is_measured(self) -> bool:
        return bool(self.bandwidth_by_working_set)

    def bandwidth_for(self, working_set_bytes: float) -> float | None:
        """The measured figure of the largest working set that is no larger, so that a floor stays a floor."""
        rates = [rate for size, rate in self.bandwidth_by_working_set if size <= working_set_bytes]
        if rates:
            return rates[-1]
        return max((rate for _, rate in self.bandwidth_by_working_set), default=self.bandwidth)

    def times(self, devices: int) -> Hardware:
        """`devices` of these, with the weights split among them: everything adds up."""
        if devices == 1:
            return self
        return dataclasses.replace(
            self,
            devices=devices,
            memory_bytes=None if self.memory_bytes is None else self.memory_bytes * devices,
            bandwidth=None if self.bandwidth is None else self.bandwidth * devices,
            compute={kind: rate * devices for kind, rate in self.compute.items()},
            bandwidth_by_working_set=tuple((n * devices, rate * devices) for n, rate in self.bandwidth_by_working_set),
        )

    def with_figures(self, *, bandwidth: float | None, compute: float | None, memory_bytes: int | None) -> Hardware:
        """These figures in place of its own, where given. `compute` holds for every input type."""
        return dataclasses.replace(
            self,
            name=self.name if self.name == "custom" else f"{self.name} (changed)",
            bandwidth=bandwidth or self.bandwidth,
            bandwidth_by_working_set=() if bandwidth else self.bandwidth_by_working_set,
            compute={"any": compute} if compute else self.compute,
            memory_bytes=memory_bytes or self.memory_bytes,
        )


def load_devices() -> dict[str, Hardware]:
    """The table, by the names that `--hardware` takes, as in `h100-sxm-80gb`."""
    text = _TABLE.read_text(encoding="utf-8")
    devices = map(_from_row, csv.DictReader(text.splitlines()))
    return {device.name: device for device in devices}


def find_device(name: str) -> Hardware:
    """A device of the table by its name, or by enough words of it to be unique: `h100-sxm`, `rtx-4090`, `4090`.

    Raises ConfigError for a name that fits several, with the list, or none, with the nearest.
    """
    devices, wanted = load_devices(), _slug(name)
    for device in devices.values():
        if wanted in (device.name, device.name.removeprefix(device.vendor.lower() + "-")):
            return device
    words = set(wanted.split("-"))
    matches = [key for key in devices if words <= set(key.split("-"))] if wanted else []
    if len(matches) == 1:
        return devices[matches[0]]
    if matches:
        raise ConfigError(f"hardware {name!r} is ambiguous", hint="choose one of " + ", ".join(matches))
    close = difflib.get_close_matches(wanted, [*devices, THIS], n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    raise ConfigError(f"unknown hardware {name!r}", hint=f"{hint}`ridgeline plan --list` shows all")


def _from_row(row: dict[str, str]) -> Hardware:
    compute = {kind: float(row[column]) * 1e12 for kind, column in _COMPUTE_COLUMNS.items() if row[column]}
    return Hardware(
        name=_slug(row["name"]),
        memory_bytes=round(float(row["memory_gb"]) * 1e9) or None,
        bandwidth=float(row["bandwidth_gb_s"]) * 1e9,
        compute=compute,
        kind=row["kind"],
        vendor=row["vendor"],
        confidence=row["confidence"],
        source=row["source"],
        note=row["note"],
    )


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9+]+", "-", name.lower()).strip("-")
