"""Two charts of a latency experiment: TTFT against prompt length, TPOT against context, each with its limit.

Drawn by altair, rendered by vl-convert without a browser; both come with the extra `report`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ridgeline.cost.roofline import Roofline
from ridgeline.errors import ConfigError
from ridgeline.measure.latency import Latency

if TYPE_CHECKING:
    import altair

_SIZE = {"width": 400, "height": 280}
_LINE_POINTS = 40  # of a predicted curve
_COLORS = {"measured": "#1f6feb", "limit": "#8b949e"}
_MS = 1e3


def latency_chart(latency: Latency, *, titled: bool = True) -> altair.HConcatChart:
    """Raises ConfigError when altair is not installed."""
    alt = load_altair()
    points = [latency.findings.repeats, *latency.findings.points]
    ttft = [
        {"x": p.prompt_tokens, "ms": p.ttft_median_s * _MS, "p90": (p.ttft_p90_s or 0) * _MS, "series": "measured"}
        for p in points
        if p.prompt_tokens and p.ttft_median_s
    ]
    tpot = [
        {"x": p.context, "ms": p.tpot_median_s * _MS, "p90": (p.tpot_p90_s or 0) * _MS, "series": "measured"}
        for p in points
        if p.context and p.tpot_median_s
    ]
    if not ttft or not tpot:
        raise ConfigError("nothing was measured that a chart could show", hint="`--json` says why")
    roofline = latency.roofline
    left = _panel(alt, ttft, _curve(roofline, ttft, "prefill"), "time to first token", "prompt, tokens")
    right = _panel(alt, tpot, _curve(roofline, tpot, "decode"), "time per output token", "context, tokens")
    chart: altair.HConcatChart = alt.hconcat(left, right, spacing=50).configure_view(stroke=None)
    if not titled:
        return chart
    title = f"{latency.endpoint.short_name} on {latency.endpoint.server}"
    return chart.properties(title=alt.Title(title, fontSize=16, anchor="start", offset=12))


def render_svg(chart: altair.HConcatChart) -> str:
    import vl_convert

    return str(vl_convert.vegalite_to_svg(chart.to_dict()))


def render_png(chart: altair.HConcatChart) -> bytes:
    import vl_convert

    return bytes(vl_convert.vegalite_to_png(chart.to_dict(), scale=2))


def load_altair() -> Any:
    """Raises ConfigError when the extra `report` is not installed."""
    try:
        import altair
        import vl_convert  # noqa: F401  what renders without a browser
    except ImportError as error:
        raise ConfigError("reports need altair and vl-convert", hint="pip install 'ridgeline[report]'") from error
    return altair


def _curve(roofline: Roofline | None, measured: list[dict[str, Any]], phase: str) -> list[dict[str, Any]]:
    """The limit between the shortest and the longest that was measured; empty when it is not known."""
    if roofline is None:
        return []
    low, high = (f(row["x"] for row in measured) for f in (min, max))
    tokens = sorted({round(low + (high - low) * i / _LINE_POINTS) for i in range(_LINE_POINTS + 1)})
    work = roofline.prefill if phase == "prefill" else roofline.decode
    times = [(n, roofline.time(work(n))) for n in tokens]
    return [{"x": n, "ms": time * _MS, "series": "limit"} for n, time in times if time is not None]


def _panel(
    alt: Any, measured: list[dict[str, Any]], limit: list[dict[str, Any]], title: str, x_title: str
) -> altair.LayerChart:
    series = list(_COLORS) if limit else ["measured"]
    color = alt.Color(
        "series:N",
        title=None,
        scale=alt.Scale(domain=series, range=[_COLORS[name] for name in series]),
        legend=alt.Legend(orient="top-left", symbolOpacity=1),
    )
    x = alt.X("x:Q", title=x_title, scale=alt.Scale(nice=False, zero=False, padding=12), axis=alt.Axis(grid=False))
    y = alt.Y("ms:Q", title="ms", scale=alt.Scale(zero=True))
    dots = alt.Chart(alt.Data(values=measured))
    layers = [
        alt.Chart(alt.Data(values=limit)).mark_line(strokeDash=[6, 4], strokeWidth=2).encode(x, y, color),
        dots.mark_rule(strokeWidth=2, opacity=0.5).encode(x, y, alt.Y2("p90:Q"), color),
        dots.mark_line(strokeWidth=1.5).encode(x, y, color),
        dots.mark_point(size=60, filled=True, opacity=1).encode(x, y, color),
    ]
    chart: altair.LayerChart = alt.layer(*layers if limit else layers[1:])
    return chart.properties(title=title, **_SIZE)
