"""The locks in requirements/ name one version of all that pyproject.toml asks for, within its ranges, with hashes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
WANTED = {
    "runtime.txt": [*PYPROJECT["build-system"]["requires"], *PYPROJECT["project"]["dependencies"]],
    "dev.txt": EXTRAS["report"] + [line for line in EXTRAS["dev"] if not line.startswith("torch")],
    "torch.txt": EXTRAS["torch"],
}
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PLATFORMS = [
    {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "platform_machine": "x86_64"},
    {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "platform_machine": "aarch64"},
    {"sys_platform": "darwin", "platform_system": "Darwin", "os_name": "posix", "platform_machine": "arm64"},
]


def pins(lock: str) -> list[Requirement]:
    text = (ROOT / "requirements" / lock).read_text()
    lines = [line.rstrip("\\ ") for line in text.splitlines() if line and line[0] not in " #"]
    return [Requirement(line) for line in lines]


def pinned_version(lock: str, name: str, environment: dict[str, str]) -> str:
    """The one version of `name` that the locks up to this one give there: what dev needs may be in runtime."""
    [pin] = [
        pin
        for pin in [*pins(lock), *(pins("runtime.txt") if lock == "dev.txt" else [])]
        if canonicalize_name(pin.name) == canonicalize_name(name)
        and (pin.marker is None or pin.marker.evaluate(environment))
    ]
    return str(pin.specifier).removeprefix("==")


@pytest.mark.parametrize("platform", PLATFORMS, ids=lambda p: f"{p['sys_platform']}-{p['platform_machine']}")
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("lock", WANTED)
def test_the_lock_is_within_the_ranges_of_pyproject(lock: str, python: str, platform: dict[str, str]):
    environment = default_environment() | platform | {"python_version": python, "python_full_version": f"{python}.1"}
    for wanted in map(Requirement, WANTED[lock]):
        version = pinned_version(lock, wanted.name, environment)
        assert wanted.specifier.contains(version), f"{wanted}: the lock has {version}; run `make lock`"


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_each_line_of_a_lock_is_one_version_with_hashes(lock: Path):
    entries = re.split(r"\n(?=\S)", lock.read_text())
    assert len(entries) > 1
    for entry in entries:
        if not entry.startswith("#"):
            assert re.match(r"[\w.-]+==[\w.+]+( ; .*?)? \\\n( +--hash=sha256:[0-9a-f]{64}( \\\n|\n?$))+", entry), entry


def test_on_linux_only_builds_of_torch_for_cpus_are_taken():
    for pin in pins("torch.txt"):
        on_linux = pin.marker is None or pin.marker.evaluate({"sys_platform": "linux"})
        assert str(pin.specifier).endswith("+cpu") == on_linux
