"""The native part, `ridgeline._native`: the C++ core that computes, in every wheel for Linux.

The pure wheel for other systems leaves it out. Whatever needs it gets it here, so that its absence is one clear error
with a way out. The executors' own modules import it by themselves: nobody imports those without having asked here.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any, Literal

from ridgeline.errors import ConfigError

_MODULE = "ridgeline._native"
_WITHOUT = "plan, inspect, bench, measure and why (of a server that runs) work without it"


class NativePartError(ConfigError):
    """`state` tells a part that was left out from one that is there and does not load."""

    code = "no_native_part"

    def __init__(self, message: str, *, hint: str, state: Literal["missing", "foreign", "broken"]) -> None:
        super().__init__(message, hint=hint, state=state)
        self.state = state


def native_part() -> Any:
    """The module. Raises NativePartError, which says why there is none and how to get it."""
    try:
        return importlib.import_module(_MODULE)
    except ImportError as error:
        raise _problem(error, sys.platform) from error


def _problem(error: ImportError, platform: str) -> NativePartError:
    files = sorted(Path(__file__).parent.glob("_native.*"))
    if not isinstance(error, ModuleNotFoundError):  # a library or a symbol that this system does not have
        return NativePartError(
            f"the native part does not load here: {error}",
            hint="build it on this machine: pip install --force-reinstall --no-binary ridgeline ridgeline",
            state="broken",
        )
    if files:
        return NativePartError(
            f"the native part is built for another Python ({files[0].name}), this is {sys.version.split()[0]}",
            hint="install ridgeline again, by this Python: python -m pip install --force-reinstall ridgeline",
            state="foreign",
        )
    if platform == "linux":
        hint = f"install the wheel for Linux, or build it (a C++20 compiler, no RIDGELINE_PURE); {_WITHOUT}"
    else:
        hint = f"it runs on Linux: WSL, Docker, a virtual machine or another host; {_WITHOUT}"
    return NativePartError("the native part is not installed", hint=hint, state="missing")
