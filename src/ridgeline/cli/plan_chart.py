"""`plan --chart FILE`: the roofline with this model's prefill and decode on it, and memory against context.

Drawn by altair, which the extra `report` installs; .png and .svg are rendered by vl-convert without a browser.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ridgeline.cost.plan import Plan
from ridgeline.cost.question import Question
from ridgeline.cost.roofline import Roofline
from ridgeline.errors import ConfigError

_SUFFIXES = (".png", ".svg", ".html")
_SIZE = {"width": 460, "height": 320}
_BATCHES = (1, 8, 32, 128)


def save_chart(path: Path, plan: Plan, roofline: Roofline, question: Question) -> None:
    """Raises ConfigError for another suffix, a missing package, an unwritable path or hardware without figures."""
    if path.suffix.lower() not in _SUFFIXES:
        raise ConfigError(f"--chart {path}", hint="a file name that ends in " + ", ".join(_SUFFIXES))
    if roofline.compute is None or roofline.bandwidth is None:
        raise ConfigError(
            "a roofline needs bandwidth and compute", hint="give --hardware, or --bandwidth and --compute"
        )
    try:
        import altair
        import vl_convert  # noqa: F401  altair saves .png and .svg through it
    except ImportError as error:
        raise ConfigError("charts need altair and vl-convert", hint="pip install 'ridgeline[report]'") from error
    title = f"{plan.model} in {plan.dtype} on {plan.hardware}"
    chart = (
        altair.hconcat(
            _roofline_chart(altair, roofline, question), _memory_chart(altair, roofline, question), spacing=60
        )
        .resolve_scale(color="independent")
        .properties(title=altair.Title(title, fontSize=16, anchor="start"))
    )
    try:
        chart.save(str(path), **({"scale_factor": 2} if path.suffix.lower() == ".png" else {}))
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def _roofline_chart(altair: Any, roofline: Roofline, question: Question) -> Any:
    points = _points(roofline, question)
    roof_points = _roof(roofline, points)
    x = _log_axis(altair, altair.X, "intensity:Q", "FLOP per byte", [p["intensity"] for p in roof_points], 2.0)
    y = _log_axis(altair, altair.Y, "tflops:Q", "TFLOP/s at most", [p["tflops"] for p in roof_points], 1.6)
    roof = altair.Chart(altair.Data(values=roof_points)).mark_line(color="#888888").encode(x, y)
    base = altair.Chart(altair.Data(values=points)).encode(x, y)
    dots = base.mark_point(size=90, filled=True).encode(
        color=altair.Color("phase:N", title=None, legend=altair.Legend(orient="top-left")), tooltip=["name:N"]
    )
    labels = base.mark_text(align="left", dx=9, dy=9).encode(text="name:N")
    return altair.layer(roof, dots, labels).properties(
        title="roofline: the floor of a prefill and of decode steps", **_SIZE
    )


def _log_axis(altair: Any, axis: Any, field: str, title: str, values: list[float], margin: float) -> Any:
    """Grid lines at powers of ten only; `margin` is room for labels beyond the largest value."""
    ends = [min(values), max(values) * margin]
    powers = [10.0**n for n in range(math.floor(math.log10(ends[0])), math.ceil(math.log10(ends[1])) + 1)]
    scale = altair.Scale(type="log", domain=ends, nice=False)
    return axis(field, title=title, scale=scale, axis=altair.Axis(values=powers, format="~g"))


def _roof(roofline: Roofline, points: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Three corners: the slope of the bandwidth, the ridge, the ceiling of the compute."""
    compute, bandwidth = roofline.compute or 0.0, roofline.bandwidth or 0.0
    ridge = compute / bandwidth
    lowest = min(0.5, *(point["intensity"] for point in points))
    highest = max(10 * ridge, *(2 * point["intensity"] for point in points))
    return [
        {"intensity": intensity, "tflops": min(compute, bandwidth * intensity) / 1e12}
        for intensity in (lowest, ridge, highest)
    ]


def _points(roofline: Roofline, question: Question) -> list[dict[str, Any]]:
    """Where a prefill and decode steps of several batches run when they reach their floor."""
    batches = sorted({*_BATCHES, question.batch})
    works = [
        *((f"decode x {batch}", "decode", roofline.decode(question.final_len, batch=batch)) for batch in batches),
        (f"prefill {question.uncached:,}", "prefill", roofline.prefill(question.input_len, question.cached)),
    ]
    points = []
    for name, phase, work in works:
        seconds = roofline.time(work)
        if seconds:
            tflops = work.flops / seconds / 1e12
            points.append({"name": name, "phase": phase, "intensity": work.intensity, "tflops": tflops})
    return points


def _memory_chart(altair: Any, roofline: Roofline, question: Question) -> Any:
    """Weights, and on top the KV of 1, 8 and 32 sequences at each context; the device's memory as a line."""
    facts = roofline.facts
    longest = min(max(facts.max_context, question.context_len), 1 << 20)
    contexts = sorted({longest * i // 64 or 1 for i in range(65)})
    weights_gb = facts.weight_bytes(roofline.dtype) / 1e9
    rows = [
        {
            "context": context,
            "gb": weights_gb + batch * facts.kv_bytes(context, roofline.kv_dtype) / 1e9,
            "sequences": batch,
        }
        for batch in sorted({1, 8, 32, question.batch})
        for context in contexts
    ]
    memory = roofline.hardware.memory_bytes
    top = max(weights_gb * 1.3, (memory or 0) / 1e9 * 1.5, rows[-1]["gb"] if memory is None else 0)
    y = altair.Y("gb:Q", title="GB", scale=altair.Scale(domain=[0, top]))
    lines = (
        altair.Chart(altair.Data(values=rows))
        .mark_line(clip=True)
        .encode(
            altair.X("context:Q", title="context, tokens", scale=altair.Scale(domain=[0, longest], nice=False)),
            y,
            color=altair.Color("sequences:O", title="sequences", scale=altair.Scale(scheme="category10")),
        )
    )
    layers = [lines, _rule(altair, y, weights_gb, f"weights: {weights_gb:.3g} GB", "#666666", 9)]
    if memory is not None:
        layers.append(_rule(altair, y, memory / 1e9, f"{roofline.hardware.name}: {memory / 1e9:g} GB", "#000000"))
    return altair.layer(*layers).properties(title="memory: weights and the KV of so many sequences", **_SIZE)


def _rule(altair: Any, y: Any, gb: float, text: str, color: str, dy: int = -7) -> Any:
    base = altair.Chart(altair.Data(values=[{"gb": gb, "text": text}])).encode(y)
    rule = base.mark_rule(color=color, strokeDash=[6, 4])
    return rule + base.mark_text(align="right", x=_SIZE["width"] - 4, dy=dy, color=color).encode(text="text:N")
