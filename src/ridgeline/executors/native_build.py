"""Translates a program into the native core's buffers, matrices and ops, and packs its weights.

Each matrix has a format of its own, and wants its input in a form that fits: fp32, bf16, or int8 codes in groups as
long as its own. What writes a buffer looks ahead at the matrices that will read it and writes every form they want.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Protocol

import numpy as np

from ridgeline import _native  # type: ignore[attr-defined]
from ridgeline.model.program import (
    Attention,
    Embed,
    GatherRows,
    Logits,
    Matmul,
    Norm,
    Op,
    Program,
    RopeStore,
    weight_shapes,
)
from ridgeline.quant.group_form import GroupForm, common_form
from ridgeline.quant.groups import GroupedWeights, stack
from ridgeline.quant.rotation import block_len, mixing

LANES = 16  # outputs in a block of packed weights
PLAIN_DTYPES = ("fp32", "bf16")
PER_LOGIT_ROW = ("rows", "final", "logits")  # buffers with a row per logit row, not per token


class Weights(Protocol):
    def read(self, name: str) -> np.ndarray: ...
    def read_bf16(self, name: str) -> np.ndarray: ...
    def stored_type(self, name: str) -> str: ...
    def group_form(self, name: str) -> GroupForm | None: ...
    def read_groups(self, name: str) -> GroupedWeights: ...
    def takes_hadamard(self, name: str) -> bool: ...


@dataclass(frozen=True)
class MatrixForm:
    """How one weight matrix is held: plainly as `dtype`, or quantized as `groups`."""

    dtype: str
    groups: GroupForm | None = None
    hadamard: bool = False  # its input goes through a Hadamard transform first

    @property
    def input(self) -> InputForm:
        two_level = self.groups is not None and self.groups.subgroup > 0
        return InputForm(self.dtype, self.groups.group if self.groups else 0, self.hadamard, two_level)


@dataclass(frozen=True)
class InputForm:
    """How a matrix wants its input: `group` 0 is plain `dtype`, others are codes; with two levels of scales, and the
    sums of a group's parts."""

    dtype: str
    group: int = 0
    hadamard: bool = False
    part_sums: bool = False


def matrix_forms(program: Program, weights: Weights, dtype: str) -> dict[str, MatrixForm]:
    """The form of every matrix that the program reads. In a quantized format those that are not quantized keep what the
    file holds: bf16, or else fp32."""
    forms = {}
    for name, shape in weight_shapes(program.spec).items():
        if len(shape) != 2:
            continue
        groups, hadamard = weights.group_form(name), weights.takes_hadamard(name)
        if groups:
            forms[name] = MatrixForm("int8", groups, hadamard)
        elif hadamard:
            raise ValueError(f"{name} takes a Hadamard transform of its input, which only quantized matrices get")
        elif dtype in PLAIN_DTYPES:
            forms[name] = MatrixForm(dtype)
        else:
            forms[name] = MatrixForm("bf16" if weights.stored_type(name) == "BF16" else "fp32")
    return forms


class Builder:
    """Adds all ops at once, and fills the weights when `pack` is called. `forms` as `matrix_forms` gives them."""

    def __init__(self, core: Any, program: Program, forms: Mapping[str, MatrixForm], kv_dtype: str) -> None:
        self._core = core
        self._program = program
        self._forms = forms
        self._kv_dtype = kv_dtype
        self._shapes = weight_shapes(program.spec)
        self._matrices: dict[tuple[str, ...], int] = {}
        self.contents: list[str] = []  # which weights each matrix and vector holds, where and how
        self._buffers: dict[tuple[str, InputForm], int] = {}
        self._fills: list[Callable[[Weights], None]] = []  # one per matrix or vector: reads its weights and packs them
        for i, op in enumerate(program.ops):
            self._add(op, self._wanted(i))

    def pack(self, weights: Weights, progress: Callable[[str, float], None]) -> None:
        """Fills all matrices and vectors, reading each weight once."""
        for i, fill in enumerate(self._fills):
            fill(weights)
            progress("packing weights", (i + 1) / len(self._fills))

    # --- ops

    def _add(self, op: Op, wanted: list[InputForm]) -> None:
        core = self._core
        match op:
            case Embed():
                core.add_embed(self._matrix((op.weight,)), self._buffer(op.out))
            case Norm():
                outs = [self._buffer(op.out, form) for form in wanted]
                core.add_norm(self._buffer(op.source), self._vector(op.weight), outs, self._program.widths[op.source])
            case Matmul():
                self._add_products(op, self._staged(op.out, wanted))
                self._quantize(op.out, wanted)
            case RopeStore():
                norms = [self._vector(name) if name else -1 for name in (op.q_norm, op.k_norm)]
                core.add_rope_store(op.layer, self._buffer(op.source), self._buffer(op.out), *norms)
            case Attention():
                core.add_attention(op.layer, self._buffer(op.source), self._staged(op.out, wanted), op.window or 0)
                self._quantize(op.out, wanted)
            case GatherRows():
                core.add_gather(self._buffer(op.source), self._buffer(op.out))
            case Logits():
                source = self._buffer(op.source, self._forms[op.weight].input)
                core.add_logits(source, self._matrix((op.weight,)), self._buffer(op.out))

    def _wanted(self, i: int) -> list[InputForm]:
        """The forms in which matrices read what op i writes, before another op writes there."""
        ops, name = self._program.ops, self._program.ops[i].out
        forms: dict[InputForm, None] = {}
        for op in ops[i + 1 :]:
            if isinstance(op, Matmul | Logits) and op.source == name:
                weights = op.weights if isinstance(op, Matmul) else (op.weight,)
                forms |= {form.input: None for _, form in self._parts(weights, _has_halves(op))}
            if op.out == name:
                break
        return list(forms)

    def _staged(self, name: str, wanted: Sequence[InputForm]) -> int:
        """The buffer that is written before `_quantize` makes the wanted form of it. It has one reader at most."""
        (form,) = wanted or [InputForm("fp32")]
        return self._buffer(name, None if form.group else form)

    def _quantize(self, name: str, wanted: Sequence[InputForm]) -> None:
        for form in wanted:
            if form.group:
                self._core.add_quantize(self._buffer(name), self._buffer(name, form))

    def _add_products(self, op: Matmul, out: int) -> None:
        """One product, or one for each part whose format differs, into the columns of its outputs."""
        biases = dict(zip(op.weights, op.biases, strict=True)) if op.biases else {}
        halves, column = _has_halves(op), 0
        for names, form in self._parts(op.weights, halves):
            bias = self._bias(tuple(biases[name] for name in names if biases), halves)
            source = self._buffer(op.source, form.input)
            self._core.add_matmul(source, self._matrix(names, halves), out, column, bias, op.epilogue)
            column += sum(self._shapes[name][0] for name in names)

    def _parts(self, weights: Sequence[str], halves: bool) -> Iterator[tuple[tuple[str, ...], MatrixForm]]:
        """The matrices of one product. Neighbours of one form are one matrix; gate and value are one in any case, and
        so are outputs that do not begin at a whole block."""
        runs = [tuple(names) for _, names in groupby(weights, key=lambda name: _without_scales(self._forms[name]))]
        if halves or any(sum(self._shapes[name][0] for name in run) % LANES for run in runs[:-1]):
            runs = [tuple(weights)]
        for names in runs:
            yield names, self._form(names)

    def _form(self, names: Sequence[str]) -> MatrixForm:
        """The form that holds all of these weights without loss."""
        forms = [self._forms[name] for name in names]
        quantized = [form.groups for form in forms if form.groups]
        if len(quantized) == len(forms) and len({form.hadamard for form in forms}) == 1:
            return replace(forms[0], groups=common_form(quantized))
        return forms[0] if len(set(forms)) == 1 else MatrixForm("fp32")

    # --- buffers and weights

    def _buffer(self, name: str, form: InputForm | None = None) -> int:
        """The buffer of that name, plain unless a form is asked for."""
        form = form or InputForm("bf16" if name == "q" and self._kv_dtype == "bf16" else "fp32")
        if (name, form) not in self._buffers:
            width, per_logit_row = self._program.widths[name], name in PER_LOGIT_ROW
            self._buffers[name, form] = (
                self._core.add_quantized_buffer(
                    width, form.group, form.part_sums, per_logit_row, *_transform(width, form)
                )
                if form.group
                else self._core.add_buffer(width, form.dtype, per_logit_row)
            )
        return self._buffers[name, form]

    def _matrix(self, names: tuple[str, ...], halves: bool = False) -> int:
        """The matrix of these weights one below the other; a tied one is packed once."""
        if names in self._matrices:
            return self._matrices[names]
        form, (firsts, outputs) = self._form(names), self._rows(names, halves)
        inner = self._shapes[names[0]][1]
        if form.groups:
            index = self._core.add_quantized_matrix(outputs, inner, _grouping(form.groups))
        else:
            index = self._core.add_matrix(outputs, inner, form.dtype)

        def fill(weights: Weights) -> None:
            if form.groups:
                self._pack_groups(index, [weights.read_groups(name) for name in names], firsts)
                return
            for name, first in zip(names, firsts, strict=True):
                if form.dtype == "bf16":
                    self._core.pack_bf16(index, np.ascontiguousarray(weights.read_bf16(name)), first)
                else:
                    self._core.pack(index, np.ascontiguousarray(weights.read(name)), first)

        self._declare(fill, f"{names} at {firsts} of {outputs} as {form}")
        self._matrices[names] = index
        return int(index)

    def _pack_groups(self, index: int, parts: list[GroupedWeights], firsts: list[int]) -> None:
        rows = stack(parts) if len(parts) > 1 else parts[0]
        begin = 0
        for part, first in zip(parts, firsts, strict=True):
            end = begin + part.shape[0]
            own = rows.rows(begin, end)
            self._core.pack_groups(index, own.codes, own.scales, own.minima, own.subscales, own.subminima, first)
            begin = end

    def _bias(self, names: tuple[str, ...], halves: bool) -> int:
        if not names:
            return -1
        firsts, outputs = self._rows(names, halves)
        return self._add_vector(names, firsts, -(-outputs // LANES) * LANES)

    def _rows(self, names: tuple[str, ...], halves: bool) -> tuple[list[int], int]:
        """First output of each part and the number of outputs. Halves (gate, value) start at whole blocks."""
        firsts, end = [], 0
        for name in names:
            firsts.append(end)
            end += self._shapes[name][0]
            if halves:
                end = -(-end // LANES) * LANES
        return firsts, end

    def _vector(self, name: str) -> int:
        return self._add_vector((name,), [0], self._shapes[name][0])

    def _add_vector(self, names: tuple[str, ...], firsts: list[int], width: int) -> int:
        """These weights at `firsts` of a vector of `width`, the rest zero."""
        index = self._core.add_vector(width)

        def fill(weights: Weights) -> None:
            for name, first in zip(names, firsts, strict=True):
                self._core.set_vector(index, np.ascontiguousarray(weights.read(name)), first)

        self._declare(fill, f"{names} at {firsts} of {width}")
        return int(index)

    def _declare(self, fill: Callable[[Weights], None], content: str) -> None:
        self._fills.append(fill)
        self.contents.append(content)


def _has_halves(op: Op) -> bool:
    return isinstance(op, Matmul) and op.epilogue == "silu_mul"


def _without_scales(form: MatrixForm) -> MatrixForm:
    """What parts of one matrix have in common: fp16 scales can stand in fp32."""
    return replace(form, groups=replace(form.groups, half_scales=False)) if form.groups else form


def _grouping(form: GroupForm) -> Any:
    return _native.Grouping(
        form.bits, form.zero, form.group, form.has_minima, form.half_scales, two_level=form.subgroup > 0
    )


def _transform(width: int, form: InputForm) -> tuple[int, list[float]]:
    """Block length and factors across blocks of the rotation before quantization; 1 and none without."""
    if not form.hadamard:
        return 1, []
    factors = mixing(width)
    return block_len(width), factors.ravel().tolist() if len(factors) > 1 else []
