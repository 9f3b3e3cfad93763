"""`ridgeline doctor` as people and programs see it."""

import getpass
import socket
from pathlib import Path

import pytest

from ridgeline.cli import main
from ridgeline.cli.doctor import page
from ridgeline.doctor.report import examine


@pytest.fixture(autouse=True)
def empty_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


def test_the_page_holds_what_a_bug_report_needs(capsys, monkeypatch):
    monkeypatch.setenv("RIDGELINE_ISA", "generic")
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    for words in (
        "processor",
        "memory",
        "ISA path        generic",
        "built by",
        "ceilings",
        "numpy 2",
        "packed weights",
    ):
        assert words in shown
    assert "\x1b" not in shown
    assert all(len(line) <= 80 or max(map(len, line.split())) > 60 for line in shown.splitlines())  # a path is not cut


def test_a_narrow_terminal_cuts_nothing():
    report = examine(0)
    for width in (40, 60, 100):
        lines = list(page(report, width))
        assert all(len(line) <= width or 18 + max(map(len, line.split())) > width for line in lines)  # one long word
        words = " ".join(lines).split()
        assert all(word in words for finding in report["findings"] for word in finding["problem"].split())


def test_json_is_one_object_and_the_status_says_whether_something_is_broken(run_json, monkeypatch):
    status, report = run_json("doctor")
    assert (status, report["ok"]) == (0, True)
    assert report["native"]["isa"] in report["native"]["paths"]
    monkeypatch.setenv("RIDGELINE_ISA", "abacus")
    status, report = run_json("doctor")
    assert (status, report["ok"]) == (1, False)
    assert report["findings"][0]["severity"] == "error"


def test_nobody_is_named(run_json, monkeypatch, tmp_path):
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setattr(getpass, "getuser", lambda: "anna")
    _, report = run_json("doctor", "--packed-dir", str(tmp_path / "a"), "--cache-dir", "/nowhere/anna/pages")
    assert report["storage"]["packed"]["path"] == "~/a"
    assert report["storage"]["kv_pages"]["path"] == "/nowhere/USER/pages"


def test_a_busy_port_is_found(run_json):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert run_json("doctor", "--port", str(port))[1]["port"] == {"number": port, "busy": True}
