"""Models known by name: the published `config.json` of each, under `data/models/NAME.json`.

An entry is {"config": ..., "nominal_parameters": ...}; the second, optional, is the round figure that textbooks reckon
with.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parents[1] / "data" / "models"


def catalog_names() -> list[str]:
    return sorted(path.stem for path in _FOLDER.glob("*.json"))


def catalog_entry(name: str) -> dict[str, Any] | None:
    """None for a name that is not there; upper and lower case are the same."""
    if name.lower() not in catalog_names():
        return None
    entry: dict[str, Any] = json.loads((_FOLDER / f"{name.lower()}.json").read_text(encoding="utf-8"))
    return entry
