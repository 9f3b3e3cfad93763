"""Orthogonal transforms that spread a row's outliers over all its values, so that 8 bits and one scale hold the row.

A product x W^T stays what it is when x and the rows of W are rotated alike. `rotate` is cheap enough for x while the
model runs (native/kernels_quant.h); weights get it once. It is made of additions in a fixed order and nothing that a
library might reorder: a checkpoint becomes the same bits in every process.

    rotate     a Hadamard transform of each block of the largest power of two, then a Hartley transform across the
               blocks, of which there are an odd number; more than MIXED_BLOCKS of them are left as they are
    hadamard   the blocks alone; its own inverse
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]  # fp32 or fp64

MIXED_BLOCKS = 15  # at most: the work grows with their square
_SEED = 20_260  # of the signs: part of the format, rotated weights of another seed do not fit together
_CHUNK_WEIGHTS = 1 << 17  # transformed at a time: intermediate arrays stay in the cache


def block_len(width: int) -> int:
    """The largest power of two that divides `width`."""
    return width & -width


def hadamard(values: Array, width: int | None = None, *, threads: int = 1) -> Array:
    """Each run of `width` values of the last axis, the whole axis by default, in its blocks."""
    block = block_len(width or values.shape[-1])
    return _along_columns(values, lambda x: _hadamard(x, block), threads)


def rotate(values: Array, *, threads: int = 1) -> Array:
    """The last axis rotated: inputs of a product, or the rows of its weights."""
    return _along_columns(values, _rotate, threads)


def hadamard_outputs(weight: Array, width: int, *, threads: int = 1) -> Array:
    """Each run of `width` rows of a matrix [outputs, inner], or values of a bias."""
    return _along_outputs(weight, lambda x: _hadamard(x, block_len(width)), threads)


def mixing(width: int) -> NDArray[np.float64]:
    """The Hartley transform across the blocks, [blocks, blocks]: cos + sin of every angle, orthogonal and its own
    inverse. [1, 1] where the blocks are not mixed."""
    count = width // block_len(width)
    if count > MIXED_BLOCKS:
        return np.ones((1, 1))
    angles = 2 * np.pi / count * np.outer(np.arange(count), np.arange(count))
    return np.asarray((np.cos(angles) + np.sin(angles)) / math.sqrt(count))


def signs(width: int) -> NDArray[np.float32]:
    """+1 and -1. Rows of one sign, as a mean that all tokens share, would meet in one value of the transform: they go
    before it. Raw bits of PCG64, whose stream numpy promises to keep."""
    bits = np.random.PCG64(_SEED).random_raw(width) & 1
    return 1 - 2 * bits.astype(np.float32)


def _along_columns(values: Array, transform: Callable[[Array], None], threads: int) -> Array:
    """`transform` works along axis 0, where numpy is fast: rows are turned and turned back, some at a time."""
    flat = values.reshape(-1, values.shape[-1])
    out = np.empty_like(flat)

    def turn(rows: slice) -> None:
        columns = np.array(flat[rows].T, order="C")
        transform(columns)
        out[rows] = columns.T

    _in_chunks(turn, len(flat), flat.shape[1], threads)
    return out.reshape(values.shape)


def _along_outputs(weight: Array, transform: Callable[[Array], None], threads: int) -> Array:
    flat = weight.reshape(len(weight), -1)
    out = np.empty_like(flat)

    def turn(columns: slice) -> None:
        part = np.array(flat[:, columns], order="C")
        transform(part)
        out[:, columns] = part

    _in_chunks(turn, flat.shape[1], len(flat), threads)
    return out.reshape(weight.shape)


def _in_chunks(work: Callable[[slice], None], count: int, width: int, threads: int) -> None:
    step = max(1, _CHUNK_WEIGHTS // width)
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, (slice(begin, begin + step) for begin in range(0, count, step))))


def _hadamard(x: Array, block: int) -> None:
    """Blocks of axis 0, in place: butterflies of growing distance, then the factor that keeps lengths."""
    distance = 1
    while distance < block:
        pairs = x.reshape(-1, 2, distance, x.shape[1])
        first, second = pairs[:, 0], pairs[:, 1]
        difference = first - second
        first += second
        second[...] = difference
        distance *= 2
    x *= x.dtype.type(1 / math.sqrt(block))


def _rotate(x: Array) -> None:
    """Axis 0, in place."""
    _hadamard(x, block_len(len(x)))
    factors = mixing(len(x)).astype(x.dtype)
    if len(factors) > 1:
        _mix_blocks(x.reshape(len(factors), -1), factors)


def _mix_blocks(blocks: Array, factors: Array) -> None:
    sources = blocks.copy()
    for i in range(len(factors)):
        np.multiply(sources[0], factors[i, 0], out=blocks[i])
        for j in range(1, len(factors)):
            blocks[i] += sources[j] * factors[i, j]
