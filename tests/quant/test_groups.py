"""Grouped weights: what a code stands for, and that matrices of different formats can lie in one."""

import numpy as np
import pytest

from ridgeline.quant.groups import GroupedWeights, num_groups, stack


def random_groups(
    outputs: int, inner: int, *, bits: int = 8, zero: int = 0, group: int = 32, minima: bool = False, top: int = 15
) -> GroupedWeights:
    rng = np.random.default_rng([outputs, inner, zero, group])
    shape = (outputs, num_groups(inner, group))
    return GroupedWeights(
        rng.integers(0, top + 1, (outputs, inner), dtype=np.uint8),
        rng.standard_normal(shape, np.float32),
        rng.standard_normal(shape, np.float32) if minima else None,
        bits,
        zero,
        group,
    )


@pytest.mark.parametrize("group", [16, 32, 70])
@pytest.mark.parametrize("minima", [False, True])
def test_a_value_is_scale_times_code_less_zero_plus_minimum(group, minima):
    weights = random_groups(3, 70, zero=8, group=group, minima=minima)
    values = weights.dequantize()
    assert values.dtype == np.float32
    for row in range(3):
        for k in range(70):
            expected = weights.scales[row, k // group] * np.float32(int(weights.codes[row, k]) - 8)
            if weights.minima is not None:
                expected = np.float32(expected + weights.minima[row, k // group])
            assert values[row, k] == expected


def test_rows_are_the_same_weights():
    weights = random_groups(5, 64, minima=True)
    np.testing.assert_array_equal(weights.rows(1, 4).dequantize(), weights.dequantize()[1:4])


def test_scales_must_be_one_per_group():
    with pytest.raises(ValueError, match=r"\[2, 2\].*\[2, 3\]"):
        GroupedWeights(np.zeros((2, 70), np.uint8), np.ones((2, 2), np.float32), None, 8, 0, 32)


def test_half_scales_only_when_every_number_is_exact_in_fp16():
    weights = random_groups(4, 64, minima=True)
    assert not weights.half_scales
    half = {name: getattr(weights, name).astype(np.float16).astype(np.float32) for name in ("scales", "minima")}
    assert GroupedWeights(weights.codes, half["scales"], half["minima"], 8, 0, 32).half_scales
    assert not GroupedWeights(weights.codes, half["scales"], weights.minima, 8, 0, 32).half_scales
    assert not GroupedWeights(weights.codes, half["scales"] * np.float32(1e6), None, 8, 0, 32).half_scales


@pytest.mark.parametrize(
    "forms",
    [
        [{"bits": 4, "zero": 8}, {"bits": 4, "zero": 8}],
        [{"bits": 4, "zero": 8}, {"zero": 32, "group": 16, "top": 63}],
        [{"bits": 4, "minima": True}, {"zero": 32, "group": 16, "top": 63}],
        [{"bits": 4, "minima": True}, {"zero": 128, "top": 255}, {"minima": True, "top": 31}],
        [{"zero": 128, "group": 80, "top": 255}, {"zero": 8, "group": 32}],
    ],
)
def test_stacked_parts_keep_every_value(forms):
    parts = [random_groups(3 + i, 80, **form) for i, form in enumerate(forms)]
    stacked = stack(parts)
    np.testing.assert_array_equal(stacked.dequantize(), np.concatenate([part.dequantize() for part in parts]))
    assert stacked.bits == (4 if forms[0] == forms[1] else 8)


def test_parts_without_a_common_form_are_refused():
    with pytest.raises(ValueError, match="255 around 0 do not fit"):
        stack([random_groups(8, 64, top=255), random_groups(8, 64, zero=128, top=255)])
