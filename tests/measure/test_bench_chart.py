"""Charts and the page of a load test: one file, no network, what is foreign is escaped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ridgeline.errors import ConfigError
from ridgeline.measure.bench_chart import bench_chart, save_bench_report
from ridgeline.measure.events import Record, TokenEvent
from ridgeline.measure.point import Load, Run, table
from ridgeline.measure.validity import Expected, check

pytest.importorskip("altair")
pytest.importorskip("vl_convert")


def point(load: Load, **predicted: Any) -> dict[str, Any]:
    events = [TokenEvent(0.5, "content", 1), TokenEvent(0.75, "content", 1)]
    record = Record(0.0, 0.0, t_1=0.5, t_last=0.75, t_end=0.75, events=events, n_out=2, token_source="usage")
    run = Run(load, [record], started=0.0)
    figures = table(run, None)
    return figures | {"predicted": predicted} | check(run, figures, Expected())


def result(*points: dict[str, Any]) -> dict[str, Any]:
    names = {"model": "<b>m</b>", "server": "vllm", "url": "http://x", "id": "1", "started": "now"}
    return {**names, "points": list(points)}


def test_the_page_holds_everything_and_asks_nobody(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    save_bench_report(path, result(point(Load("closed", 1), output_tokens_per_s=50.0), point(Load("closed", 4))))
    page = path.read_text()
    assert "<svg" in page
    assert "&lt;b&gt;m" in page
    assert "<b>m</b>" not in page
    assert "<script" not in page
    assert page.count("<tr>") == 3
    assert "500 ms" in page


@pytest.mark.parametrize(("suffix", "magic"), [(".svg", b"<svg"), (".png", b"\x89PNG")])
def test_charts_alone(tmp_path: Path, suffix: str, magic: bytes) -> None:
    path = tmp_path / f"chart{suffix}"
    save_bench_report(path, result(point(Load("open", rate=3.0))))
    assert path.read_bytes().startswith(magic)


def test_what_is_drawn() -> None:
    throughput, ttft, tpot = bench_chart([point(Load("closed", 4), output_tokens_per_s=50.0)]).to_dict()["hconcat"]
    assert {row["series"]: row["x"] for row in throughput["data"]["values"]} == {"measured": 4.0, "limit": 4.0}
    assert [row["y"] for row in ttft["data"]["values"]] == [500.0, 500.0]
    assert [row["y"] for row in tpot["data"]["values"]] == [250.0, 250.0]


def test_goodput_is_drawn_where_there_are_limits() -> None:
    with_limits = point(Load("closed", 4)) | {"slo": {"target": 0.9}, "goodput_rps": 1.5}
    panels = bench_chart([with_limits, with_limits | {"scheduler": "static"}]).to_dict()["hconcat"]
    assert [panel["title"] for panel in panels][3:] == ["goodput"]
    assert [row["y"] for row in panels[3]["data"]["values"]] == [1.5, 1.5]
    lines, points = panels[3]["layer"]
    assert lines["encoding"]["strokeDash"]["legend"]["symbolType"] == "stroke"
    assert "strokeDash" not in points["encoding"]


def test_nothing_to_draw(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing was measured"):
        save_bench_report(tmp_path / "x.html", result())
