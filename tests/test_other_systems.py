"""Systems that are not Linux, and machines without the native part: simulated in processes of their own (the directory
`other_system` says what is taken away there)."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ridgeline
from checkpoints import make_hf
from quick import QUICK, running_server

ROOT = Path(ridgeline.__file__).parent
ELSEWHERE = Path(__file__).parent / "other_system"
NEED_LINUX = {"fcntl", "grp", "pwd", "resource", "termios", "tty", "select"}
# Only what computes keeps packed weights or pages in files, so only they may lean on Linux.
LINUX_ONLY = {"executors/packed_file.py", "engine/page_directory.py"}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return str(make_hf(tmp_path_factory.mktemp("tiny") / "tiny-llama", "llama"))


@pytest.fixture
def elsewhere(tmp_path):
    """Runs a command on another system, in an empty home."""

    def run(*arguments):
        homes = {name: str(tmp_path) for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME")}
        return subprocess.run(
            [sys.executable, "-m", "ridgeline", *arguments],
            env=os.environ | homes | {"PYTHONPATH": str(ELSEWHERE)},
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run


def test_another_system_really_lacks_what_it_should():
    program = "import os, signal; assert not hasattr(os, 'sched_getaffinity'); assert not hasattr(signal, 'SIGHUP')"
    environment = os.environ | {"PYTHONPATH": str(ELSEWHERE)}
    assert subprocess.run([sys.executable, "-c", program], env=environment).returncode == 0
    program = "import ridgeline._native"
    failed = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert "No module named 'ridgeline._native'" in failed.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("plan", "qwen3-0.6b", "--hardware", "h100-sxm", "--json"),
        ("plan", "qwen3-0.6b", "--json"),
        ("plan", "--list"),
        ("bench", "list", "--json"),
        ("serve", "--help"),
        ("doctor", "--json"),
    ],
)
def test_what_computes_nothing_runs_anywhere(elsewhere, arguments):
    done = elsewhere(*arguments)
    assert done.returncode == 0, done.stderr
    if "--json" in arguments:
        json.loads(done.stdout)


def test_a_plan_for_this_machine_says_why_it_knows_no_speed(elsewhere):
    told = elsewhere("plan", "qwen3-0.6b").stderr
    assert "this machine was not measured (the native part is not installed)" in told
    assert "--hardware" in told


def test_a_checkpoint_is_inspected_anywhere(elsewhere, tiny):
    done = elsewhere("inspect", tiny, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["servable"]


@pytest.mark.parametrize(
    "arguments",
    [("serve", "--port", "0"), ("generate", "smollm2-135m", "hi"), ("chat",), ("probe",), ("measure", "smollm2-135m")],
)
def test_what_computes_says_that_it_needs_the_native_part(elsewhere, arguments):
    done = elsewhere(*arguments)
    assert done.returncode == 1
    assert "the native part is not installed" in done.stderr
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr


def test_python_says_so_too(elsewhere, tmp_path):
    program = "import ridgeline; ridgeline.LLM('no/such/model')"  # the model does not matter any more
    failed = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(ELSEWHERE)},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert failed.stderr.splitlines()[-1].startswith(
        "ridgeline.native_part.NativePartError: the native part is not installed"
    )


def test_a_server_elsewhere_is_measured_and_loaded_from_anywhere(elsewhere, tiny):
    with running_server(tiny, *QUICK) as (url, _):
        measured = elsewhere("measure", url, "--repeats", "2", "--output", "8", "--lengths", "64", "--json")
        loaded = elsewhere("bench", url, "--requests", "4", "--concurrency", "2", "--input", "16", "--output", "4",
                           "--json")  # fmt: skip
        why = elsewhere("why", url)
    assert json.loads(measured.stdout)["tpot_median_s"] > 0, measured.stderr
    [point] = json.loads(loaded.stdout)["points"]
    assert (point["completed"], point["failed"]) == (4, 0), loaded.stderr
    assert "tiny-llama on ridgeline" in why.stdout, why.stderr  # so small a model makes no figures that are valid


def test_modules_of_linux_are_imported_where_only_the_native_part_goes():
    for path in ROOT.rglob("*.py"):
        imports = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imports |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imports.add(node.module)
        name = path.relative_to(ROOT).as_posix()
        assert not imports & NEED_LINUX or name in LINUX_ONLY, name
