"""Translates a program into the native core's buffers, matrices and ops, and packs its weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

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

LANES = 16  # outputs in a block of packed weights
PER_LOGIT_ROW = ("rows", "final", "logits")  # buffers with a row per logit row, not per token
PRODUCT_INPUTS = ("h", "attn", "act", "final")  # buffers that feed matrix products, held in the weights' format


class Weights(Protocol):
    def read(self, name: str) -> np.ndarray: ...
    def read_bf16(self, name: str) -> np.ndarray: ...


class Builder:
    """Translates the program's names into the core's numbers: all ops at once, the weights when `pack` is called."""

    def __init__(self, core: Any, program: Program, dtype: str, kv_dtype: str) -> None:
        self._core = core
        self._program = program
        self._dtype = dtype
        self._shapes = weight_shapes(program.spec)
        self._matrices: dict[tuple[str, ...], int] = {}
        self.contents: list[str] = []  # which weights each matrix and vector holds, and where
        self._fills: list[Callable[[Weights], None]] = []  # one per matrix or vector: reads its weights and packs them
        formats = dict.fromkeys(PRODUCT_INPUTS, dtype) | {"q": kv_dtype}
        self._buffers = {
            name: core.add_buffer(width, formats.get(name, "fp32"), name in PER_LOGIT_ROW)
            for name, width in program.widths.items()
        }

        for op in program.ops:
            self._add(op)

    def pack(self, weights: Weights, progress: Callable[[str, float], None]) -> None:
        """Fills all matrices and vectors, reading each weight once."""
        for i, fill in enumerate(self._fills):
            fill(weights)
            progress("packing weights", (i + 1) / len(self._fills))

    def _add(self, op: Op) -> None:
        core, buffers = self._core, self._buffers
        match op:
            case Embed():
                core.add_embed(self._matrix((op.weight,)), buffers[op.out])
            case Norm():
                width = self._program.widths[op.source]
                core.add_norm(buffers[op.source], self._vector(op.weight), buffers[op.out], width)
            case Matmul():
                halves = op.epilogue == "silu_mul"
                matrix, bias = self._matrix(op.weights, halves), self._bias(op.biases, halves)
                core.add_matmul(buffers[op.source], matrix, buffers[op.out], bias, op.epilogue)
            case RopeStore():
                norms = [self._vector(name) if name else -1 for name in (op.q_norm, op.k_norm)]
                core.add_rope_store(op.layer, buffers[op.source], buffers[op.out], *norms)
            case Attention():
                core.add_attention(op.layer, buffers[op.source], buffers[op.out], op.window or 0)
            case GatherRows():
                core.add_gather(buffers[op.source], buffers[op.out])
            case Logits():
                core.add_logits(buffers[op.source], self._matrix((op.weight,)), buffers[op.out])

    def _matrix(self, names: tuple[str, ...], halves: bool = False) -> int:
        """The matrix of these weights one below the other; a tied one is packed once."""
        if names in self._matrices:
            return self._matrices[names]
        firsts, outputs = self._rows(names, halves)
        index = self._core.add_matrix(outputs, self._shapes[names[0]][1])

        def fill(weights: Weights) -> None:
            for name, first in zip(names, firsts, strict=True):
                if self._dtype == "bf16":
                    self._core.pack_bf16(index, np.ascontiguousarray(weights.read_bf16(name)), first)
                else:
                    self._core.pack(index, np.ascontiguousarray(weights.read(name)), first)

        self._declare(fill, names, firsts, outputs)
        self._matrices[names] = index
        return int(index)

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

        self._declare(fill, names, firsts, width)
        return int(index)

    def _declare(self, fill: Callable[[Weights], None], names: tuple[str, ...], firsts: list[int], rows: int) -> None:
        self._fills.append(fill)
        self.contents.append(f"{names} at {firsts} of {rows}")
