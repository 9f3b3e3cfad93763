"""Where the steps' time went, op by op, beside the roofline: what `serve --profile` prints at its end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.table import Table

from ridgeline.units import format_duration

if TYPE_CHECKING:
    from ridgeline.cost.hardware import Hardware
    from ridgeline.executors.op_profile import OpLine, Profile

HEADINGS = ("rows", "op", "shape", "format", "calls", "time", "of all", "per call", "GB/s", "GFLOP/s", "floor / time")


def profile_table(profile: Profile, hardware: Hardware | None) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for name in HEADINGS:
        table.add_column(name, justify="left" if name in ("op", "shape", "format") else "right")
    for cells in profile_cells(profile, hardware):
        table.add_row(*cells)
    return table


def profile_cells(profile: Profile, hardware: Hardware | None) -> Iterator[tuple[str, ...]]:
    """A row of cells per op, shape and number of rows."""
    for line in profile.lines:
        floor = None if hardware is None else line.floor_s(hardware, profile.weight_bytes)
        yield (
            _rows(line),
            line.kind,
            line.shape,
            line.format,
            f"{line.calls:,}",
            format_duration(line.seconds),
            f"{line.seconds / profile.seconds:.1%}",
            format_duration(line.seconds / line.calls),
            f"{line.bytes_moved / line.seconds / 1e9:.1f}" if line.bytes_moved else "-",
            f"{line.flops / line.seconds / 1e9:,.0f}" if line.flops else "-",
            f"{floor / line.seconds:.2f}" if floor is not None else "-",
        )


def _rows(line: OpLine) -> str:
    fewest, most = line.rows
    return f"{fewest:,}" if fewest == most else f"{fewest:,}-{most:,}"
