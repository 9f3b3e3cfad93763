"""A measured latency on the terminal: the table with the limit, charts made of bars, and the sentences."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ridgeline.measure.explain import tokens_per_s
from ridgeline.measure.findings import Point
from ridgeline.measure.latency import Latency
from ridgeline.units import format_duration

_WIDE = 100  # columns from which the sentence stands in the table
_UNKNOWN = "-"


def print_latency(latency: Latency, console: Console | None = None) -> None:
    console = console or Console(highlight=False)
    endpoint, findings = latency.endpoint, latency.findings
    console.print(f"[bold]{endpoint.short_name}[/] on [bold]{endpoint.server}[/] at {endpoint.url}\n")
    if not findings.valid:
        for reason in findings.invalid_reasons:
            console.print(Text(f"not valid: {reason}", style="red"))
        console.print()
    _print_table(console, latency)
    _print_rates(console, latency)
    points = [findings.repeats, *findings.points]
    limits = [latency.ttft_limit_s(point) for point in points]
    _print_bars(console, "time to first token, by prompt", points, [p.ttft_median_s for p in points], limits)
    limits = [latency.tpot_limit_s(point) for point in points]
    _print_bars(console, "time per output token, by prompt", points, [p.tpot_median_s for p in points], limits)
    _print_server_times(console, points)
    for title, lines in (
        ("slopes", latency.slopes),
        ("noticed", latency.causes),
        ("if the same bandwidth were reached", latency.counterfactuals),
        ("notes", [f"limit: {latency.limit_reason}", _client_line(latency), *findings.notes]),
    ):
        _print_list(console, title, lines)


def _client_line(latency: Latency) -> str:
    findings = latency.findings
    return (
        f"client: event loop late by {duration(findings.loop_lag_s)} at P99, round trip {duration(findings.rtt_s)}, "
        f"cache {findings.cache}, tokens counted by {findings.token_source or 'nobody'}"
    )


def _print_table(console: Console, latency: Latency) -> None:
    repeats, efficiency = latency.findings.repeats, latency.efficiency
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for name in ("limit", "median TPOT", "P90 TPOT", "ratio"):
        table.add_column(name, no_wrap=True)
    cells = [
        duration(latency.limit_tpot_s),
        duration(latency.tpot_s),
        duration(repeats.tpot_p90_s),
        _UNKNOWN if efficiency is None else f"{efficiency:.2f}",
    ]
    if console.width >= _WIDE:
        table.add_column("why", overflow="fold")
        cells.append(latency.explanation)
    table.add_row(*cells)
    console.print(table)
    if console.width < _WIDE:
        console.print(Text("\n" + latency.explanation))


def _print_rates(console: Console, latency: Latency) -> None:
    tpot, limit = latency.tpot_s, latency.limit_tpot_s
    if tpot and limit:
        console.print(
            f"\nmeasured / theoretical: {tokens_per_s(tpot)} of {tokens_per_s(limit)}, TPOT is "
            f"[bold]{tpot / limit:.2f}x[/] its limit"
        )
    elif tpot:
        console.print(f"\nmeasured: {tokens_per_s(tpot)}")


def _print_bars(
    console: Console, title: str, points: Sequence[Point], times: list[float | None], limits: list[float | None]
) -> None:
    """A bar per point, as long as its time; the part that the limit explains is filled."""
    longest = max((time for time in times if time), default=0.0)
    if not longest:
        return
    known = any(limits)
    console.print(f"\n[bold]{title}[/]" + (" ([blue]█[/] limit, [cyan]▒[/] beyond it)" if known else ""))
    width = max(10, console.width - 40)
    for point, time, limit in zip(points, times, limits, strict=True):
        if time is None:
            continue
        length = max(1, round(width * time / longest))
        within = min(length, round(width * (limit or 0.0) / longest))
        bar = Text("█" * within, style="blue") + Text("▒" * (length - within), style="cyan")
        of_limit = f" / {duration(limit)}" if limit else ""
        label = "?" if point.prompt_tokens is None else f"{point.prompt_tokens:,}"
        console.print(Text(f"{label:>7}  ") + bar + Text(f"  {duration(time)}{of_limit}"))


def _print_server_times(console: Console, points: Sequence[Point]) -> None:
    if all(point.server_prefill_s is point.server_decode_s is point.cached_tokens is None for point in points):
        return
    console.print("\n[bold]as the server tells it[/]")
    table = Table(
        "prompt",
        "cached",
        "prefill",
        "(client's TTFT)",
        "decode per token",
        "(client's TPOT)",
        box=None,
        pad_edge=False,
    )
    for point in points:
        table.add_row(
            _count(point.prompt_tokens),
            _count(point.cached_tokens),
            duration(point.server_prefill_s),
            duration(point.ttft_median_s),
            duration(point.server_tpot_s),
            duration(point.tpot_median_s),
        )
    console.print(table)


def _print_list(console: Console, title: str, lines: Sequence[str]) -> None:
    if not lines:
        return
    console.print(f"\n[bold]{title}[/]")
    table = Table.grid(padding=(0, 1))
    for line in lines:
        table.add_row(" -", Text(line))
    console.print(table)


def duration(seconds: float | None) -> str:
    return _UNKNOWN if seconds is None else format_duration(seconds)


def _count(number: int | None) -> str:
    return _UNKNOWN if number is None else f"{number:,}"
