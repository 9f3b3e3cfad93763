"""fp32 weights to grouped integers, each rounded to the nearest code: no data but the weights themselves.

8 bits span the group's largest magnitude; rounding is then so fine that nothing better is worth its time. Of 4 bits,
the scale that spans the group is not the best one. A few spans are tried: each gives codes, for which the scale (and
minimum) of least squared error is known in closed form; the span with the least error is kept. Least squares shrinks
what it fits, every group by its relative error, and over many matrices that adds up: the scales are raised until the
quantized group is as long as the group itself along its direction. docs/decisions.md has the errors that chose this.

Scales and minima that are stored in fp16 are rounded to it before the codes are chosen, so that what is stored is what
was meant.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from ridgeline.quant.group_form import GroupForm
from ridgeline.quant.groups import Codes, GroupedWeights, num_groups

Float32 = NDArray[np.float32]

_SYMMETRIC_SPANS = (8 / 7, 1.0, 0.92, 0.83)  # of the largest magnitude, which is code -8 in a span of 1
_MINIMUM_SPANS = (1.0, 0.94, 0.88, 0.82)  # of the distance from the smallest to the largest
_UNSHRINKING_ROUNDS = 3
_LEAST_SCALE = 2.0**-20  # of a tensor's largest scale: fp16's steps are 2^-24 down there, too coarse for smaller ones
_LARGEST_SCALE = 2.0**12  # a minimum is 8 times as large and must stay below 65,504
_CHUNK_WEIGHTS = 1 << 17  # quantized at a time: intermediate arrays stay in the cache


def round_to_nearest(values: Float32, form: GroupForm, *, threads: int = 1) -> GroupedWeights:
    """`values` [outputs, inner] in `form`. Raises ValueError for what it cannot hold: NaN and infinities, and values
    whose scales would leave the range of fp16."""
    _check(values, form)
    outputs, inner = values.shape
    codes = np.empty(values.shape, np.uint8)
    scales = np.empty((outputs, num_groups(inner, form.group)), np.float32)
    minima = np.empty_like(scales) if form.has_minima else None
    step = max(1, _CHUNK_WEIGHTS // inner)

    def quantize(begin: int) -> None:
        rows = slice(begin, begin + step)
        for first, last, size in _equal_groups(inner, form.group):
            own = slice(first // form.group, num_groups(last, form.group))
            # [size, groups]: groups stand beside each other, so that numpy reduces along the slow axis.
            cut = np.ascontiguousarray(values[rows, first:last].reshape(-1, size).T)
            scale, minimum = _fit(cut, form)
            codes[rows, first:last] = _round(cut, scale, minimum, form).T.reshape(-1, last - first)
            scales[rows, own] = scale.reshape(-1, own.stop - own.start)
            if minima is not None:
                minima[rows, own] = minimum.reshape(-1, own.stop - own.start)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(quantize, range(0, outputs, step)))
    return GroupedWeights(codes, scales, minima, form.bits, form.zero, form.group)


def _check(values: Float32, form: GroupForm) -> None:
    largest = float(max(values.max(), -values.min()))
    if not math.isfinite(largest):
        raise ValueError("there are NaN or infinite weights")
    scale = largest / (1 << (form.bits - 1))
    if form.half_scales and largest > 0 and not _LEAST_SCALE <= scale <= _LARGEST_SCALE:
        raise ValueError(f"weights up to {largest:.3g} need scales outside the range of fp16")


def _equal_groups(inner: int, group: int) -> list[tuple[int, int, int]]:
    """(first, last, size): columns first .. last - 1 in groups of `size`: the whole ones, then the shorter last one."""
    whole = inner // group * group
    return [(a, b, size) for a, b, size in ((0, whole, group), (whole, inner, inner - whole)) if b > a]


def _fit(x: Float32, form: GroupForm) -> tuple[Float32, Float32]:
    """Scale and minimum of each group of `x`, fp32 [groups] each."""
    low, high = x.min(axis=0), x.max(axis=0)
    minimum = np.zeros_like(low)
    if form.has_minima:
        scale, minimum = _unshrunk(x, *_least_error_with_minimum(x, low, high, form.bits), form)
    elif form.bits == 8:
        scale = np.maximum(high, -low) / np.float32(127)
    else:
        scale, minimum = _unshrunk(x, _least_error(x, low, high, form.bits), minimum, form)
    return (_to_half(scale), _to_half(minimum)) if form.half_scales else (scale, minimum)


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


def _unshrunk(x: Float32, scale: Float32, minimum: Float32, form: GroupForm) -> tuple[Float32, Float32]:
    """Scales with x . x^ = x . x for the quantized x^; with a minimum, of both less their means. The codes follow the
    scale, so it takes a few rounds to come close."""
    for _ in range(_UNSHRINKING_ROUNDS):
        y = (x - minimum) * _inverse(scale)
        q = _to_codes(y.copy(), -form.zero, (1 << form.bits) - 1 - form.zero)
        mean_y, mean_q = (y.mean(axis=0), q.mean(axis=0)) if form.has_minima else (np.float32(0), np.float32(0))
        y -= mean_y
        yq = _dot(y, q)
        factor = np.where(yq > 0, _dot(y, y) / np.where(yq > 0, yq, 1), 1)
        if form.has_minima:
            minimum = minimum + scale * (mean_y - factor * mean_q)
        scale = scale * factor
    return scale, minimum


def _round(x: Float32, scale: Float32, minimum: Float32, form: GroupForm) -> Codes:
    """The nearest codes, uint8 [size, groups]; `zero` where the scale is 0."""
    if form.has_minima:
        x = x - minimum
    q = _to_codes(x * _inverse(scale), -form.zero, (1 << form.bits) - 1 - form.zero)
    q += np.float32(form.zero)
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


def _to_half(values: Float32) -> Float32:
    return values.astype(np.float16).astype(np.float32)


def _dot(a: Float32, b: Float32) -> Float32:
    return np.einsum("ij,ij->j", a, b)
