"""`ridgeline serve` as a process: what it says, and how it ends."""

import json
import os
import re
import signal
import socket
import subprocess
import sys

import httpx
import pytest

from quick import QUICK, running_server


def run_serve(*arguments, timeout_s=60):
    command = [sys.executable, "-m", "ridgeline.cli", "serve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)


def test_what_it_says_when_ready(tiny_model):
    flags = ["--served-model-name", "tiny", "--served-model-name", "alias", "--api-key", "secret", "--context", "256"]
    with running_server(tiny_model, *QUICK, *flags) as (url, text):
        lines = text.splitlines()
        models = httpx.get(f"{url}/models", headers={"Authorization": "Bearer secret"}).json()
    assert [model["id"] for model in models["data"]] == ["tiny", "alias", "tiny-llama"]
    assert lines[1].startswith("model     tiny, alias, tiny-llama (")
    assert "context   256 tokens" in lines
    assert "threads   1 (as given)" in lines
    assert "format    fp32, KV cache fp32" in lines
    assert len([line for line in lines if line.startswith("faster    --dtype int8 or int4: ")]) == 1
    assert re.search(
        r"^KV cache  9\d\d KB \(9\d\d KiB\): [\d,]+ tokens, \d+ users at 256 tokens$", text, re.MULTILINE
    ), text
    assert "-H 'Authorization: Bearer YOUR_KEY'" in text
    assert "secret" not in text


def test_a_quantized_format_is_told_by_both_sides_and_as_approximate(tiny_model):
    flags = ["--dtype", "int4", "--head-dtype", "int8-g32", "--no-packed-file"]
    with running_server(tiny_model, *QUICK, *flags) as (url, text):
        (card,) = httpx.get(f"{url}/models").json()["data"]
    assert "format    int4-g32+int8-g32 (w4a8 and w8a8), KV cache bf16" in text
    assert "approximate against its weights" in text
    assert "faster" not in text
    assert card["dtype"] == "int4-g32+int8-g32"


def test_a_busy_port_is_told_before_anything_is_loaded():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = run_serve("no-such-model", "--port", str(port))
    assert result.returncode == 1
    assert f"port {port} on 127.0.0.1 is in use" in result.stderr
    assert "--port" in result.stderr
    assert "no-such-model" not in result.stderr


def test_a_model_that_does_not_load_ends_the_server():
    result = run_serve("no-such-model", "--port", "0")
    assert result.returncode == 1
    assert "error: unknown model 'no-such-model'" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_weights_are_packed_ends_it_cleanly(sent):
    """The loading thread is in native code then; the interpreter must not end under it."""
    command = [sys.executable, "-m", "ridgeline.cli", "serve", "smollm2-135m", "--port", "0"]
    command += ["--kv-memory", "10MB", "--no-packed-file"]  # else an earlier test's packed file would be mapped
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if "packing" in line:
                process.send_signal(sent)
                break
        errors = process.communicate(timeout=60)[1]
    assert process.returncode == 0
    assert "terminate" not in errors
    assert "Traceback" not in errors


def test_ctrl_c_ends_it_cleanly(tiny_model):
    """As SIGTERM does, with which `running_server` ends every server of these tests."""
    command = [sys.executable, "-m", "ridgeline.cli", "serve", tiny_model, "--port", "0", "--json", *QUICK]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        ready = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert (output, errors) == ("", "")
    assert ready["url"].startswith("http://127.0.0.1:")
    assert ready["models"] == ["tiny-llama"]
    assert ready["context_len"] == 512
    assert 0.9e6 < ready["kv_bytes"] <= 1e6
    assert ready["typical_users"] == ready["kv_tokens"] // 512


def test_a_profile_is_printed_at_the_end(tiny_model, tmp_path):
    """Of the steps of one request; stdout stays what a program reads."""
    command = [sys.executable, "-m", "ridgeline.cli", "serve", tiny_model, "--port", "0", "--json", "--profile", *QUICK]
    env = os.environ | {"XDG_DATA_HOME": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        url = json.loads(process.stdout.readline())["url"]
        body = {"model": "tiny-llama", "prompt": "a b c", "max_tokens": 4, "ignore_eos": True}
        answer = httpx.post(f"{url}/completions", json=body)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert answer.json()["usage"]["completion_tokens"] == 4
    assert (process.returncode, output) == (0, "")
    assert "4 steps, " in errors
    lines = [line.split() for line in errors.splitlines()]
    assert any(line[1:2] == ["attention"] for line in lines)
    assert any(line[:2] == ["1", "logits"] for line in lines)
