"""`ridgeline doctor`: this machine and installation in a page of plain text, and what is wrong with them.

Exit status 1 when something is broken (a finding of severity `error`), else 0; the report is printed either way.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from ridgeline.cli.options import Json
from ridgeline.cli.output import print_json
from ridgeline.config import ServerConfig
from ridgeline.units import format_bytes

_NAME_WIDTH = 14
_LEAST_WIDTH, _MOST_WIDTH = 40, 100
_PIPE_WIDTH = 80

Line = tuple[str, str]  # name, value


def doctor(
    port: Annotated[int, typer.Option("--port", help="Where `serve` would listen.")] = ServerConfig.port,
    cache_dir: Annotated[Path | None, typer.Option("--cache-dir", help="As given to `serve`.")] = None,
    packed_dir: Annotated[Path | None, typer.Option("--packed-dir", help="As given to `serve`.")] = None,
    as_json: Json = False,
) -> int:
    """Show this machine, the installation and what is wrong with them, to paste into a bug report."""
    from ridgeline.doctor.report import examine

    report = examine(port, cache_dir=cache_dir, packed_dir=packed_dir)
    if as_json:
        print_json(report)
    else:
        columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPE_WIDTH
        print("\n".join(page(report, max(_LEAST_WIDTH, min(columns, _MOST_WIDTH)))))
    return 0 if report["ok"] else 1


def page(report: dict[str, Any], width: int) -> Iterator[str]:
    """Lines of at most `width` characters, but for words that are longer."""
    sections = {
        "machine": _machine(report["machine"], report["system"]),
        "native part": _native(report["native"]),
        "ceilings": _ceilings(report["storage"]["probe"]),
        "versions": _versions(report),
        "on disk": _storage(report),
        "environment": list(report["environment"].items()) or [("", "nothing that matters is set")],
    }
    for title, lines in sections.items():
        yield title
        for name, value in lines:
            yield from _wrapped(f"  {name:<{_NAME_WIDTH}}", value, width)
        yield ""
    yield "what is wrong"
    for finding in report["findings"]:
        yield from _wrapped(f"  {finding['severity']}: ", finding["problem"], width, indent=4)
        yield from _wrapped("    do: ", finding["advice"], width, indent=8)
    if not report["findings"]:
        yield "  nothing that was found"


def _wrapped(head: str, text: str, width: int, indent: int = _NAME_WIDTH + 4) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=f"{head}  " if indent == _NAME_WIDTH + 4 else head,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _machine(machine: dict[str, Any], system: dict[str, Any]) -> Iterator[Line]:
    yield "processor", f"{machine['processor']} ({machine['architecture']})"
    quota = "no quota" if machine["quota_cores"] is None else f"quota {machine['quota_cores']:.4g}"
    cores = f"{machine['usable_cores']} usable: {machine['installed_cores']} installed"
    yield "cores", f"{cores}, affinity {machine['affinity_cores']}, {quota}"
    if machine["last_level_cache_bytes"]:
        yield "cache", f"{machine['last_level_cache_bytes'] / 2**20:,.0f} MiB, last level"
    free, total = (format_bytes(machine[key]) for key in ("available_memory_bytes", "memory_bytes"))
    yield "memory", f"{free} free of {total}"
    swap = format_bytes(machine["swap_bytes"]) if machine["swap_bytes"] else "none"
    yield "swap", f"{swap}, {format_bytes(machine['swap_used_bytes'])} used"
    yield "huge pages", machine["transparent_huge_pages"] or "unknown"
    if machine["load_average"] is not None:
        yield "load average", " ".join(f"{load:.2f}" for load in machine["load_average"])
    if machine["stolen_share"] is not None:
        yield "stolen time", f"{machine['stolen_share']:.1%} since the start"
    yield "governor", machine["governor"] or "unknown"
    parts = [system["distribution"], f"{system['name']} {system['release']}", system["libc"]]
    yield "system", ", ".join(part for part in parts if part) + (", in a container" if system["in_container"] else "")


def _native(native: dict[str, Any]) -> Iterator[Line]:
    if native["problem"]:
        yield "", native["problem"]
    if native["isa"]:
        yield "ISA path", native["isa"]
    for name, problem in native["paths"].items():
        yield name, problem or "can run"
    if "compiler" in native:
        yield "built by", f"{native['compiler']} ({native['file']})"


def _ceilings(probe: dict[str, Any]) -> Iterator[Line]:
    if probe["date"] is None:
        yield "", probe["problem"] or "not measured yet"
        return
    spread = "" if probe["spread"] is None else f", spread {probe['spread']:.0%}"
    effort = "a two-second look" if probe["quick"] else "a probe"
    yield "measured", f"{probe['date'][:16]}, {probe['age_days']} days ago, {effort}{spread}"
    yield "memory", f"{probe['bytes_per_s'] / 1e9:.1f} GB/s"
    rates = ", ".join(f"{dtype} {rate / 1e9:,.0f}" for dtype, rate in probe["flops_per_s"].items())
    yield "products", f"{rates} GFLOP/s"


def _versions(report: dict[str, Any]) -> Iterator[Line]:
    versions, gpu = report["versions"], report["gpu"]
    yield "ridgeline", versions["ridgeline"]
    yield "Python", versions["python"]
    yield "packages", ", ".join(f"{name} {version or 'MISSING'}" for name, version in versions["dependencies"].items())
    if gpu is not None:
        yield "GPU", f"torch {gpu['torch']}, CUDA {gpu['cuda']}, {'usable' if gpu['usable'] else 'not usable'}"


def _storage(report: dict[str, Any]) -> Iterator[Line]:
    storage, model = report["storage"], report["model"]
    for key, name in (("packed", "packed weights"), ("kv_pages", "KV pages"), ("bench_runs", "bench runs")):
        if (place := storage[key]) is not None:
            yield name, f"{place['files']} files, {format_bytes(place['bytes'])} in {place['path']}"
    yield "ceilings", storage["probe"]["path"]
    yield "bundled model", f"{model['name']}, " + (format_bytes(model["bytes"]) if model["bytes"] else "not installed")
