"""A checkpoint's weights in the format that `--dtype` names: views over `Weights`, each tensor made when it is read.

    fp32, bf16                 the checkpoint itself
    int8                       rotated, then one scale per output over the whole row
    int8-g32 ... int4-g128-zp  rounded to the nearest in groups
    gguf                       a GGUF file's own groups, every value kept

The output matrix may have a format of its own (`--head-dtype`); where it is the embedding too, that goes with it. In
`int8` it is rotated here as elsewhere, so that a tied model has it twice: as it is to look up, rotated to multiply. A
matrix that a GGUF file holds in plain numbers beside its quantized ones stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from ridgeline.cost.cores import usable_cores
from ridgeline.errors import CheckpointError, ConfigError
from ridgeline.model.program import weight_shapes
from ridgeline.model.rotated import RotatedWeights, untied
from ridgeline.model.spec import ModelSpec
from ridgeline.model.weights import Bf16, CheckpointWeights, Float32, Weights
from ridgeline.quant.bf16 import to_bf16
from ridgeline.quant.formats import GGUF, PLAIN, QUANTIZED, Format, weight_format
from ridgeline.quant.group_form import GroupForm
from ridgeline.quant.groups import GroupedWeights
from ridgeline.quant.round_to_nearest import round_to_nearest


def in_format(weights: Weights, spec: ModelSpec, dtype: str, head_dtype: str | None = None) -> Weights:
    """`weights` of a model of `spec`, as an executor in `dtype` reads them.

    Raises ConfigError for formats that do not go together, or that this checkpoint does not have.
    """
    head_dtype = head_dtype or dtype
    _check_head(dtype, head_dtype)
    shapes = weight_shapes(served_spec(spec, dtype, head_dtype))
    matrices = [name for name, shape in shapes.items() if len(shape) == 2]
    of_head = ("head", "embed") if spec.tie_embeddings and not is_rotated(dtype) else ("head",)
    wanted = {name: head_dtype if name in of_head else dtype for name in matrices}
    named = {fmt: [name for name in matrices if wanted[name] == fmt] for fmt in wanted.values()}
    if GGUF in named:
        weights = OwnGroups(weights, named[GGUF])
    if is_rotated(dtype):
        weights = RotatedWeights(weights, spec, rotates_head=head_dtype in QUANTIZED)
    elif is_rotated(head_dtype):
        weights = RotatedHead(weights, spec)
    if "bf16" in named and dtype != "bf16":
        weights = Bf16Weights(weights, named["bf16"])
    rounded = {name: weight_format(fmt) for name, fmt in wanted.items() if fmt in QUANTIZED}
    return RoundedWeights(weights, rounded) if rounded else weights


def served_spec(spec: ModelSpec, dtype: str, head_dtype: str | None = None) -> ModelSpec:
    """The model whose weights `in_format` gives: where the output matrix is rotated, the embedding is another."""
    return untied(spec) if is_rotated(dtype) or (head_dtype is not None and is_rotated(head_dtype)) else spec


def held_bytes(weights: Weights, dtype: str) -> int:
    """What an executor in `dtype` takes for them: matrices in whole blocks, the others in fp32."""
    total = 0
    for name, shape in weights.shapes.items():
        form = weights.group_form(name)
        if len(shape) == 1:
            total += 4 * shape[0]
        elif form:
            total += form.packed_bytes(*shape)
        else:
            is_bf16 = dtype == "bf16" or (dtype in (*QUANTIZED, GGUF) and weights.stored_type(name) == "BF16")
            total += math.prod(shape) * (2 if is_bf16 else 4)
    return total


def is_rotated(dtype: str) -> bool:
    return dtype in QUANTIZED and weight_format(dtype).is_rotated


def _check_head(dtype: str, head_dtype: str) -> None:
    plain = dtype if dtype in PLAIN else "bf16"
    if head_dtype not in (dtype, plain, *QUANTIZED):
        known = ", ".join(dict.fromkeys((dtype, plain, *QUANTIZED)))
        raise ConfigError(f"head_dtype {head_dtype!r} does not go with dtype {dtype!r}", hint=f"known: {known}")


def arithmetic(weights: Weights, dtype: str) -> str:
    """What is multiplied: `w8a8` is weights and activations of 8 bits, `w4a8` weights of 4; else the dtype."""
    forms = [weights.group_form(name) for name, shape in weights.shapes.items() if len(shape) == 2]
    bits = sorted({form.bits for form in forms if form})
    return " and ".join([f"w{n}a8" for n in bits] + [dtype] * (dtype in PLAIN or not bits))


class _View(Weights):
    """Another form of some matrices; the other tensors as they are."""

    def __init__(self, source: Weights) -> None:
        self.shapes = source.shapes
        self._source = source

    def read(self, name: str) -> Float32:
        return self.read_groups(name).dequantize() if self.group_form(name) else self._source.read(name)

    def read_bf16(self, name: str) -> Bf16:
        return to_bf16(self.read(name)) if self.group_form(name) else self._source.read_bf16(name)

    def group_form(self, name: str) -> GroupForm | None:
        return self._source.group_form(name)

    def read_groups(self, name: str) -> GroupedWeights:
        return self._source.read_groups(name)

    def takes_hadamard(self, name: str) -> bool:
        return self._source.takes_hadamard(name)

    def stored_type(self, name: str) -> str:
        return self._source.stored_type(name)

    def close(self) -> None:
        self._source.close()


class RotatedHead(_View):
    """The output matrix rotated, the norm before it folded in; the rest as it is."""

    def __init__(self, source: Weights, spec: ModelSpec) -> None:
        super().__init__(source)
        self._rotated = RotatedWeights(source, spec)
        self.shapes = self._rotated.shapes

    def read(self, name: str) -> Float32:
        return self._owner(name).read(name)

    def read_bf16(self, name: str) -> Bf16:
        return self._owner(name).read_bf16(name)

    def group_form(self, name: str) -> GroupForm | None:
        return self._owner(name).group_form(name)

    def takes_hadamard(self, name: str) -> bool:
        return self._owner(name).takes_hadamard(name)

    def stored_type(self, name: str) -> str:
        return self._owner(name).stored_type(name)

    def _owner(self, name: str) -> Weights:
        return self._rotated if name in ("final_norm", "head") else self._source


class RoundedWeights(_View):
    """Matrices of `formats`, rounded to the nearest."""

    def __init__(self, source: Weights, formats: Mapping[str, Format]) -> None:
        super().__init__(source)
        self._formats = formats

    def group_form(self, name: str) -> GroupForm | None:
        if name not in self._formats:
            return super().group_form(name)
        return self._formats[name].form(self.shapes[name][1])

    def read_groups(self, name: str) -> GroupedWeights:
        if name not in self._formats:
            return super().read_groups(name)
        fmt, values = self._formats[name], self._source.read(name)
        try:
            return round_to_nearest(values, fmt.form(self.shapes[name][1]), threads=usable_cores())
        except ValueError as error:
            is_sound = np.isfinite(values).all()
            hint = "--dtype bf16 takes them as they are" if is_sound else "the checkpoint is damaged: fetch it again"
            raise CheckpointError(f"{name} cannot be rounded to {fmt.name}: {error}", hint=hint) from error


class OwnGroups(_View):
    """Matrices of `names` in the groups that a GGUF file has for them. Raises ConfigError when it has none at all."""

    def __init__(self, source: Weights, names: Iterable[str]) -> None:
        super().__init__(source)
        stored = {name: source.stored_form(name) for name in names} if isinstance(source, CheckpointWeights) else {}
        self._forms = {name: form for name, form in stored.items() if form}
        if not self._forms:
            raise ConfigError("dtype gguf is for a GGUF file of quantized weights", hint="choose bf16, int8 or int4")

    def group_form(self, name: str) -> GroupForm | None:
        return self._forms.get(name)

    def read_groups(self, name: str) -> GroupedWeights:
        assert isinstance(self._source, CheckpointWeights)
        return self._source.read_stored_groups(name)


class Bf16Weights(_View):
    """Matrices of `names` as if they were stored in bf16."""

    def __init__(self, source: Weights, names: Iterable[str]) -> None:
        super().__init__(source)
        self._names = frozenset(names)

    def stored_type(self, name: str) -> str:
        return "BF16" if name in self._names else super().stored_type(name)
