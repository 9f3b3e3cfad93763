"""Grouped weights: what a code stands for, and that matrices of different formats can lie in one."""

from dataclasses import replace

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


def random_two_levels(outputs: int, *, bits: int, inner: int = 512) -> GroupedWeights:
    rng = np.random.default_rng([outputs, bits])
    group = random_groups(outputs, inner, bits=bits, zero=32 if bits == 6 else 0, group=256, top=(1 << bits) - 1)
    scales = group.scales.astype(np.float16).astype(np.float32)
    if bits == 6:
        subscales = rng.integers(-128, 128, (outputs, inner // 16)).astype(np.int8)
        return replace(group, scales=scales, subscales=subscales, subgroup=16)
    subscales, subminima = rng.integers(0, 64, (2, outputs, inner // 32)).astype(np.uint8)
    minima = np.flip(scales)
    return replace(
        group, scales=scales, minima=minima, subscales=subscales.view(np.int8), subminima=subminima, subgroup=32
    )


@pytest.mark.parametrize("bits", [4, 5, 6])
def test_two_levels_multiply_scale_and_minimum_by_an_integer_of_the_subgroup(bits):
    weights = random_two_levels(3, bits=bits)
    values = weights.dequantize()
    for row, k in np.ndindex(3, 512):
        group, subgroup = k // 256, k // weights.subgroup
        scale = weights.scales[row, group] * np.float32(weights.subscales[row, subgroup])
        expected = scale * np.float32(int(weights.codes[row, k]) - weights.zero)
        if weights.minima is not None:
            expected += weights.minima[row, group] * np.float32(weights.subminima[row, subgroup])
        assert values[row, k] == expected


@pytest.mark.parametrize(("bits", "bits_a_weight"), [(4, 4.5), (5, 5.5), (6, 6.5625)])
def test_two_levels_take_the_bits_of_the_file(bits, bits_a_weight):
    assert random_two_levels(2, bits=bits).form.row_bytes(512) == bits_a_weight * 512 / 8


def test_two_levels_stay_when_all_parts_have_them():
    parts = [random_two_levels(outputs, bits=4) for outputs in (2, 3)]
    stacked = stack(parts)
    assert stacked.form == parts[0].form
    np.testing.assert_array_equal(stacked.dequantize(), np.concatenate([part.dequantize() for part in parts]))


def test_two_levels_beside_another_form_are_expanded():
    parts = [random_two_levels(2, bits=4), random_two_levels(2, bits=6), random_groups(2, 512, zero=32, top=63)]
    stacked = stack(parts)
    assert (stacked.form.bits, stacked.group, stacked.subgroup, stacked.half_scales) == (8, 16, 0, False)
    np.testing.assert_array_equal(stacked.dequantize(), np.concatenate([part.dequantize() for part in parts]))


def test_parts_without_a_common_form_are_refused():
    with pytest.raises(ValueError, match="255 around 0 do not fit"):
        stack([random_groups(8, 64, top=255), random_groups(8, 64, zero=128, top=255)])
