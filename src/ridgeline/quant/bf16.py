"""bfloat16, the upper half of an fp32 number, as uint16 bits: numpy has no such type."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Rounds to the nearest bf16, ties to even; what is too large becomes infinite; NaN stays NaN (made quiet)."""
    bits = values.view(np.uint32)
    rounded = bits >> 16
    rounded &= 1
    rounded += 0x7FFF
    rounded += bits  # wraps only for NaNs, which are replaced below
    rounded >>= 16
    out = rounded.astype(np.uint16)
    nan = np.isnan(values)
    if nan.any():
        out[nan] = (bits[nan] >> 16) | 0x0040
    return out


def from_bf16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The exact fp32 values of bf16 bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
