"""Exit statuses and the shape of failures, which scripts rely on."""

import json
import os
import subprocess
import sys

import pytest

import ridgeline.cli.inspect
from ridgeline.cli import main


def test_an_error_is_a_line_and_a_hint_on_stderr(capsys):
    assert main(["inspect", "smollm2-135n"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == ["error: unknown model 'smollm2-135n'", "hint: did you mean 'smollm2-135m'?"]


def test_a_failing_json_command_prints_one_error_object(run_json):
    status, printed = run_json("inspect", "smollm2-135n")
    assert status == 1
    assert printed == {
        "error": {
            "code": "config_error",
            "message": "unknown model 'smollm2-135n'",
            "hint": "did you mean 'smollm2-135m'?",
        }
    }


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-command"],
        ["serve", "--max-req", "3"],
        ["serve", "--dtype", "fp17"],
        ["serve", "--kv-memory", "2 potatoes"],
        ["serve", "--port", "70000"],
        ["generate", "smollm2-135m"],
        ["generate", "smollm2-135m", "hello", "--out", "x.jsonl"],
        ["generate", "smollm2-135m", "hello", "--raw", "--system", "Be brief."],
        ["chat", "smollm2-135m", "--model", "other"],
    ],
)
def test_usage_errors_exit_2_before_anything_is_loaded(arguments, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err


def test_a_usage_error_is_json_too(run_json):
    status, printed = run_json("generate", "smollm2-135m")
    assert status == 2
    assert printed["error"]["code"] == "usage"
    assert "PROMPT" in printed["error"]["message"]


def test_json_after_a_double_dash_is_a_prompt(capsys):
    assert main(["generate", "no/such/model.gguf", "--", "--json"]) == 1
    assert capsys.readouterr().err.startswith("error: no/such/model.gguf")


def test_ctrl_c_exits_130_without_a_traceback(monkeypatch, capsys):
    def interrupt(model):
        raise KeyboardInterrupt

    monkeypatch.setattr(ridgeline.cli.inspect, "inspect_model", interrupt)
    assert main(["inspect", "smollm2-135m"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_ctrl_c_while_a_command_is_imported_is_no_traceback():
    """The parser is the first thing that takes long: its import blocks here until the signal is there."""
    program = "; ".join(
        [
            "import signal, sys, types",
            "from ridgeline.cli import main",
            "finder = types.SimpleNamespace(find_spec=lambda *_: signal.raise_signal(signal.SIGINT))",
            "sys.meta_path.insert(0, finder)",
            "sys.exit(main(['plan', '--help']))",
        ]
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, b"", b"interrupted\n")


def test_a_reader_that_goes_away_is_no_traceback(tiny_model):
    command = [sys.executable, "-m", "ridgeline.cli", "inspect", tiny_model, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        errors = process.stderr.read()
        process.wait(60)
    assert errors == ""
    assert process.returncode == 1


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"ridgeline {ridgeline.__version__}\n"


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        ("import ridgeline", ["numpy", "torch", "typer", "starlette", "tokenizers", "httpx"]),
        ("from ridgeline import LLM, SamplingParams", ["torch", "typer", "starlette", "tokenizers", "httpx"]),
        ("import ridgeline.cli.app; ridgeline.cli.app.build([])", ["torch", "starlette", "tokenizers", "httpx"]),
    ],
)
def test_imports_stay_light(statement, heavy):
    program = f"{statement}\nimport json, sys\nprint(json.dumps([m for m in {heavy!r} if m in sys.modules]))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(result.stdout) == []


def _run(*arguments: str, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "ridgeline.cli", *arguments]
    return subprocess.run(command, capture_output=True, timeout=60, check=False, **options)


def test_a_locale_without_unicode_is_no_obstacle(tmp_path):
    ascii_only = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    ran = _run("inspect", str(tmp_path / "삼겹살"), env=ascii_only)
    assert ran.returncode == 1
    assert ran.stderr.startswith(b"error: ")
    assert b"Traceback" not in ran.stderr
    assert _run("inspect", "smollm2-135m", env=ascii_only).returncode == 0


@pytest.mark.parametrize("redirection", ["<&-", ">&-", "2>&-", "> /dev/full"])
def test_closed_and_full_streams_end_without_a_traceback(redirection):
    command = f'"{sys.executable}" -m ridgeline.cli inspect smollm2-135m --json {redirection}'
    ran = subprocess.run(["bash", "-c", command], capture_output=True, timeout=60, check=False)
    assert ran.returncode == (1 if "full" in redirection else 0)
    assert b"Traceback" not in ran.stderr
    assert (b"No space left" in ran.stderr) == ("full" in redirection)
