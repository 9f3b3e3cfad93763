"""What the files of a checkpoint really hold: bytes per tensor, exactly, from the files' directories alone.

Stored and unique parameters differ where a checkpoint repeats a tied output matrix (Qwen3-0.6B stores 751,632,384, of
which 596,049,920 are unique), or holds what the text model does not use.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ridgeline.errors import CheckpointError, ConfigError
from ridgeline.quant.formats import weight_format

if TYPE_CHECKING:
    from ridgeline.model.gguf import GgufFile

_DTYPES = {"F32": "fp32", "BF16": "bf16", "F16": "fp16"}
_NOT_PARAMETERS = ("rope_freqs", "rope_factors", "exp_probs_b")  # rotary tables, routing buffers
_HEAD, _EMBEDDINGS = "lm_head.weight", ("model.embed_tokens.weight", "embed_tokens.weight", "transformer.wte.weight")


@dataclass(frozen=True)
class StoredTensors:
    """Tensor name -> (values as shaped, bytes). `main_dtype` is the number type of most values, as `fp32`, `bf16` or
    `fp16`; None: another, or not known."""

    tensors: dict[str, tuple[int, int]]
    main_dtype: str | None = None

    @property
    def num_parameters(self) -> int:
        return sum(values for values, _ in self.tensors.values())

    @property
    def num_bytes(self) -> int:
        return sum(size for _, size in self.tensors.values())

    def bytes_of(self, *names: str) -> int:
        return sum(self.tensors[name][1] for name in names if name in self.tensors)

    def tied_copy_bytes(self, tied: bool) -> int:
        """Of an output matrix that repeats the embedding table: stored, and never needed."""
        return self.bytes_of(_HEAD) if tied and any(name in self.tensors for name in _EMBEDDINGS) else 0

    def explain(self, unique: int, tied: bool) -> str | None:
        """Why the file does not hold as many parameters as the model has. None: it does."""
        stored = self.num_parameters
        if stored == unique:
            return None
        copy = self.tensors[_HEAD][0] if self.tied_copy_bytes(tied) else 0
        if stored - copy == unique:
            return (
                f"{stored:,} parameters are stored, {unique:,} are unique: "
                f"{_HEAD} repeats the embedding table ({copy:,})"
            )
        return f"{stored:,} values are stored, the config's model has {unique:,} parameters"


def read_safetensors(directory: Path) -> StoredTensors | None:
    """From the headers of a directory's `*.safetensors`; None when it has none. Raises CheckpointError."""
    from ridgeline.model.safetensors import INDEX_FILE, SINGLE_FILE, shard_names  # numpy

    if (directory / INDEX_FILE).exists():
        files = sorted({directory / shard for shard in shard_names(directory).values()})
    elif (directory / SINGLE_FILE).exists():
        files = [directory / SINGLE_FILE]
    else:
        return None
    entries = {name: entry for file in files for name, entry in _header(file).items()}
    values: Counter[str] = Counter()
    for dtype, num_values, _ in entries.values():
        values[dtype] += num_values
    main_dtype = _DTYPES.get(max(values, key=values.__getitem__)) if values else None
    return StoredTensors({name: entry[1:] for name, entry in entries.items()}, main_dtype)


def read_gguf(file: GgufFile) -> StoredTensors:
    """The parameters of an open GGUF file. Raises CheckpointError for a type whose size is unknown."""
    tensors = {}
    for tensor in file.tensors.values():
        if any(part in tensor.name for part in _NOT_PARAMETERS):
            continue
        try:
            fmt = weight_format(tensor.type)
        except ConfigError as error:
            raise CheckpointError(f"{file.path}: tensor {tensor.name!r} is of type {tensor.type}") from error
        *outer, inputs = tensor.shape
        tensors[tensor.name] = math.prod(tensor.shape), fmt.size(math.prod(outer), inputs)
    return StoredTensors(tensors)


def read_held(file: GgufFile) -> StoredTensors | None:
    """The same tensors in their own groups, as our executor packs them; None when it cannot read all of them."""
    from ridgeline.quant.ggml_blocks import FORMATS, group_form  # numpy

    tensors = {}
    for tensor in file.tensors.values():
        if any(part in tensor.name for part in _NOT_PARAMETERS):
            continue
        if tensor.type not in FORMATS:
            return None
        form = group_form(tensor.type)
        *outer, inputs = tensor.shape
        plain = math.prod(tensor.shape) * (2 if tensor.type == "BF16" else 4)
        tensors[tensor.name] = math.prod(tensor.shape), form.packed_bytes(math.prod(outer), inputs) if form else plain
    return StoredTensors(tensors)


def _header(path: Path) -> dict[str, tuple[str, int, int]]:
    """Type, values and bytes of each tensor."""
    try:
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        return {
            name: (str(entry["dtype"]), math.prod(entry["shape"]), entry["data_offsets"][1] - entry["data_offsets"][0])
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, MemoryError) as error:
        raise CheckpointError(f"{path}: not a safetensors file: {error!r}") from error
