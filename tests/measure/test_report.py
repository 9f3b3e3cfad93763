"""Reports: one page that needs nothing else, and pictures."""

import asyncio
import html
import re
import xml.etree.ElementTree as ElementTree

import pytest

from ridgeline.cost.facts import load_facts
from ridgeline.cost.hardware import find_device
from ridgeline.cost.roofline import Roofline
from ridgeline.errors import ConfigError
from ridgeline.measure.experiment import Experiment, Settings
from ridgeline.measure.findings import find
from ridgeline.measure.latency import Latency
from ridgeline.measure.report import save_report
from scripted_latency import ScriptedServer, endpoint

pytest.importorskip("altair")
pytest.importorskip("vl_convert")


def measured(*, limited=True, model="scripted", cached=0):
    server = ScriptedServer(cached=cached)
    target = endpoint(model=model)
    experiment = Experiment(target, server.send, Settings(repeats=3, output_len=16, lengths=(256, 1024)), seed=1)
    asyncio.run(experiment.run())
    roofline = Roofline(load_facts("example-8b"), find_device("h100-sxm"), "bf16", "bf16") if limited else None
    return Latency(target, find(experiment), roofline, "as the test says", ["Something was noticed."], 12.0)


def test_a_page_holds_everything_and_loads_nothing(tmp_path):
    path = tmp_path / "report.html"
    latency = measured()
    save_report(path, latency)
    page = path.read_text()
    assert not re.search(r"<script|<link|<img|@import|\bsrc=|url\((?!#)", page)
    assert set(re.findall(r'https?://[^"\s<&,]+', page)) <= {
        "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink", "http://127.0.0.1:8000",
    }  # fmt: skip
    assert page.count("<svg") == 1
    visible = html.unescape(page)
    for text in (latency.explanation, *latency.slopes, *latency.counterfactuals, "Something was noticed."):
        assert text in visible
    assert "<td>1,024</td>" in page
    assert "Not valid" not in page


def test_what_a_server_says_is_escaped(tmp_path):
    path = tmp_path / "report.html"
    save_report(path, measured(model="<script>alert(1)</script>"))
    assert "<script" not in path.read_text()


def test_an_invalid_run_says_so_on_its_page(tmp_path):
    path = tmp_path / "report.html"
    save_report(path, measured(cached=100))
    assert "Not valid" in path.read_text()
    assert "the prefix cache answered" in path.read_text()


@pytest.mark.parametrize("limited", [True, False])
def test_pictures(tmp_path, limited):
    save_report(tmp_path / "a.png", measured(limited=limited))
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    save_report(tmp_path / "a.svg", measured(limited=limited))
    root = ElementTree.parse(tmp_path / "a.svg").getroot()
    texts = {node.text for node in root.iter() if node.text}
    assert {"time to first token", "time per output token", "prompt, tokens", "context, tokens"} <= texts
    assert ("limit" in texts) is limited


def test_other_suffixes_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="--report"):
        save_report(tmp_path / "a.pdf", measured())
