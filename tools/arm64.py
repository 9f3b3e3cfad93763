"""Builds the native core for arm64 on another machine and runs its tests under qemu's user mode emulation.

    make test-arm64          the kernel tests, and steps of tiny models, on processors with and without dotprod and i8mm
    tools/arm64.py --build   only the build, in build/arm64

Wants Debian or Ubuntu with the packages qemu-user and g++-aarch64-linux-gnu. Python for arm64 comes from the system's
own package sources and is unpacked into build/arm64/root, nothing is installed; what the tests import comes from the
locks in requirements/. Emulation says nothing about speed: benchmarks/arm64_instructions.py counts.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from packaging.markers import Marker

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "arm64"
TREE = BUILD / "root"  # of the emulated system
SITE = TREE / "usr" / "lib" / "python3" / "dist-packages"
PYTHON = BUILD / "python"
MODELS = BUILD / "models"
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
DEBIAN_PACKAGES = ["python3", "libpython3-dev", "libstdc++6"]
PYTHON_PACKAGES = [
    "numpy", "nanobind", "pytest", "pytest-timeout", "hypothesis",
    "iniconfig", "packaging", "pluggy", "pygments", "sortedcontainers",
]  # fmt: skip
PLATFORMS = [f"manylinux{libc}_aarch64" for libc in ("_2_28", "_2_27", "2014")]
PROCESSORS = {"cortex-a57": "neon", "neoverse-n1": "neondot", "max": "i8mm"}  # -> the fastest path that each has


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--build", action="store_true", help="build only")
    options = parser.parse_args()
    require_programs()
    if not (TREE / ".complete").exists():
        make_tree()
    build_core()
    if not options.build:
        run_tests()


def require_programs() -> None:
    missing = [name for name in (COMPILER, EMULATOR, "apt-get", "dpkg") if not shutil.which(name)]
    if missing:
        sys.exit(f"arm64: {', '.join(missing)} not found; on Debian: apt-get install qemu-user g++-aarch64-linux-gnu")


def make_tree() -> None:
    shutil.rmtree(BUILD, ignore_errors=True)
    say("fetching Python for arm64")
    for package in sorted(fetch_debian_packages().glob("*.deb")):
        run("dpkg", "-x", package, TREE)
    interpreter = next((TREE / "usr" / "bin").glob("python3.[0-9]*"))
    PYTHON.write_text(f'#!/bin/sh\nexec {EMULATOR} -cpu ${{QEMU_CPU:-max}} -L {TREE} {interpreter} "$@"\n')
    PYTHON.chmod(0o755)
    install_wheels(interpreter.name.removeprefix("python"))
    (TREE / ".complete").touch()


def fetch_debian_packages() -> Path:
    """With all that they stand on, by the system's own sources, which apt reads as if it were an empty arm64 system."""
    state, cache = BUILD / "apt" / "state", BUILD / "apt" / "cache"
    for folder in (state / "lists" / "partial", cache / "archives" / "partial"):
        folder.mkdir(parents=True)
    (state / "status").touch()
    sources = [
        path for name in ("debian", "ubuntu") if (path := Path(f"/etc/apt/sources.list.d/{name}.sources")).exists()
    ]
    settings = {
        "APT::Architecture": "arm64", "APT::Architectures": "arm64", "APT::Sandbox::User": "", "Debug::NoLocking": "1",
        "Dir::State": state, "Dir::State::status": state / "status", "Dir::Cache": cache,
        "Dir::Etc::sourcelist": sources[0] if sources else "/etc/apt/sources.list", "Dir::Etc::sourceparts": "-",
    }  # fmt: skip
    apt = ["apt-get", *(f"-o{name}={value}" for name, value in settings.items()), "--quiet"]
    run(*apt, "update")
    run(*apt, "--yes", "--no-install-recommends", "--download-only", "install", *DEBIAN_PACKAGES)
    return cache / "archives"


def install_wheels(version: str) -> None:
    """The locks' entries for that Python: pip would read their markers for the Python that it runs under."""
    environment = {"python_version": version, "python_full_version": f"{version}.0", "platform_machine": "aarch64"}
    wanted = BUILD / "requirements.txt"
    entries = [
        entry
        for lock in ("runtime.txt", "dev.txt")
        for entry in re.split(r"\n(?=\S)", (ROOT / "requirements" / lock).read_text())
        if entry.partition("==")[0] in PYTHON_PACKAGES
    ]
    wanted.write_text("\n".join(without_marker(entry) for entry in entries if applies(entry, environment)))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    pip += [f"--platform={name}" for name in PLATFORMS]
    run(*pip, "--implementation=cp", f"--python-version={version}", "--target", SITE, "--requirement", wanted)


def applies(entry: str, environment: dict[str, str]) -> bool:
    _, _, marker = entry.partition("\n")[0].removesuffix("\\").partition(";")
    return not marker.strip() or Marker(marker.strip()).evaluate(environment)


def without_marker(entry: str) -> str:
    first, newline, hashes = entry.partition("\n")
    return first.removesuffix("\\").partition(";")[0].strip() + " \\" + newline + hashes


def build_core() -> None:
    cmake = Path(sys.executable).parent / "cmake"
    headers = next((TREE / "usr" / "include").glob("python3.*"))
    settings = {
        "CMAKE_SYSTEM_NAME": "Linux", "CMAKE_SYSTEM_PROCESSOR": "aarch64", "CMAKE_CXX_COMPILER": COMPILER,
        "CMAKE_CROSSCOMPILING_EMULATOR": EMULATOR, "CMAKE_MAKE_PROGRAM": cmake.parent / "ninja",
        # the headers of Python name one that lies beside them by architecture
        "CMAKE_CXX_FLAGS": f"-idirafter {TREE / 'usr' / 'include'}",
        "Python_EXECUTABLE": PYTHON, "Python_INCLUDE_DIR": headers, "RIDGELINE_WERROR": "ON",
    }  # fmt: skip
    say("building")
    run(
        cmake,
        "-G",
        "Ninja",
        "-S",
        ROOT,
        "-B",
        BUILD / "cmake",
        *(f"-D{name}={value}" for name, value in settings.items()),
    )
    run(cmake, "--build", BUILD / "cmake")
    package = SITE / "ridgeline"
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(ROOT / "src" / "ridgeline", package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for core in (BUILD / "cmake" / "native").glob("_native*.so"):
        shutil.copy(core, package)


def run_tests() -> None:
    for processor, fastest in PROCESSORS.items():
        found = emulated(processor, "-c", "from ridgeline import _native; print(_native.isa())").strip()
        if found != fastest:
            sys.exit(f"arm64: a {processor} has {fastest}, but {found} was chosen")
    say("writing tiny models")
    shutil.rmtree(MODELS, ignore_errors=True)
    run(sys.executable, ROOT / "tests" / "arm64_steps.py", "write", MODELS)
    pytest = ["-m", "pytest", "-p", "no:cacheprovider", "--timeout=1800", "-m", "not slow"]
    # a context of 1,100 keys takes minutes, and one path's attention is the others' but for how it multiplies bytes
    paths = ["i8mm", *(f"{path} and not 1100" for path in ("neondot", "neon and not neondot", "generic"))]
    paths.append("not generic and not neon and not i8mm")
    jobs: list[tuple[str, list[str]]] = [
        *(("max", [*pytest, "tests/native", "-k", path]) for path in paths),
        *((processor, ["tests/arm64_steps.py", "compare", str(MODELS)]) for processor in PROCESSORS),
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for (processor, arguments), output in zip(
            jobs, pool.map(lambda job: emulated(job[0], *job[1]), jobs), strict=True
        ):
            say(f"{processor}: {' '.join(arguments)}\n{output.strip()}")
    say("all pass")


def emulated(processor: str, *arguments: str) -> str:
    done = subprocess.run(
        [PYTHON, *arguments], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env=os.environ | {"QEMU_CPU": processor},
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"arm64: failed on a {processor}: {' '.join(arguments)}\n{done.stdout}")
    return done.stdout


def run(*command: str | Path) -> None:
    done = subprocess.run([str(part) for part in command], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        sys.exit(f"arm64: {' '.join(str(part) for part in command[:3])} ... failed\n{done.stdout}")


def say(line: str) -> None:
    print(f"arm64: {line}", flush=True)


if __name__ == "__main__":
    main()
