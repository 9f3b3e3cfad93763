"""The README's examples, run as they stand against a real server process.

The `ridgeline serve` block becomes the server (on a free port, with little KV memory); every other block runs in order
in an empty directory, with the port put in place. The `make` block is what runs this test.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from quick import EXECUTOR, running_server

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"^```(bash|python)\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
SERVE = "ridgeline serve\n"
EXAMPLES = [(kind, text) for kind, text in BLOCKS if text != SERVE and not text.startswith("make ")]
LATE_CLIENT = "not valid: the client was late"  # `measure` on a machine that is busy with other work


@pytest.fixture(scope="module")
def server():
    assert ("bash", SERVE) in BLOCKS
    with running_server("--kv-memory", "200MB", "--executor", EXECUTOR, timeout_s=600) as (url, ready_text):
        assert "smollm2-135m" in ready_text
        assert f"curl {url}/chat/completions" in ready_text
        yield url


def test_the_readme_shows_all_ways_in():
    assert len(EXAMPLES) >= 5
    assert {"curl", "OpenAI", "LLM", "generate", "chat", "inspect"} <= set(re.findall(r"\w+", str(EXAMPLES)))


@pytest.mark.parametrize("index", range(len(EXAMPLES)))
def test_example(index, server, tmp_path):
    kind, text = EXAMPLES[index]
    program = text.replace("http://127.0.0.1:8000", server.removesuffix("/v1"))
    command = ["bash", "-euo", "pipefail", "-c", program] if kind == "bash" else [sys.executable, "-c", program]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    result = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PATH": path}, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0 or LATE_CLIENT in result.stdout, result.stderr + result.stdout
    assert len(result.stdout) > 10
    assert '"error"' not in result.stdout
