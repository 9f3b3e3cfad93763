"""`bench --report FILE`: throughput and latencies against the load, as one HTML page that needs nothing else, or as
.png or .svg."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.errors import ConfigError
from ridgeline.measure.charts import load_altair, render_png, render_svg
from ridgeline.measure.endpoints import short_name
from ridgeline.units import format_duration

if TYPE_CHECKING:
    import altair

_SIZE = {"width": 280, "height": 240}
_COLORS = {"P50": "#1f6feb", "P99": "#d1242f", "measured": "#1f6feb", "limit": "#8b949e", "within the SLO": "#1a7f37"}
_TEMPLATE = "data/bench_report.html"


def save_bench_report(path: Path, result: dict[str, Any]) -> None:
    """`result` is what `bench --json` prints. Raises ConfigError when nothing was measured, or where the file cannot be
    written."""
    if not any(point["completed"] for point in result["points"]):
        raise ConfigError("nothing was measured that a chart could show", hint="`--json` says why")
    chart, suffix = bench_chart(result["points"]), path.suffix.lower()
    try:
        if suffix == ".png":
            path.write_bytes(render_png(chart))
        else:
            svg = render_svg(chart)
            path.write_text(svg if suffix == ".svg" else _page(result, svg), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def bench_chart(points: list[dict[str, Any]]) -> altair.HConcatChart:
    alt = load_altair()
    by_rate = any(point["rate"] is not None for point in points)
    load = "requests per second" if by_rate else "requests at once"
    throughput = [
        {"x": _load(point), "y": value, "series": series, "run": _run(point)}
        for point in points
        for series, value in (
            ("measured", point["output_tokens_per_s"]),
            ("limit", point["predicted"].get("output_tokens_per_s")),
        )
    ]
    panels = [_panel(alt, throughput, "output throughput", load, "tokens/s")]
    for name, title in (("ttft_s", "time to first token"), ("tpot_s", "time per output token")):
        rows = [
            {"x": _load(point), "y": value and value * 1e3, "series": series, "run": _run(point)}
            for point in points
            for series, value in (("P50", point[name]["p50"]), ("P99", point[name]["p99"]))
        ]
        panels.append(_panel(alt, rows, title, load, "ms"))
    if any(point["slo"] for point in points):
        rows = [
            {"x": _load(point), "y": point["goodput_rps"], "series": "within the SLO", "run": _run(point)}
            for point in points
        ]
        panels.append(_panel(alt, rows, "goodput", load, "requests/s"))
    chart: altair.HConcatChart = alt.hconcat(*panels, spacing=40).resolve_scale(color="independent")
    return chart.configure_view(stroke=None)


def _load(point: dict[str, Any]) -> float:
    """A trace has no rate of its own: what was sent per second."""
    return float(point["rate"] or point["concurrency"] or point["client"]["offered_rate"] or 0)


def _run(point: dict[str, Any]) -> str:
    """Points of one line: a scheduler's, or a kind of load's."""
    return str(point["scheduler"] or point["load"])


def _panel(alt: Any, rows: list[dict[str, Any]], title: str, x_title: str, y_title: str) -> altair.LayerChart:
    known = [row for row in rows if row["y"] is not None]
    series = [name for name in _COLORS if any(row["series"] == name for row in known)]
    several = len({row["run"] for row in known}) > 1
    color = alt.Color(
        "series:N",
        title=None,
        scale=alt.Scale(domain=series, range=[_COLORS[name] for name in series]),
        legend=alt.Legend(orient="top-left"),
    )
    legend = alt.Legend(orient="bottom", symbolType="stroke", symbolSize=900) if several else None
    base = alt.Chart(alt.Data(values=known)).encode(
        alt.X("x:Q", title=x_title, axis=alt.Axis(grid=False)),
        alt.Y("y:Q", title=y_title, scale=alt.Scale(zero=True)),
        color,
    )
    lines = base.mark_line().encode(alt.StrokeDash("run:N", title=None, legend=legend))
    points = base.mark_point(filled=True, opacity=1)  # apart, or the legend draws the points' shape without its dashes
    chart: altair.LayerChart = alt.layer(lines, points).properties(title=title, **_SIZE)
    return chart


def _page(result: dict[str, Any], svg: str) -> str:
    from jinja2 import Environment

    template = resources.files("ridgeline").joinpath(_TEMPLATE).read_text(encoding="utf-8")
    return (
        Environment(autoescape=True)
        .from_string(template)
        .render(
            result=result,
            title=short_name(result["model"]),
            svg=svg,
            json=json.dumps(result, indent=1, ensure_ascii=False),
            duration=lambda seconds: format_duration(seconds) if isinstance(seconds, int | float) else "-",
            number=lambda value: f"{value:,.1f}" if isinstance(value, int | float) else "-",
            load=lambda point: f"{_load(point):g}",
        )
    )
