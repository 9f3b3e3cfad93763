"""`measure --report FILE`: the result as one HTML page that needs nothing else (the charts are SVG inside it, no
script, no network), or the charts alone as .png or .svg."""

from __future__ import annotations

import datetime
import json
from importlib import resources
from pathlib import Path

from ridgeline.errors import ConfigError
from ridgeline.measure.charts import latency_chart, load_altair, render_png, render_svg
from ridgeline.measure.endpoints import short_name
from ridgeline.measure.latency import Latency
from ridgeline.units import format_duration

_SUFFIXES = (".html", ".png", ".svg")
_TEMPLATE = "data/latency_report.html"


def check_report_path(path: Path) -> None:
    """Before minutes are spent on measuring. Raises ConfigError for a suffix or a place that will not do, or when the
    packages that draw are missing."""
    if path.suffix.lower() not in _SUFFIXES:
        raise ConfigError(f"--report {path}", hint="a file name that ends in " + ", ".join(_SUFFIXES))
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--report {path}: there is no directory {path.absolute().parent}")
    load_altair()


def save_report(path: Path, latency: Latency) -> None:
    """Raises ConfigError for what `check_report_path` refuses, nothing measured, or a path that cannot be written."""
    check_report_path(path)
    suffix = path.suffix.lower()
    chart = latency_chart(latency, titled=suffix != ".html")
    try:
        if suffix == ".png":
            path.write_bytes(render_png(chart))
        else:
            text = render_svg(chart) if suffix == ".svg" else _page(latency, render_svg(chart))
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def _page(latency: Latency, svg: str) -> str:
    from jinja2 import Environment

    template = resources.files("ridgeline").joinpath(_TEMPLATE).read_text(encoding="utf-8")
    facts = latency.as_json()
    return (
        Environment(autoescape=True)
        .from_string(template)
        .render(
            facts=facts,
            title=short_name(facts["model"]),
            svg=svg,
            json=json.dumps(facts, indent=1, ensure_ascii=False),
            date=datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
            duration=lambda seconds: format_duration(seconds) if isinstance(seconds, int | float) else "-",
            count=lambda number: f"{number:,}" if isinstance(number, int) else "not reported",
        )
    )
