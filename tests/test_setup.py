"""tools/setup.py finds an environment that can't be built upon, and leaves a good one alone."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[1] / "tools" / "setup.py"


@pytest.fixture(scope="module")
def setup() -> ModuleType:
    spec = importlib.util.spec_from_file_location("setup_tool", TOOL)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def venv(tmp_path: Path, setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment as `make` leaves it, but for its Python: this one."""
    monkeypatch.setattr(setup, "LOG", tmp_path / "setup.log")
    venv = tmp_path / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(sys.executable)
    (venv / ".place.stamp").write_text(setup.digest(str(venv)))
    (venv / ".python.stamp").write_text(sys.version)
    return venv


def test_a_good_environment_is_left_alone(setup: ModuleType, venv: Path):
    assert not setup.Environment(venv).make(this_python=True)


def spoil_by_moving(venv: Path) -> Path:
    return Path(shutil.move(venv, venv.with_name("moved")))


def spoil_by_breaking_off(venv: Path) -> Path:
    (venv / ".unfinished").touch()
    return venv


def spoil_by_taking_python(venv: Path) -> Path:
    (venv / "bin" / "python").unlink()
    return venv


def spoil_by_another_python(venv: Path) -> Path:
    (venv / ".python.stamp").write_text("3.10.1")
    return venv


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (spoil_by_moving, "it was moved"),
        (spoil_by_breaking_off, "broken off"),
        (spoil_by_taking_python, "its Python does not work"),
        (spoil_by_another_python, "asked for Python"),
    ],
)
def test_a_spoilt_environment_is_made_anew(setup: ModuleType, venv: Path, spoil, fault: str, capsys, monkeypatch):
    spoilt = spoil(venv)
    monkeypatch.setattr(setup, "run", lambda title, command, **_: Path(command[-1]).mkdir())
    assert setup.Environment(spoilt).make(this_python=True)
    assert fault in capsys.readouterr().out
    assert sorted(path.name for path in spoilt.iterdir()) == [".place.stamp", ".python.stamp"]


def test_an_installation_that_fails_is_told_with_its_last_lines_and_remembered(
    setup, venv: Path, monkeypatch, tmp_path
):
    monkeypatch.setattr(setup, "WHEELS", tmp_path / "wheels")
    (venv / "bin" / "python").unlink()
    (venv / "bin" / "python").write_text(
        '#!/bin/sh\n[ "$3" = install ] && echo no room on the disk && exit 3\nexit 0\n'
    )
    (venv / "bin" / "python").chmod(0o755)
    environment = setup.Environment(venv)
    with pytest.raises(setup.SetupError, match="no room on the disk"):
        environment.install_locked("runtime.txt")
    assert environment.unfinished.exists()


def test_what_no_lock_names_is_removed(setup: ModuleType, venv: Path, monkeypatch, tmp_path: Path):
    ran: list[str] = []
    monkeypatch.setattr(setup, "WHEELS", tmp_path / "wheels")
    monkeypatch.setattr(setup, "run", lambda title, command, **_: ran.append(command))
    monkeypatch.setattr(setup.Environment, "_installed", lambda _: {"numpy", "ridgeline", "left-over"})
    setup.Environment(venv).install_locked("runtime.txt")
    assert ran[-1][-3:] == ["uninstall", "-y", "left-over"]
    assert not any("numpy" in command[-1] for command in ran)


def test_an_old_python_is_told_before_anything_is_made(setup: ModuleType, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(setup, "OLDEST_PYTHON", (99,))
    with pytest.raises(setup.SetupError, match=r"3\.11 or newer is needed"):
        setup.Environment(tmp_path / ".venv").make(this_python=False)
    assert not (tmp_path / ".venv").exists()


def test_a_missing_compiler_is_told(setup: ModuleType, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(setup.SetupError, match="no C\\+\\+ compiler"):
        setup.check_compiler()
