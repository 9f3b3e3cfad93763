"""The installation: versions, the native part and its ISA paths, the environment variables that matter.

Nothing here tells a secret: of variables that hold a key, or a URL that may, only whether they are set.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from pathlib import Path
from typing import Any

import ridgeline
from ridgeline.errors import ConfigError
from ridgeline.model.resolve import BUNDLED_NAME, resolve_model
from ridgeline.native_part import NativePartError, native_part

_OPTIONAL = ("torch", "huggingface_hub", "transformers", "altair")
_VARIABLES = (
    "RIDGELINE_ISA", "XDG_CACHE_HOME", "XDG_DATA_HOME", "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "OLLAMA_MODELS",
    "OMP_NUM_THREADS", "OMP_PROC_BIND", "CUDA_VISIBLE_DEVICES", "LD_PRELOAD", "GLIBC_TUNABLES", "PYTHONPATH",
)  # fmt: skip
_SECRET_VARIABLES = ("HF_TOKEN", "OPENAI_API_KEY", "OLLAMA_HOST", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


def versions() -> dict[str, Any]:
    """Python, ridgeline, and what it depends on; None: missing. Optional packages only where they are installed."""
    needed = [name for name in _requirements() if name]
    found = {name: _version(name) for name in [*needed, *_OPTIONAL]}
    return {
        "ridgeline": ridgeline.__version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "dependencies": {name: version for name, version in found.items() if version or name in needed},
    }


def _requirements() -> list[str]:
    """Names of what this system needs, without the extras."""
    try:
        requirements = importlib.metadata.requires("ridgeline") or []
    except importlib.metadata.PackageNotFoundError:  # run from a source tree
        return []
    return [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in requirements if "extra ==" not in line]


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def native_facts() -> dict[str, Any]:
    """`state`: ok, missing, foreign (built for another Python), broken (does not load), or misled (RIDGELINE_ISA names
    a path that cannot run). `paths` tells of each ISA path why it cannot run here, null: it can."""
    try:
        native = native_part()
    except NativePartError as error:
        return {"state": error.state, "problem": error.message, "hint": error.hint, "isa": None, "paths": {}}
    facts = {
        "state": "ok",
        "problem": None,
        "hint": None,
        "isa": None,
        "paths": {name: problem or None for name, problem in native.isa_paths()},
        "compiler": native.compiler,
        "file": Path(native.__file__).name,
    }
    try:
        facts["isa"] = native.isa()
    except ValueError as error:
        facts |= {"state": "misled", "problem": str(error), "hint": "unset RIDGELINE_ISA, or name a path that can run"}
    return facts


def bundled_model() -> dict[str, Any]:
    try:
        size = resolve_model(BUNDLED_NAME).path.stat().st_size
    except (ConfigError, OSError) as error:
        return {"name": BUNDLED_NAME, "bytes": None, "hint": getattr(error, "hint", None)}
    return {"name": BUNDLED_NAME, "bytes": size, "hint": None}


def gpu_facts() -> dict[str, Any] | None:
    """What torch makes of the GPU; asked only where there is one and torch is there, since it takes seconds."""
    try:
        import torch
    except (ImportError, OSError):
        return None
    return {"torch": torch.__version__, "cuda": torch.version.cuda, "usable": bool(torch.cuda.is_available())}


def environment() -> dict[str, str]:
    told = {name: os.environ[name] for name in _VARIABLES if os.environ.get(name)}
    secret = {name: "(set)" for name in _SECRET_VARIABLES if os.environ.get(name) or os.environ.get(name.lower())}
    return told | secret
