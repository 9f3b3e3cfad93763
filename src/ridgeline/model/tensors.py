"""A tensor as it lies in a checkpoint file: what the GGUF and the safetensors readers have in common."""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import CheckpointError
from ridgeline.quant.ggml_blocks import FORMATS


@dataclass(frozen=True)
class StoredTensor:
    """`type` is ggml's name of the storage type; `shape` is [outputs, inputs] in both kinds of file.

    `data` views the mapped file, uint8 [bytes]; the mapping lives as long as any view of it.
    """

    path: Path
    name: str
    type: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]


def map_file(path: Path) -> mmap.mmap:
    """The whole file, read-only, read from disk on first touch."""
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        reason = error.strerror if isinstance(error, OSError) else "the file is empty"
        raise CheckpointError(f"{path}: cannot be read: {reason}") from error


def stored_bytes(type_name: str, shape: tuple[int, ...]) -> int | None:
    """Bytes of a tensor in a file; None for a type that we cannot read, hence cannot size either.

    Raises ValueError when the rows are not whole blocks.
    """
    fmt = FORMATS.get(type_name)
    if fmt is None:
        return None
    if shape and shape[-1] % fmt.block_len:
        raise ValueError(f"rows of {shape[-1]} weights are not whole {type_name} blocks of {fmt.block_len}")
    return math.prod(shape) // fmt.block_len * fmt.block_bytes


def slice_tensor(
    path: Path, name: str, type_name: str, shape: tuple[int, ...], file: mmap.mmap, start: int
) -> StoredTensor:
    """The tensor whose bytes begin at `start` of the mapped file. CheckpointError when they are not all there."""
    try:
        size = stored_bytes(type_name, shape)
    except ValueError as error:
        raise CheckpointError(f"{path}: tensor {name!r}: {error}") from error
    end = start + (size or 0)
    if end > len(file):
        raise CheckpointError(
            f"{path}: truncated: tensor {name!r} ends at byte {end:,}, the file has {len(file):,}",
            hint="fetch the file again",
        )
    return StoredTensor(path, name, type_name, shape, np.frombuffer(file, np.uint8)[start:end])
