"""A reader of safetensors checkpoints, one file or sharded by an index, memory-mapped.

The safetensors package gives numpy no bf16; the layout is so small that reading it here is simpler than converting
around that, and lets a damaged file be reported with file and tensor. Layout: header length u64, a JSON object of
name -> {dtype, shape, data_offsets}, then data; offsets count from the end of the header. The format wants the data
without gaps and overlaps, so wrong offsets are found even where every tensor has its size.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ridgeline.errors import CheckpointError
from ridgeline.model.tensors import StoredTensor, map_file, slice_tensor

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


def open_safetensors(directory: Path) -> dict[str, StoredTensor]:
    """All tensors of a checkpoint directory, by name. Raises CheckpointError when a file is missing or damaged."""
    if (directory / INDEX_FILE).exists():
        return _open_sharded(directory)
    if (directory / SINGLE_FILE).exists():
        return _open_file(directory / SINGLE_FILE)
    others = sorted(path.name for path in directory.iterdir() if path.suffix in (".bin", ".safetensors", ".pth"))
    found = f", only {', '.join(others)}" if others else ""
    raise CheckpointError(f"{directory}: no {SINGLE_FILE} and no {INDEX_FILE}{found}", hint="fetch the weights")


def shard_names(directory: Path) -> dict[str, str]:
    """Tensor name -> file name, from the index."""
    path = directory / INDEX_FILE
    try:
        shards = dict(json.loads(path.read_text())["weight_map"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: not an index of safetensors files: {error!r}") from error
    for name, shard in shards.items():
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise CheckpointError(f"{path}: tensor {name!r} is said to be in {shard!r}, which is no file beside it")
    return shards


def _open_sharded(directory: Path) -> dict[str, StoredTensor]:
    """All that the shards hold, what the index leaves out too: it belongs to the checkpoint, or is an error later."""
    shard_of = shard_names(directory)
    shards = {shard: _open_file(directory / shard) for shard in sorted(set(shard_of.values()))}
    for name, shard in shard_of.items():
        if name not in shards[shard]:
            raise CheckpointError(f"{directory / shard}: tensor {name!r} is missing, {INDEX_FILE} promises it")
    tensors: dict[str, StoredTensor] = {}
    for held in shards.values():
        for name, tensor in held.items():
            if name in tensors:
                raise CheckpointError(f"{tensor.path}: tensor {name!r} is in {tensors[name].path.name} too")
            tensors[name] = tensor
    return tensors


def unread_files(directory: Path) -> list[str]:
    """Names of safetensors files that are no part of the checkpoint beside which they lie."""
    has_index = (directory / INDEX_FILE).exists()
    own = set(shard_names(directory).values()) if has_index else {SINGLE_FILE}
    return sorted(path.name for path in directory.glob("*.safetensors") if path.name not in own)


def _open_file(path: Path) -> dict[str, StoredTensor]:
    file = map_file(path)
    header_len = int.from_bytes(file[:8], "little")
    data_start = 8 + header_len
    if len(file) < 8 or data_start > len(file):
        raise CheckpointError(f"{path}: truncated: the header ends at byte {data_start:,}, the file has {len(file):,}")
    try:
        header = json.loads(file[8:data_start])
        entries = [(name, entry) for name, entry in header.items() if name != "__metadata__"]
    except (ValueError, AttributeError) as error:
        raise CheckpointError(f"{path}: not a safetensors file: its header is not a JSON object") from error
    tensors, spans = {}, []
    for name, entry in entries:
        dtype, shape, start, end = _entry(path, name, entry)
        tensor = slice_tensor(path, name, dtype, shape, file, data_start + start)
        size = len(tensor.data)
        if size not in (0, end - start):  # 0: a type that we do not read
            raise CheckpointError(
                f"{path}: tensor {name!r} of {dtype} {list(shape)} needs {size:,} bytes, has {end - start:,}"
            )
        tensors[name] = tensor
        spans.append((start, end, name))
    _check_spans(path, spans, len(file) - data_start)
    return tensors


def _check_spans(path: Path, spans: list[tuple[int, int, str]], data_bytes: int) -> None:
    """Each tensor, (first byte, end, name), begins where the one before ends, and the last one ends with the file."""
    position = 0
    for start, end, name in sorted(spans):
        if start != position:
            raise CheckpointError(
                f"{path}: tensor {name!r} begins at byte {start:,} of the data, the one before ends at {position:,}"
            )
        position = end
    if position != data_bytes:
        raise CheckpointError(f"{path}: {data_bytes - position:,} bytes after the last tensor belong to none")


def _entry(path: Path, name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    """dtype, shape, first and last byte."""
    try:
        dtype, shape, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: tensor {name!r} has a damaged header entry") from error
    numbers = (*shape, start, end)
    if any(not isinstance(n, int) or n < 0 for n in numbers) or start > end:
        raise CheckpointError(f"{path}: tensor {name!r} has impossible dimensions or offsets: {entry}")
    return str(dtype), shape, start, end
