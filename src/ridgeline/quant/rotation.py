"""Orthogonal transforms that spread a row's outliers over all its values, so that 8 bits and one scale hold the row.

A product x W^T stays what it is when x and the rows of W are rotated alike. `rotate` is for the residual stream, folded
into weights before the model runs; `hadamard` is cheap enough to be applied while it runs. Both are made of additions
in a fixed order and nothing that a library might reorder: a checkpoint becomes the same bits in every process.

    rotate     signs, then a Hadamard transform of each block of the largest power of two, then a Hartley transform
               across the blocks, of which there are an odd number
    hadamard   a Hadamard transform of each block of the largest power of two; its own inverse
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]  # fp32 or fp64

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
    """The last axis rotated: rows of weights that read the residual stream, and vectors that are added to it."""
    return _along_columns(values, _rotate, threads)


def hadamard_outputs(weight: Array, width: int, *, threads: int = 1) -> Array:
    """Each run of `width` rows of a matrix [outputs, inner], or values of a bias."""
    return _along_outputs(weight, lambda x: _hadamard(x, block_len(width)), threads)


def rotate_outputs(weight: Array, *, threads: int = 1) -> Array:
    """The rows of a matrix [outputs, inner] that writes the residual stream, or the values of its bias."""
    return _along_outputs(weight, _rotate, threads)


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
    width = len(x)
    block = block_len(width)
    x *= _signs(width).astype(x.dtype)[:, None]
    _hadamard(x, block)
    if block < width:
        _mix_blocks(x.reshape(width // block, -1))


def _mix_blocks(blocks: Array) -> None:
    """The Hartley transform of axis 0: cos + sin of every angle, which is orthogonal and its own inverse."""
    count = len(blocks)
    angles = 2 * np.pi / count * np.outer(np.arange(count), np.arange(count))
    factors = ((np.cos(angles) + np.sin(angles)) / math.sqrt(count)).astype(blocks.dtype)
    sources = blocks.copy()
    for i in range(count):
        np.multiply(sources[0], factors[i, 0], out=blocks[i])
        for j in range(1, count):
            blocks[i] += sources[j] * factors[i, j]


def _signs(width: int) -> NDArray[np.int8]:
    """Raw bits of PCG64, whose stream numpy promises to keep."""
    bits = np.random.PCG64(_SEED).random_raw(width) & 1
    return (1 - 2 * bits.astype(np.int8)).astype(np.int8)
