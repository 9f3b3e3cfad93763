"""What the tensors of a checkpoint say beside, or against, its description: the number type of the weights, and whether
the output matrix is the embedding table.

A description may leave this out or be wrong about it; the tensors cannot. Where they differ, the tensors hold and it is
told: nothing that is stored is passed over by its name alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ridgeline.model.rope import inverse_frequencies
from ridgeline.model.spec import ModelSpec
from ridgeline.model.tensors import StoredTensor
from ridgeline.quant.ggml_blocks import FORMATS, dequantize

HEAD = "lm_head.weight"
EMBEDDINGS = ("model.embed_tokens.weight", "embed_tokens.weight", "transformer.wte.weight")
ROTARY_TABLE = "rotary_emb.inv_freq"  # the end of its name, once per layer
PLAIN = {"F32": "fp32", "BF16": "bf16", "F16": "fp16"}
_CHUNK_VALUES = 1 << 22  # compared at a time
_TABLE_TOLERANCE = 1e-2  # relative: old checkpoints hold rotary tables in 16 bits


def as_stored(
    spec: ModelSpec,
    tensors: Mapping[str, StoredTensor],
    *,
    source: str,
    said_dtype: str | None,
    own_head: bool = False,
) -> ModelSpec:
    """`spec` with what the tensors tell. `said_dtype` is the number type that the description names; `own_head`: a spec
    that ties has an output matrix of its own all the same (`has_own_head`)."""
    warnings = list(spec.warnings)
    dtype = main_dtype([t for t in tensors.values() if len(t.shape) == 2], spec.stored_dtype)
    if said_dtype is not None and dtype != spec.stored_dtype:
        warnings.append(dtype_warning(source, said_dtype, dtype))
    warnings += _rounded(tensors.values(), dtype, source)
    if own_head:
        warnings.append(own_head_warning(source))
    warnings += _other_rotation(spec, tensors, source)
    tied = spec.tie_embeddings and not own_head
    return replace(spec, stored_dtype=dtype, tie_embeddings=tied, warnings=tuple(warnings))


def dtype_warning(source: str, said: str, held: str) -> str:
    return f"{source}: the weights are said to be {said}, and most are stored as {held}: that counts."


def own_head_warning(source: str) -> str:
    return (
        f"{source}: tie_word_embeddings is true, and {HEAD} is stored and differs from the embedding table: "
        "it is used as the output matrix, as transformers does."
    )


def main_dtype(matrices: Iterable[StoredTensor], described: str) -> str:
    """The number type of most values: fp32, bf16 or fp16; of quantized ones `described`, which names the mix of
    formats, unless it names none."""
    values: Counter[str] = Counter()
    for tensor in matrices:
        values[tensor.type] += math.prod(tensor.shape)
    if not values:
        return described
    main = values.most_common(1)[0][0]
    if main in PLAIN:
        return PLAIN[main]
    return main if described in ("unknown", *PLAIN.values()) else described


def _rounded(tensors: Iterable[StoredTensor], dtype: str, source: str) -> Iterator[str]:
    """Matrices that hold more bits than the type in which most of a bf16 checkpoint is stored."""
    wider = sorted(t.name for t in tensors if len(t.shape) == 2 and t.type in ("F32", "F16"))
    if dtype == "bf16" and wider:
        more = f" and {len(wider) - 1} more" if len(wider) > 1 else ""
        yield f"{source}: {wider[0]}{more} hold more bits than bf16 and are rounded to it; --dtype fp32 keeps them."


def has_own_head(tensors: Mapping[str, StoredTensor]) -> bool:
    """Whether an output matrix is stored that is not the embedding table once more."""
    head = tensors.get(HEAD)
    tables = [tensors[name] for name in EMBEDDINGS if name in tensors]
    return head is not None and bool(tables) and not same_values(head, tables[0])


def same_values(a: StoredTensor, b: StoredTensor) -> bool:
    """Whether two tensors hold the same numbers, in whatever types. Reads both, up to the first difference."""
    if a.shape != b.shape or not {a.type, b.type} <= FORMATS.keys():
        return False
    for start in range(0, math.prod(a.shape), _CHUNK_VALUES):
        raw_a, raw_b = _chunk(a, start), _chunk(b, start)
        if a.type == b.type:
            same = np.array_equal(raw_a, raw_b)
        else:
            same = np.array_equal(dequantize(a.type, raw_a), dequantize(b.type, raw_b))
        if not same:
            return False
    return True


def _chunk(tensor: StoredTensor, start: int) -> NDArray[np.uint8]:
    fmt = FORMATS[tensor.type]
    first, last = (values // fmt.block_len * fmt.block_bytes for values in (start, start + _CHUNK_VALUES))
    return tensor.data[first:last]


def _other_rotation(spec: ModelSpec, tensors: Mapping[str, StoredTensor], source: str) -> Iterator[str]:
    """Old checkpoints hold the rotary frequencies that the config describes, before any scaling."""
    plain = inverse_frequencies(replace(spec, rope_scaling=None))
    for name, tensor in tensors.items():
        if not name.endswith(ROTARY_TABLE) or tensor.type not in FORMATS:
            continue
        table = dequantize(tensor.type, tensor.data)
        known = (plain, inverse_frequencies(spec))
        if not any(len(table) == len(own) and np.allclose(table, own, _TABLE_TOLERANCE, 0) for own in known):
            yield f"{source}: {name} is not what the config describes, which is used, as in transformers."
            return
