"""The handbook's commands print the numbers that the handbook shows below them."""

import re
import shlex
from pathlib import Path

import pytest

from ridgeline.cli import main

CHAPTER = Path(__file__).parents[2] / "docs" / "handbook" / "inference.md"
EXAMPLE = re.compile(r"^```bash\nridgeline (.*?)\n```\n\n```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXAMPLES = EXAMPLE.findall(CHAPTER.read_text(encoding="utf-8"))


def test_every_command_shows_what_it_prints():
    text = CHAPTER.read_text(encoding="utf-8")
    assert len(EXAMPLES) == text.count("```bash") == text.count("```text") >= 15


@pytest.mark.parametrize(("arguments", "shown"), EXAMPLES, ids=[arguments for arguments, _ in EXAMPLES])
def test_example(arguments, shown, capsys):
    assert main(shlex.split(arguments)) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for line in shown.splitlines():
        assert " ".join(line.split()) in printed
