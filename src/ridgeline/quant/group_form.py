"""How a quantized matrix is cut and laid out in memory: all that must be known before any weight is read.

Of two levels, a group is a super-block of 256 weights that share a scale and perhaps a minimum; small integers, one for
each of its subgroups, multiply them. 4 and 5 bits have 8 subgroups of 32, with 6 bits each for the scale and the
minimum; 6 bits have 16 of 16, with 8 bits for the scale.

Apart from `groups`, so that a plan can count bytes without waiting for numpy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

LANES = 16  # outputs in a block of packed weights
TILE = 64  # inputs that a tile of codes spans
SUPER_BLOCK = 256


@dataclass(frozen=True)
class GroupForm:
    """All of a `GroupedWeights` but the numbers."""

    bits: int
    zero: int
    group: int
    has_minima: bool
    half_scales: bool
    subgroup: int = 0  # weights of a group that share an integer; 0: there is one level of scales

    def row_bytes(self, inner: int) -> int:
        """Of one packed row: codes padded to whole tiles and groups, a scale and perhaps a minimum per group."""
        whole = self.group >= inner
        tile = TILE if whole else math.lcm(self.group, TILE)
        padded = -(-inner // tile) * tile
        groups = 1 if whole else padded // self.group
        integers = groups * (12 if self.has_minima else 16) if self.subgroup else 0
        scales = groups * (2 if self.half_scales else 4) * (2 if self.has_minima else 1)
        return padded * self.bits // 8 + integers + scales

    def packed_bytes(self, outputs: int, inner: int) -> int:
        """Of a packed matrix, in whole blocks of outputs."""
        return -(-outputs // LANES) * LANES * self.row_bytes(inner)

    def expanded(self) -> GroupForm:
        """In one level: a scale for each subgroup, the product of two numbers, which fp16 does not hold."""
        if not self.subgroup:
            return self
        bits = 4 if self.bits == 4 else 8
        return GroupForm(bits, self.zero, self.subgroup, self.has_minima, half_scales=False)


def common_form(forms: Sequence[GroupForm]) -> GroupForm:
    """In which matrices of these forms can lie one below the other, every value kept.

    They differ in a GGUF file whose v is stored finer than its q and k. Then it is one level of scales, the finer
    groups, the larger codes around a common zero, minima of 0 where a matrix has none.
    """
    half_scales = all(form.half_scales for form in forms)
    if len({replace(form, half_scales=half_scales) for form in forms}) == 1:
        return replace(forms[0], half_scales=half_scales)
    forms = [form.expanded() for form in forms]
    half_scales = all(form.half_scales for form in forms)
    return GroupForm(
        bits=8,
        zero=max(form.zero for form in forms),
        group=math.gcd(*(form.group for form in forms)),
        has_minima=any(form.has_minima for form in forms),
        half_scales=half_scales,
    )
