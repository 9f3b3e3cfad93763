"""What `bench` prints: a table of points, what to think of them, and stored runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ridgeline.cli import INTERRUPTED
from ridgeline.cli.output import print_json
from ridgeline.errors import ConfigError
from ridgeline.measure.compare import compare
from ridgeline.measure.endpoints import short_name
from ridgeline.measure.store import Store
from ridgeline.units import format_duration

_FEW = "~"  # marks a percentile that rests on too few samples


def exit_status(result: dict[str, Any], *, check: bool) -> int:
    """1 for an invalid run, and with `check` for a missed SLO; a run that was ended early as Ctrl-C has it."""
    if result["partial"]:
        return INTERRUPTED
    missed = any(point["attainment"] is not None and not meets(point) for point in result["points"])
    return 1 if not result["valid"] or (check and missed) else 0


def meets(point: dict[str, Any]) -> bool:
    return bool(point["attainment"] >= point["slo"]["target"])


def show(result: dict[str, Any], *, report: Path | None, as_json: bool) -> None:
    if as_json:
        print_json(result)
    else:
        print_result(result)
    if report is not None:
        from ridgeline.measure.bench_chart import save_bench_report

        save_bench_report(report, result)
        print(f"report in {report}", file=sys.stderr)


def print_result(result: dict[str, Any]) -> None:
    console = Console(width=None if Console().is_terminal else 200)
    where = f"{result['server']} at {result['url']}, run {result['id']}"
    console.print(f"{short_name(result['model'])} on {where}", highlight=False)
    console.print(_table(result["points"]))
    for line in remarks(result):
        console.print(line, highlight=False, soft_wrap=True)


def _table(points: list[dict[str, Any]]) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    names = ["load", "done", "tokens/s", "limit", "TTFT P50", "P99", "TPOT P50", "P99", "limit", "E2E P50", "P99"]
    has_slo = any(point["slo"] for point in points)
    for name in [*names, *(["goodput", "within SLO", "verdict"] if has_slo else [])]:
        table.add_column(name, justify="left" if name == "load" else "right")
    for point in points:
        predicted = point["predicted"]
        row = [
            _load_name(point),
            f"{point['completed']}/{point['requests']}",
            _number(point["output_tokens_per_s"]),
            _number(predicted.get("output_tokens_per_s")),
            *_percentiles(point, "ttft_s"),
            *_percentiles(point, "tpot_s"),
            _time(predicted.get("tpot_floor_s")),
            *_percentiles(point, "e2e_s"),
        ]
        if point["slo"]:
            row += [f"{point['goodput_rps']:.2f}/s", f"{point['attainment']:.1%}", _verdict(point["slo"])]
        table.add_row(*row)
    return table


def _load_name(point: dict[str, Any]) -> str:
    from ridgeline.measure.point import Load

    return Load(point["load"], point["concurrency"], point["rate"], point["scheduler"]).name


def _percentiles(point: dict[str, Any], name: str) -> list[str]:
    return [
        (_FEW if f"{name}.{percentile}" in point["low_samples"] else "") + _time(point[name][percentile])
        for percentile in ("p50", "p99")
    ]


def _verdict(slo: dict[str, Any]) -> str:
    if slo["verdict"] != "undecided":
        return str(slo["verdict"])
    more = slo["more_requests"]
    return "undecided" if more is None else f"undecided, {more:,} more"


def remarks(result: dict[str, Any]) -> list[str]:
    """Sentences under the table."""
    points = result["points"]
    lines = []
    if any(point["low_samples"] for point in points):
        lines.append(f"{_FEW} rests on few samples: P99 needs 500, P90 50, P50 10")
    for point in points:
        name = _load_name(point)
        whole = point["output_tokens_per_s_whole_run"]
        if point["output_tokens_per_s"] and whole:
            lines.append(
                f"{name}: {_number(whole)} tokens/s over the whole run of {_time(point['duration_s'])}; output counted "
                f"by {point['token_source']}, {point['output_tokens_mean']:.0f} tokens a request"
            )
            lines.append(f"{name}: {_client(point['client'])}")
        if reason := point["predicted"].get("reason"):
            lines.append(f"{name}: no limit: {reason}")
        lines += [f"{name}: {note}" for note in point["notes"]]
        lines += [f"{name}: INVALID: {reason}" for reason in point["invalid_reasons"]]
    lines += _gains(points)
    if (capacity := result["capacity"]) is not None:
        lines.append(_capacity(capacity))
    return lines


def _client(client: dict[str, Any]) -> str:
    """How late it was, and what it took from a server on the same machine."""
    lags = [
        f"{what} {_time(client[name])} late at P99"
        for what, name in (("event loop", "loop_lag_p99_s"), ("requests", "schedule_lag_p99_s"))
        if client[name] is not None
    ]
    priority = "real-time" if client["real_time"] else "ordinary"
    return "the client: " + ", ".join([*lags, f"{client['cpu_share']:.1%} of a core at {priority} priority"])


def _gains(points: list[dict[str, Any]]) -> list[str]:
    """What continuous batching gains over static, load by load, over the whole run of the same requests."""
    static = {_load_of(point): point for point in points if point["scheduler"] == "static"}
    lines = []
    for point in points:
        other = static.get(_load_of(point)) if point["scheduler"] == "continuous" else None
        if other and other["output_tokens_per_s_whole_run"] and point["output_tokens_per_s_whole_run"]:
            gain = point["output_tokens_per_s_whole_run"] / other["output_tokens_per_s_whole_run"]
            ttft = other["ttft_s"]["p50"] / point["ttft_s"]["p50"]
            lines.append(
                f"{_load_name(point)}: {gain:.2f} times the throughput of static, TTFT P50 {ttft:.2f} times lower"
            )
    return lines


def _load_of(point: dict[str, Any]) -> tuple[Any, ...]:
    return point["load"], point["concurrency"], point["rate"]


def _capacity(capacity: dict[str, Any]) -> str:
    best, missed = capacity["rate"], capacity["missed_at"]
    if best is None:
        return f"the SLO is not met at any rate that was tried, down to {missed:g} requests/s"
    sure = "" if capacity["verdict"] == "pass" else f" ({_doubt(capacity['more_requests'])})"
    return f"the SLO is met up to {best:g} requests/s{sure}" + (f", and missed at {missed:g}" if missed else "")


def _doubt(more_requests: int | None) -> str:
    if more_requests is None:
        return "on so few requests that it may be luck"
    return f"on so few requests that it may be luck: {more_requests:,} more without a miss would make 99 % sure"


def stored(what: str, runs: list[str], as_json: bool) -> int:
    """`bench list` and `bench compare A B`."""
    if what == "list":
        return _list(runs, as_json)
    if len(runs) != 2:
        raise ConfigError("compare takes two runs", hint="`ridgeline bench compare last-1 last`")
    store = Store()
    before, after = (store.load(run) for run in runs)
    compared = compare(before, after)
    if not compared:
        raise ConfigError("the two runs have no load in common", hint="`ridgeline bench list` shows their loads")
    if as_json:
        print_json({"before": before[0]["id"], "after": after[0]["id"], "points": compared})
    else:
        _print_comparison(before[0]["id"], after[0]["id"], compared)
    return 0


def _list(runs: list[str], as_json: bool) -> int:
    if runs:
        raise ConfigError(f"list takes no {runs[0]!r}")
    summaries = Store().runs()
    if as_json:
        print_json({"runs": summaries})
        return 0
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("run", "model", "server", "loads", "valid"):
        table.add_column(name)
    for run in summaries:
        loads = ", ".join(_load_name(point) for point in run["points"])
        table.add_row(run["id"], short_name(run["model"]), run["server"], loads, "yes" if run["valid"] else "no")
    Console(width=None if Console().is_terminal else 200).print(table)
    return 0


def _print_comparison(before: str, after: str, compared: list[dict[str, Any]]) -> None:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("load", "metric", before, after, "change", "95 % interval", "verdict"):
        table.add_column(name, justify="left" if name in ("load", "metric", "verdict") else "right")
    for point in compared:
        name = _load_name({"scheduler": None, **point["load"]})
        old, new = point["output_tokens_per_s"]
        table.add_row(name, "tokens/s", _number(old), _number(new), f"{new / old - 1:+.1%}" if old and new else "-")
        for metric, title in (("ttft_s", "TTFT"), ("tpot_s", "TPOT"), ("e2e_s", "E2E")):
            row = point[metric]
            interval = row["interval"] and "{:+.1%} to {:+.1%}".format(*row["interval"])
            change = "-" if row["change"] is None else f"{row['change']:+.1%}"
            cells = (_time(row["before"]), _time(row["after"]), change, interval or "-", row["verdict"])
            table.add_row("", title, *cells)
    Console(width=None if Console().is_terminal else 200).print(table)


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else format_duration(seconds)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"
