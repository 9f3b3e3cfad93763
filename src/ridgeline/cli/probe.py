"""`ridgeline probe`: measures this machine's ceilings and keeps them as the hardware `this`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline.cli.options import Json
from ridgeline.cli.output import loading, print_json

if TYPE_CHECKING:
    from ridgeline.cost.probe import Probe


def probe(as_json: Json = False) -> None:
    """Measure this machine: memory bandwidth and matrix throughput, in under 30 seconds."""
    from ridgeline.cost.probe import FULL, measure
    from ridgeline.cost.this import save

    with loading() as progress:
        measured = measure(FULL, progress=progress)
    report = measured.as_json()
    if as_json:
        print_json(report | {"path": str(save(report))})
    else:
        _print(measured)  # first: readings that cannot be kept are still worth seeing
        print(f"\nkept as the hardware `this` in {save(report)}")


def _print(probe: Probe) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    machine = probe.machine
    cache = machine["last_level_cache_bytes"]
    console.print(
        Text(
            f"{machine['cpu']}, {machine['usable_cores']} usable of {machine['installed_cores']} cores, "
            f"{machine['isa']} kernels, last-level cache {f'{cache / 2**20:,.0f} MiB' if cache else 'unknown'}, "
            f"{machine['memory_available_bytes'] / 1e9:,.1f} GB free\n"
        )
    )
    table = Table("reading", "GB/s", "spread", box=None, pad_edge=False)
    for threads, reading in probe.by_threads.items():
        table.add_row(
            f"memory, {threads} thread{'s' * (threads > 1)}", f"{reading.best / 1e9:,.1f}", _share(reading.spread)
        )
    for size, reading in probe.by_working_set.items():
        table.add_row(f"{size / 2**20:,.0f} MiB, all threads", f"{reading.best / 1e9:,.1f}", _share(reading.spread))
    console.print(table)
    table = Table("matrix products", "GFLOP/s", "spread", box=None, pad_edge=False)
    for (dtype, rows), reading in probe.matmul.items():
        table.add_row(f"{dtype}, {rows} rows", f"{reading.best / 1e9:,.0f}", _share(reading.spread))
    for dtype, reading in probe.torch_matmul.items():
        table.add_row(f"{dtype} by torch", f"{reading.best / 1e9:,.0f}", _share(reading.spread))
    console.print()
    console.print(table)
    if probe.gpu is not None:
        gpu = probe.gpu
        console.print(
            f"\n{gpu['name']}: {gpu['memory_bytes'] / 1e9:,.1f} GB, {gpu['bytes_per_s'] / 1e9:,.0f} GB/s, "
            f"{gpu['compute']['bf16'] / 1e12:,.0f} TFLOPS in bf16 (hardware `this-gpu`)"
        )


def _share(spread: float | None) -> str:
    return "-" if spread is None else f"{spread:.0%}"
