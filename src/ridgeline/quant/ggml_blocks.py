"""The block formats of GGUF files, decoded to the exact fp32 values that they stand for.

A quantized tensor is a row-major sequence of blocks: `block_len` consecutive weights share one scale (and, in some
formats, one minimum). The K formats have super-blocks of 256 weights whose sub-blocks carry their own small integer
scales. Layouts follow ggml-common.h. Each decoder maps raw blocks, uint8 [blocks, block_bytes], to fp32
[blocks, block_len] by whole-array operations, multiplying in ggml's order, so that values agree bit for bit.

F32, F16 and BF16 are blocks of one weight: the caller needs no second path.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import CheckpointError
from ridgeline.quant.bf16 import from_bf16

Bytes = NDArray[np.uint8]
Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class BlockFormat:
    """`decode` maps uint8 [blocks, block_bytes] to float32 [blocks, block_len]."""

    block_len: int
    block_bytes: int
    decode: Callable[[Bytes], Float32]


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


def _q8_0(blocks: Bytes) -> Float32:
    """fp16 d; int8 q[32]; w = d * q."""
    return blocks[:, 2:].view(np.int8) * _half(blocks, 0)


def _q4_0(blocks: Bytes) -> Float32:
    """fp16 d; 16 bytes of nibbles; w = d * (q - 8)."""
    q = _nibbles(blocks[:, 2:]).reshape(-1, 32)
    return (q.view(np.int8) - np.int8(8)) * _half(blocks, 0)


def _q4_1(blocks: Bytes) -> Float32:
    """fp16 d, m; 16 bytes of nibbles; w = d * q + m."""
    w = _nibbles(blocks[:, 4:]).reshape(-1, 32) * _half(blocks, 0)
    w += _half(blocks, 2)
    return w


def _fifth_bits(packed: Bytes) -> Bytes:
    """4 bytes a block to [blocks, 32] values 0 or 16: bit j belongs to weight j."""
    return np.unpackbits(packed, axis=1, bitorder="little") << np.uint8(4)


def _q5_0(blocks: Bytes) -> Float32:
    """As Q4_0 with a fifth bit: fp16 d; 4 bytes of fifth bits; 16 bytes of nibbles; w = d * (q - 16)."""
    q = _nibbles(blocks[:, 6:]).reshape(-1, 32) | _fifth_bits(blocks[:, 2:6])
    return (q.view(np.int8) - np.int8(16)) * _half(blocks, 0)


def _q5_1(blocks: Bytes) -> Float32:
    """As Q4_1 with a fifth bit: fp16 d, m; 4 bytes of fifth bits; 16 bytes of nibbles; w = d * q + m."""
    w = (_nibbles(blocks[:, 8:]).reshape(-1, 32) | _fifth_bits(blocks[:, 4:8])) * _half(blocks, 0)
    w += _half(blocks, 2)
    return w


def _k_scales(blocks: Bytes) -> tuple[Float32, Float32]:
    """Scale and minimum of the 8 sub-blocks of Q4_K and Q5_K: fp32 [blocks, 8, 1] each.

    fp16 d, dmin; then 12 bytes with 8 scales and 8 minima of 6 bits: the first four of each lie in the low bits of
    bytes 0..3 and 4..7; the last four have their low halves in bytes 8..11 and their top two bits in bytes 0..7.
    """
    first, second, low = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([first & 63, (low & 15) | ((first >> 6) << 4)], axis=1)
    minima = np.concatenate([second & 63, (low >> 4) | ((second >> 6) << 4)], axis=1)
    return (scales * _half(blocks, 0))[..., None], (minima * _half(blocks, 2))[..., None]


def _q4_k(blocks: Bytes) -> Float32:
    """Scales; 128 bytes: each 32 bytes hold two sub-blocks of 32, low nibbles first; w = d * sc * q - dmin * m."""
    scales, minima = _k_scales(blocks)
    w = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32) * scales
    w -= minima
    return w.reshape(-1, 256)


def _q5_k(blocks: Bytes) -> Float32:
    """As Q4_K with a fifth bit: bit s of the 32 bytes before the nibbles belongs to sub-block s."""
    scales, minima = _k_scales(blocks)
    q = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    q |= _bit_planes(blocks[:, 16:48], bits=1, planes=8) << 4
    w = q * scales
    w -= minima
    return w.reshape(-1, 256)


def _q6_k(blocks: Bytes) -> Float32:
    """128 bytes of low nibbles, 64 bytes of high bit pairs, 16 int8 scales, fp16 d; w = d * sc * (q - 32).

    Each half of 128 weights takes 64 + 32 bytes, in four groups of 32: the low nibbles of both 32-byte runs, then the
    high nibbles of both; group g's high bits are pair g of the 32 bytes. A scale covers 16 weights.
    """
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    high = _bit_planes(blocks[:, 128:192].reshape(-1, 2, 32), bits=2, planes=4)
    q = (low | (high << 4)).view(np.int8) - np.int8(32)
    scales = blocks[:, 192:208].view(np.int8) * _half(blocks, 208)
    return (q.reshape(-1, 16, 16) * scales[..., None]).reshape(-1, 256)


FORMATS = {
    "F32": BlockFormat(1, 4, _f32),
    "F16": BlockFormat(1, 2, _f16),
    "BF16": BlockFormat(1, 2, _bf16),
    "Q8_0": BlockFormat(32, 34, _q8_0),
    "Q4_0": BlockFormat(32, 18, _q4_0),
    "Q4_1": BlockFormat(32, 20, _q4_1),
    "Q5_0": BlockFormat(32, 22, _q5_0),
    "Q5_1": BlockFormat(32, 24, _q5_1),
    "Q4_K": BlockFormat(256, 144, _q4_k),
    "Q5_K": BlockFormat(256, 176, _q5_k),
    "Q6_K": BlockFormat(256, 210, _q6_k),
}
