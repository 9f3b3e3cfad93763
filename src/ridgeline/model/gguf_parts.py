"""GGUF files in several parts, as llama.cpp's tools split large ones: `NAME-00001-of-00003.gguf` and so on.

Every part says which one it is (`split.no`, from 0), of how many (`split.count`), and how many tensors there are in all
(`split.tensors.count`); the first holds the metadata. Any part stands for the whole: the others lie beside it. What a
split promises is checked, so that a part that is missing, or of another split, is named before anything is computed.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ridgeline.errors import CheckpointError
from ridgeline.model.fields import Fields

if TYPE_CHECKING:
    from ridgeline.model.gguf import GgufFile

_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def part_paths(path: Path) -> list[Path]:
    """All parts of the split that `path` is named as one of, there or not; the file itself when it is none."""
    match = _NAME.fullmatch(path.name)
    if match is None or not 1 <= int(match["number"]) <= int(match["count"]):
        return [path]
    return [
        path.with_name(f"{match['stem']}-{number:05}-of-{match['count']}.gguf")
        for number in range(1, int(match["count"]) + 1)
    ]


def whole_name(path: Path) -> str:
    """The file's name without its ending, and without the number of its part."""
    match = _NAME.fullmatch(path.name)
    return path.stem if match is None else match["stem"]


def open_whole_gguf(path: Path) -> GgufFile:
    """The file, with the tensors of all its parts when it is one of several. Raises CheckpointError."""
    from ridgeline.model.gguf import open_gguf  # numpy

    given = open_gguf(path)
    count = Fields(given.metadata, str(path)).count("split.count", 1, minimum=0)
    if count <= 1:
        return given
    paths = part_paths(path)
    if len(paths) != count:
        raise CheckpointError(
            f"{path}: split.count is {count}: its name does not tell where the other parts are",
            hint=f"name them NAME-00001-of-{count:05}.gguf and so on, in one directory",
        )
    missing = [part.name for part in paths if not part.is_file()]
    if missing:
        raise CheckpointError(
            f"{path}: {len(missing)} of its {count} parts are missing: {', '.join(missing)}",
            hint="fetch them into the same directory",
        )
    return _joined([given if part == path else open_gguf(part) for part in paths])


def _joined(parts: list[GgufFile]) -> GgufFile:
    """The first part, with everybody's tensors."""
    num_tensors = Fields(parts[0].metadata, str(parts[0].path)).count("split.tensors.count", minimum=0)
    tensors = {}
    for number, part in enumerate(parts):
        for key, promised in (("split.no", number), ("split.count", len(parts)), ("split.tensors.count", num_tensors)):
            if part.metadata.get(key) != promised:
                found = part.metadata.get(key, "missing")
                raise CheckpointError(f"{part.path}: {key} is {found}, must be {promised}: a part of another split")
        for name, tensor in part.tensors.items():
            if name in tensors:
                raise CheckpointError(f"{part.path}: tensor {name!r} is in {tensors[name].path.name} too")
            tensors[name] = tensor
    if len(tensors) != num_tensors:
        raise CheckpointError(
            f"{parts[0].path}: split.tensors.count is {num_tensors}, the {len(parts)} parts hold {len(tensors)}",
            hint="fetch the files again",
        )
    return replace(parts[0], tensors=tensors)
