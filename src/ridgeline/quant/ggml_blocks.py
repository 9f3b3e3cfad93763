"""The block formats of GGUF files: their exact fp32 values, and the same as grouped integers.

A quantized tensor is a row-major sequence of blocks: `block_len` consecutive weights share one scale (and, in some
formats, one minimum). The K formats have super-blocks of 256 weights whose sub-blocks carry their own small integer
scales. Layouts follow ggml-common.h. Each unpacker maps raw blocks, uint8 [blocks, block_bytes], to codes, scales and
minima by whole-array operations; scale * (code - zero) + minimum, in that order, gives ggml's values bit for bit. Scale
and minimum of a sub-block are products that fp32 holds exactly, so one and two levels of scales are the same values.

F32, F16 and BF16 are blocks of one weight and have no groups: for fp32 values the caller needs no second path.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import CheckpointError
from ridgeline.quant.bf16 import from_bf16
from ridgeline.quant.group_form import GroupForm
from ridgeline.quant.groups import GroupedWeights

Bytes = NDArray[np.uint8]
Float32 = NDArray[np.float32]

_CHUNK_BLOCKS = 1 << 12  # unpacked at a time: intermediate arrays stay in the cache


class Unpacked(NamedTuple):
    """A scale, and perhaps a minimum, per block; of the K formats small integers that multiply them per sub-block."""

    codes: Bytes  # [blocks, block_len]
    scales: Float32  # [blocks, 1]
    minima: Float32 | None = None  # [blocks, 1]
    subscales: NDArray[np.int8] | None = None  # [blocks, sub-blocks]
    subminima: Bytes | None = None  # [blocks, sub-blocks]


@dataclass(frozen=True)
class GroupedBlocks:
    """How the blocks of a quantized format become integers: codes of `bits` bits, `zero` stands for 0. `subgroup`: the
    length of a sub-block of the K formats."""

    unpack: Callable[[Bytes], Unpacked]
    bits: int
    zero: int
    has_minima: bool = False
    subgroup: int = 0

    def decode(self, blocks: Bytes) -> Float32:
        codes, scales, minima, subscales, subminima = self.unpack(blocks)
        q = codes.view(np.int8) - np.int8(self.zero) if self.zero < 128 else (codes ^ np.uint8(128)).view(np.int8)
        if subscales is not None:
            scales = scales * subscales
        values = q.reshape(*scales.shape, -1) * scales[..., None]
        if minima is not None:
            values += (minima if subminima is None else minima * subminima)[..., None]
        return values


@dataclass(frozen=True)
class BlockFormat:
    """`decode` maps uint8 [blocks, block_bytes] to float32 [blocks, block_len]. `groups`: of a quantized format."""

    block_len: int
    block_bytes: int
    decode: Callable[[Bytes], Float32]
    groups: GroupedBlocks | None = None


def block_format(type_name: str) -> BlockFormat:
    """The format of a storage type, by ggml's name. Raises CheckpointError for one that cannot be decoded."""
    found = FORMATS.get(type_name)
    if found is None:
        raise CheckpointError(f"storage type {type_name} cannot be read", hint="readable: " + ", ".join(FORMATS))
    return found


def dequantize(type_name: str, raw: Bytes) -> Float32:
    """Decodes a flat run of whole blocks, uint8 [n * block_bytes], to float32 [n * block_len]."""
    fmt = block_format(type_name)
    return fmt.decode(raw.reshape(-1, fmt.block_bytes)).reshape(-1)


def group_form(type_name: str) -> GroupForm | None:
    """How a type's own groups are laid out; None: it is not quantized."""
    fmt = block_format(type_name)
    if fmt.groups is None:
        return None
    own = fmt.groups
    return GroupForm(own.bits, own.zero, fmt.block_len, own.has_minima, half_scales=True, subgroup=own.subgroup)


def unpack_groups(type_name: str, raw: Bytes, shape: tuple[int, int]) -> GroupedWeights:
    """The matrix of `shape` that lies in `raw`, in its format's own groups: the very values of `dequantize`.

    Raises CheckpointError for a format without groups.
    """
    fmt = block_format(type_name)
    if fmt.groups is None:
        raise CheckpointError(f"storage type {type_name} has no groups", hint="it is not quantized")
    own, blocks = fmt.groups, raw.reshape(-1, fmt.block_bytes)
    whole = [_empty(part, len(blocks)) for part in own.unpack(blocks[:1])]
    for begin in range(0, len(blocks), _CHUNK_BLOCKS):
        chunk = slice(begin, begin + _CHUNK_BLOCKS)
        for array, part in zip(whole, own.unpack(blocks[chunk]), strict=True):
            if array is not None:
                array[chunk] = part
    codes, scales, minima, subscales, subminima = (
        None if array is None else array.reshape(shape[0], -1) for array in whole
    )
    return GroupedWeights(codes, scales, minima, own.bits, own.zero, fmt.block_len, subscales, subminima, own.subgroup)


def _empty(like: NDArray[Any] | None, blocks: int) -> NDArray[Any] | None:
    return None if like is None else np.empty((blocks, *like.shape[1:]), like.dtype)


def _half(blocks: Bytes, start: int) -> Float32:
    """The fp16 number at byte `start` of each block, as fp32 [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view(np.float16).astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """[..., n] bytes to [..., 2, n] values 0..15: the low halves, then the high halves."""
    return np.stack([packed & 15, packed >> 4], axis=-2)


def _bit_planes(packed: Bytes, bits: int, planes: int) -> Bytes:
    """[..., n] bytes to [..., planes, n] values: plane p holds the `bits` bits from bit p * bits on."""
    shifts = np.arange(planes, dtype=np.uint8)[:, None] * np.uint8(bits)
    return (packed[..., None, :] >> shifts) & np.uint8((1 << bits) - 1)


def _f32(blocks: Bytes) -> Float32:
    return blocks.view("<f4")


def _f16(blocks: Bytes) -> Float32:
    return blocks.view("<f2").astype(np.float32)


def _bf16(blocks: Bytes) -> Float32:
    return from_bf16(blocks.view("<u2"))


def _q8_0(blocks: Bytes) -> Unpacked:
    """fp16 d; int8 q[32]; w = d * q."""
    return Unpacked(blocks[:, 2:] ^ np.uint8(128), _half(blocks, 0))


def _q4_0(blocks: Bytes) -> Unpacked:
    """fp16 d; 16 bytes of nibbles; w = d * (q - 8)."""
    return Unpacked(_nibbles(blocks[:, 2:]).reshape(-1, 32), _half(blocks, 0))


def _q4_1(blocks: Bytes) -> Unpacked:
    """fp16 d, m; 16 bytes of nibbles; w = d * q + m."""
    return Unpacked(_nibbles(blocks[:, 4:]).reshape(-1, 32), _half(blocks, 0), _half(blocks, 2))


def _fifth_bits(packed: Bytes) -> Bytes:
    """4 bytes a block to [blocks, 32] values 0 or 16: bit j belongs to weight j."""
    return np.unpackbits(packed, axis=1, bitorder="little") << np.uint8(4)


def _q5_0(blocks: Bytes) -> Unpacked:
    """As Q4_0 with a fifth bit: fp16 d; 4 bytes of fifth bits; 16 bytes of nibbles; w = d * (q - 16)."""
    q = _nibbles(blocks[:, 6:]).reshape(-1, 32) | _fifth_bits(blocks[:, 2:6])
    return Unpacked(q, _half(blocks, 0))


def _q5_1(blocks: Bytes) -> Unpacked:
    """As Q4_1 with a fifth bit: fp16 d, m; 4 bytes of fifth bits; 16 bytes of nibbles; w = d * q + m."""
    q = _nibbles(blocks[:, 8:]).reshape(-1, 32) | _fifth_bits(blocks[:, 4:8])
    return Unpacked(q, _half(blocks, 0), _half(blocks, 2))


def _with_k_scales(codes: Bytes, blocks: Bytes) -> Unpacked:
    """The 8 sub-blocks of Q4_K and Q5_K: w = d * sc * q - dmin * m.

    fp16 d, dmin; then 12 bytes with 8 scales and 8 minima of 6 bits: the first four of each lie in the low bits of
    bytes 0..3 and 4..7; the last four have their low halves in bytes 8..11 and their top two bits in bytes 0..7.
    """
    first, second, low = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([first & 63, (low & 15) | ((first >> 6) << 4)], axis=1)
    minima = np.concatenate([second & 63, (low >> 4) | ((second >> 6) << 4)], axis=1)
    return Unpacked(codes.reshape(-1, 256), _half(blocks, 0), -_half(blocks, 2), scales.view(np.int8), minima)


def _q4_k(blocks: Bytes) -> Unpacked:
    """Scales; 128 bytes: each 32 bytes hold two sub-blocks of 32, low nibbles first."""
    return _with_k_scales(_nibbles(blocks[:, 16:].reshape(-1, 4, 32)), blocks)


def _q5_k(blocks: Bytes) -> Unpacked:
    """As Q4_K with a fifth bit: bit s of the 32 bytes before the nibbles belongs to sub-block s."""
    q = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    q |= _bit_planes(blocks[:, 16:48], bits=1, planes=8) << 4
    return _with_k_scales(q, blocks)


def _q6_k(blocks: Bytes) -> Unpacked:
    """128 bytes of low nibbles, 64 bytes of high bit pairs, 16 int8 scales, fp16 d; w = d * sc * (q - 32).

    Each half of 128 weights takes 64 + 32 bytes, in four groups of 32: the low nibbles of both 32-byte runs, then the
    high nibbles of both; group g's high bits are pair g of the 32 bytes. A scale covers 16 weights.
    """
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    high = _bit_planes(blocks[:, 128:192].reshape(-1, 2, 32), bits=2, planes=4)
    codes = (low | (high << 4)).reshape(-1, 256)
    return Unpacked(codes, _half(blocks, 208), None, blocks[:, 192:208].view(np.int8))


def _grouped(block_len: int, block_bytes: int, groups: GroupedBlocks) -> BlockFormat:
    return BlockFormat(block_len, block_bytes, groups.decode, groups)


FORMATS = {
    "F32": BlockFormat(1, 4, _f32),
    "F16": BlockFormat(1, 2, _f16),
    "BF16": BlockFormat(1, 2, _bf16),
    "Q8_0": _grouped(32, 34, GroupedBlocks(_q8_0, bits=8, zero=128)),
    "Q4_0": _grouped(32, 18, GroupedBlocks(_q4_0, bits=4, zero=8)),
    "Q4_1": _grouped(32, 20, GroupedBlocks(_q4_1, bits=4, zero=0, has_minima=True)),
    "Q5_0": _grouped(32, 22, GroupedBlocks(_q5_0, bits=8, zero=16)),
    "Q5_1": _grouped(32, 24, GroupedBlocks(_q5_1, bits=8, zero=0, has_minima=True)),
    "Q4_K": _grouped(256, 144, GroupedBlocks(_q4_k, bits=4, zero=0, has_minima=True, subgroup=32)),
    "Q5_K": _grouped(256, 176, GroupedBlocks(_q5_k, bits=5, zero=0, has_minima=True, subgroup=32)),
    "Q6_K": _grouped(256, 210, GroupedBlocks(_q6_k, bits=6, zero=32, subgroup=16)),
}
