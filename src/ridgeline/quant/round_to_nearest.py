"""fp32 weights to grouped integers, each rounded to the nearest code: no data but the weights themselves.

8 bits span the group's largest magnitude; rounding is then so fine that nothing better is worth its time. Of 4 bits,
the scale that spans the group is not the best one. A few spans are tried: each gives codes, for which the scale (and
minimum) of least squared error is known in closed form; the span with the least error is kept. docs/decisions.md has
the errors that chose the spans.

Scales and minima are rounded to fp16 before the codes are chosen, so that what is stored is what was meant; a tensor
whose scales lie outside fp16's normal numbers keeps them in fp32. A group with a NaN or an infinity gets the scale NaN,
so that it reaches whoever multiplies by it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from ridgeline.quant.groups import Codes, GroupedWeights, num_groups

Float32 = NDArray[np.float32]

_SYMMETRIC_SPANS = (8 / 7, 1.0, 0.92, 0.83)  # of the largest magnitude, which is code -8 in a span of 1
_MINIMUM_SPANS = (1.0, 0.94, 0.88, 0.82)  # of the distance from the smallest to the largest
_CHUNK_WEIGHTS = 1 << 17  # quantized at a time: intermediate arrays stay in the cache


def round_to_nearest(
    values: Float32, *, bits: int, group: int, with_minimum: bool = False, threads: int = 1
) -> GroupedWeights:
    """`values` [outputs, inner] in groups of `group`, `inner` for one a row. Symmetric codes lie around 8 or 128."""
    outputs, inner = values.shape
    zero = 0 if with_minimum else 1 << (bits - 1)
    codes = np.empty(values.shape, np.uint8)
    scales = np.empty((outputs, num_groups(inner, group)), np.float32)
    minima = np.empty_like(scales) if with_minimum else None
    half = _fits_half(values, bits)
    step = max(1, _CHUNK_WEIGHTS // inner)

    def quantize(begin: int) -> None:
        rows = slice(begin, begin + step)
        for first, last, size in _equal_groups(inner, group):
            own = slice(first // group, num_groups(last, group))
            cut = np.array(values[rows, first:last].reshape(-1, size).T, order="C")  # a copy: _fit may write to it
            scale, minimum = _fit(cut, bits, zero, half)
            codes[rows, first:last] = _round(cut, scale, minimum, bits, zero).T.reshape(-1, last - first)
            scales[rows, own] = scale.reshape(-1, own.stop - own.start)
            if minima is not None:
                minima[rows, own] = minimum.reshape(-1, own.stop - own.start)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(quantize, range(0, outputs, step)))
    return GroupedWeights(codes, scales, minima, bits, zero, min(group, inner))


def _equal_groups(inner: int, group: int) -> list[tuple[int, int, int]]:
    """(first, last, size): columns first .. last - 1 in groups of `size`: the whole ones, then the shorter last one."""
    whole = inner // group * group
    return [(a, b, size) for a, b, size in ((0, whole, group), (whole, inner, inner - whole)) if b > a]


def _fits_half(values: Float32, bits: int) -> bool:
    """Whether the tensor's largest scale is a normal number of fp16; False when something is no number."""
    largest = max(values.max(), -values.min()) / (1 << (bits - 1))
    half = np.finfo(np.float16)
    return bool(half.smallest_normal <= largest <= half.max / 16)  # a minimum may be 8 times as large


def _fit(x: Float32, bits: int, zero: int, half: bool) -> tuple[Float32, Float32]:
    """Scale and minimum, fp32 [groups] each, of `x` [size, groups]: groups stand beside each other, so that numpy
    reduces along the slow axis."""
    low, high = x.min(axis=0), x.max(axis=0)
    broken = ~np.isfinite(low + high)
    if broken.any():
        x[:, broken] = low[broken] = high[broken] = 0
    if zero == 0:
        scale, minimum = _least_error_with_minimum(x, low, high, bits)
    elif bits == 8:
        scale, minimum = np.maximum(high, -low) / np.float32(127), np.zeros_like(low)
    else:
        scale, minimum = _least_error(x, low, high, bits), np.zeros_like(low)
    if half:
        scale, minimum = (values.astype(np.float16).astype(np.float32) for values in (scale, minimum))
    scale[broken] = np.nan
    return scale, minimum


def _least_error(x: Float32, low: Float32, high: Float32, bits: int) -> Float32:
    """The scale of least squared error among those that the spans lead to. For codes q it is y.q / q.q, and takes
    (y.q)^2 / q.q off the error. A negative scale lets the largest magnitude have the code that goes one further."""
    half = 1 << (bits - 1)
    unit = np.where(high >= -low, -high, -low) / np.float32(half)
    y = x * _inverse(unit)  # from -half to half
    factor, best = np.zeros_like(unit), np.zeros_like(unit)
    for span in _SYMMETRIC_SPANS:
        q = _to_codes(y * np.float32(1 / span), -half, half - 1)
        yq, qq = _dot(y, q), np.maximum(_dot(q, q), 1)
        better = yq * yq / qq > best
        factor, best = np.where(better, yq / qq, factor), np.where(better, yq * yq / qq, best)
    return unit * factor


def _least_error_with_minimum(x: Float32, low: Float32, high: Float32, bits: int) -> tuple[Float32, Float32]:
    """As `_least_error`, of the line scale * q + minimum through the points (q, x)."""
    n, top = np.float32(len(x)), (1 << bits) - 1
    unit = (high - low) / np.float32(top)
    y = (x - low) * _inverse(unit)  # from 0 to top
    total = y.sum(axis=0)
    factor, offset, best = np.zeros_like(unit), total / n, np.zeros_like(unit)
    for span in _MINIMUM_SPANS:
        q = _to_codes((y - np.float32(top * (1 - span) / 2)) * np.float32(1 / span), 0, top)
        sum_q = q.sum(axis=0)
        covariance = n * _dot(y, q) - total * sum_q
        slope = covariance / np.maximum(n * _dot(q, q) - sum_q * sum_q, 1)
        better = slope * covariance > best
        factor, best = np.where(better, slope, factor), np.where(better, slope * covariance, best)
        offset = np.where(better, (total - slope * sum_q) / n, offset)
    return unit * factor, low + unit * offset


def _round(x: Float32, scale: Float32, minimum: Float32, bits: int, zero: int) -> Codes:
    """The nearest codes, uint8 [size, groups]; `zero` where there is no scale."""
    if zero == 0:
        x = x - minimum
    q = _to_codes(x * _inverse(scale), -zero, (1 << bits) - 1 - zero)
    q += np.float32(zero)
    return q.astype(np.uint8)


def _to_codes(values: Float32, low: int, high: int) -> Float32:
    """The nearest whole numbers from `low` to `high`, in place."""
    return np.clip(np.rint(values, out=values), low, high, out=values)


def _inverse(scale: Float32) -> Float32:
    """1 / scale, and 0 where that is no finite number."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse = 1 / scale
    inverse[~np.isfinite(inverse)] = 0
    return inverse


def _dot(a: Float32, b: Float32) -> Float32:
    return np.einsum("ij,ij->j", a, b)
