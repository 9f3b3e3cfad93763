"""Ridgeline predicts, serves, measures and proves language-model inference.

    from ridgeline import LLM, SamplingParams, plan

The names are loaded when they are first used, so that `import ridgeline` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ridgeline.cost.ask import plan
    from ridgeline.engine.request import SamplingParams
    from ridgeline.llm import LLM, Completion

__version__ = "0.1.0"
__all__ = ["LLM", "Completion", "SamplingParams", "__version__", "plan"]

_HOMES = {
    "LLM": "ridgeline.llm",
    "Completion": "ridgeline.llm",
    "SamplingParams": "ridgeline.engine.request",
    "plan": "ridgeline.cost.ask",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ridgeline' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
