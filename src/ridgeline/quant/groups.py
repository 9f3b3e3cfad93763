"""Weights as small integers that share a scale: what every quantized format becomes before a kernel sees it.

A row of `inner` weights is cut into groups of `group`, the last one perhaps shorter. The value of a weight is

    scale * (code - zero) [+ minimum]

in fp32, the product rounded, then the sum. Codes are unsigned, so that formats with and without a minimum, of 4 and of
8 bits, are one form; `zero` is one number for the whole tensor. In two levels scale and minimum are products of
a group's number with a small integer of the subgroup, exact in fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.quant.group_form import GroupForm, common_form

Codes = NDArray[np.uint8]
Float32 = NDArray[np.float32]


_ARRAYS = ("codes", "scales", "minima", "subscales", "subminima")


@dataclass(frozen=True)
class GroupedWeights:
    """A matrix [outputs, inner]. `bits`, 4 or 8, of two levels 4 to 6, is what a code takes in memory."""

    codes: Codes  # [outputs, inner]
    scales: Float32  # [outputs, groups]
    minima: Float32 | None  # [outputs, groups]
    bits: int
    zero: int
    group: int  # weights that share a scale; `inner`: one scale for a whole row
    subscales: NDArray[np.int8] | None = None  # [outputs, subgroups], of two levels
    subminima: NDArray[np.uint8] | None = None  # [outputs, subgroups]
    subgroup: int = 0  # weights that share a subscale

    def __post_init__(self) -> None:
        outputs, inner = self.codes.shape
        expected = (outputs, num_groups(inner, self.group))
        finer = (outputs, inner // self.subgroup if self.subgroup else 0)
        for name, shape in zip(_ARRAYS[1:], (expected, expected, finer, finer), strict=True):
            values = getattr(self, name)
            if values is not None and values.shape != shape:
                raise ValueError(f"{name} are {list(values.shape)}, codes {[outputs, inner]} need {list(shape)}")

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
        return GroupForm(self.bits, self.zero, self.group, self.minima is not None, self.half_scales, self.subgroup)

    def dequantize(self) -> Float32:
        """The values, fp32 [outputs, inner]."""
        if self.subgroup:
            return self.expanded().dequantize()
        values = self.codes.astype(np.float32)
        values -= np.float32(self.zero)
        values *= self._spread(self.scales)
        if self.minima is not None:
            values += self._spread(self.minima)
        return values

    def expanded(self) -> GroupedWeights:
        """The same values in one level: a scale, and perhaps a minimum, for each subgroup."""
        if self.subscales is None:
            return self
        form, per_group = self.form.expanded(), self.group // self.subgroup
        scales = np.repeat(self.scales, per_group, axis=1) * self.subscales
        minima = None
        if self.minima is not None and self.subminima is not None:
            minima = np.repeat(self.minima, per_group, axis=1) * self.subminima
        return GroupedWeights(self.codes, scales, minima, form.bits, form.zero, form.group)

    def rows(self, begin: int, end: int) -> GroupedWeights:
        """Outputs begin .. end - 1, as views."""
        return self.map_rows(lambda values: values[begin:end])

    def map_rows(self, change: Callable[[NDArray[Any]], NDArray[Any]]) -> GroupedWeights:
        """The matrix whose arrays [outputs, ...] are what `change` makes of this one's."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        return replace(self, **{name: change(values) for name, values in arrays.items() if values is not None})

    def _spread(self, per_group: Float32) -> Float32:
        """[outputs, groups] to [outputs, inner]."""
        inner = self.shape[1]
        return per_group if self.group >= inner else np.repeat(per_group, self.group, axis=1)[:, :inner]


def num_groups(inner: int, group: int) -> int:
    return -(-inner // group)


def stack(parts: Sequence[GroupedWeights]) -> GroupedWeights:
    """The rows of all parts, one below the other, every value kept.

    Parts of different formats, as in a GGUF file whose v is stored finer than its q and k, meet in a form that holds
    each: one level of scales, the finer groups, the larger codes around a common zero, minima of 0 where a part has
    none.
    """
    form = common_form([part.form for part in parts])
    if not form.subgroup:
        expanded = [part.expanded() for part in parts]
        parts = [part if part.form == form else _widened(part, form) for part in expanded]
    arrays = {name: [getattr(part, name) for part in parts] for name in _ARRAYS if getattr(parts[0], name) is not None}
    return replace(parts[0], **{name: np.concatenate(values) for name, values in arrays.items()})


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
