"""How a quantized matrix is cut and laid out in memory: all that must be known before any weight is read.

Apart from `groups`, so that a plan can count bytes without waiting for numpy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

LANES = 16  # outputs in a block of packed weights
TILE = 64  # inputs that a tile of codes spans


@dataclass(frozen=True)
class GroupForm:
    """All of a `GroupedWeights` but the numbers."""

    bits: int
    zero: int
    group: int
    has_minima: bool
    half_scales: bool

    def row_bytes(self, inner: int) -> int:
        """Of one packed row: codes padded to whole tiles and groups, a scale and perhaps a minimum per group."""
        whole = self.group >= inner
        tile = TILE if whole else math.lcm(self.group, TILE)
        padded = -(-inner // tile) * tile
        groups = 1 if whole else padded // self.group
        return padded * self.bits // 8 + groups * (2 if self.half_scales else 4) * (2 if self.has_minima else 1)

    def packed_bytes(self, outputs: int, inner: int) -> int:
        """Of a packed matrix, in whole blocks of outputs."""
        return -(-outputs // LANES) * LANES * self.row_bytes(inner)


def common_form(forms: Sequence[GroupForm]) -> GroupForm:
    """In which matrices of these forms can lie one below the other, every value kept.

    They differ in a GGUF file whose v is stored finer than its q and k. Then it is the finer groups, the larger codes
    around a common zero, minima of 0 where a matrix has none.
    """
    half_scales = all(form.half_scales for form in forms)
    if len({replace(form, half_scales=half_scales) for form in forms}) == 1:
        return replace(forms[0], half_scales=half_scales)
    return GroupForm(
        bits=8,
        zero=max(form.zero for form in forms),
        group=math.gcd(*(form.group for form in forms)),
        has_minima=any(form.has_minima for form in forms),
        half_scales=half_scales,
    )
