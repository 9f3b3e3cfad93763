"""Weights as small integers that share a scale: what every quantized format becomes before a kernel sees it.

A row of `inner` weights is cut into groups of `group`, the last one perhaps shorter. The value of a weight is

    scale * (code - zero) [+ minimum]

in fp32, the product rounded, then the sum. Codes are unsigned, so that formats with and without a minimum, of 4 and of
8 bits, are one form; `zero` is one number for the whole tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.quant.group_form import GroupForm, common_form

Codes = NDArray[np.uint8]
Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class GroupedWeights:
    """A matrix [outputs, inner]. `bits`, 4 or 8, is what a code takes in memory."""

    codes: Codes  # [outputs, inner]
    scales: Float32  # [outputs, groups]
    minima: Float32 | None  # [outputs, groups]
    bits: int
    zero: int
    group: int  # weights that share a scale; `inner`: one scale for a whole row

    def __post_init__(self) -> None:
        outputs, inner = self.codes.shape
        expected = (outputs, num_groups(inner, self.group))
        for name, values in (("scales", self.scales), ("minima", self.minima)):
            if values is not None and values.shape != expected:
                raise ValueError(f"{name} are {list(values.shape)}, codes {[outputs, inner]} need {list(expected)}")

    @property
    def shape(self) -> tuple[int, int]:
        outputs, inner = self.codes.shape
        return outputs, inner

    @property
    def half_scales(self) -> bool:
        """Whether fp16 holds every scale and minimum exactly, so that two bytes each are enough."""
        return all(_fits_half(values) for values in (self.scales, self.minima) if values is not None)

    @property
    def form(self) -> GroupForm:
        return GroupForm(self.bits, self.zero, self.group, self.minima is not None, self.half_scales)

    def dequantize(self) -> Float32:
        """The values, fp32 [outputs, inner]."""
        values = self.codes.astype(np.float32)
        values -= np.float32(self.zero)
        values *= self._spread(self.scales)
        if self.minima is not None:
            values += self._spread(self.minima)
        return values

    def rows(self, begin: int, end: int) -> GroupedWeights:
        """Outputs begin .. end - 1, as views."""
        minima = None if self.minima is None else self.minima[begin:end]
        return GroupedWeights(self.codes[begin:end], self.scales[begin:end], minima, self.bits, self.zero, self.group)

    def _spread(self, per_group: Float32) -> Float32:
        """[outputs, groups] to [outputs, inner]."""
        inner = self.shape[1]
        return per_group if self.group >= inner else np.repeat(per_group, self.group, axis=1)[:, :inner]


def num_groups(inner: int, group: int) -> int:
    return -(-inner // group)


def stack(parts: Sequence[GroupedWeights]) -> GroupedWeights:
    """The rows of all parts, one below the other, every value kept.

    Parts of different formats, as in a GGUF file whose v is stored finer than its q and k, meet in a form that holds
    each: the finer groups, the larger codes around a common zero, minima of 0 where a part has none.
    """
    form = common_form([part.form for part in parts])
    parts = [part if part.form == form else _widened(part, form) for part in parts]
    first = parts[0]
    minima = [part.minima for part in parts if part.minima is not None]
    return GroupedWeights(
        np.concatenate([part.codes for part in parts]),
        np.concatenate([part.scales for part in parts]),
        np.concatenate(minima) if minima else None,
        first.bits,
        first.zero,
        first.group,
    )


def _widened(part: GroupedWeights, form: GroupForm) -> GroupedWeights:
    """The same values in `form`, whose groups divide the part's own and whose codes reach as far."""
    shift = form.zero - part.zero
    if shift and int(part.codes.max()) + shift > np.iinfo(np.uint8).max:
        raise ValueError(f"codes up to {part.codes.max()} around {part.zero} do not fit 8 bits around {form.zero}")
    minima = np.zeros_like(part.scales) if part.minima is None and form.has_minima else part.minima

    def split(values: Float32) -> Float32:
        return np.repeat(values, part.group // form.group, axis=1)[:, : num_groups(part.shape[1], form.group)]

    codes = part.codes + np.uint8(shift)
    minima = None if minima is None else split(minima)
    return GroupedWeights(codes, split(part.scales), minima, form.bits, form.zero, form.group)


def _fits_half(values: Float32) -> bool:
    with np.errstate(over="ignore"):
        return bool(np.array_equal(values.astype(np.float16).astype(np.float32), values))
