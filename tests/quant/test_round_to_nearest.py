"""Round-to-nearest: every code is the nearest one, scales are fp16, and 4-bit scales are better than the plain ones."""

import numpy as np
import pytest

from ridgeline.quant.group_form import GroupForm
from ridgeline.quant.groups import GroupedWeights
from ridgeline.quant.round_to_nearest import round_to_nearest

FORMS = [(8, False), (4, False), (4, True)]


def quantize(values, bits, group, with_minimum=False, half_scales=True, **options) -> GroupedWeights:
    zero = 0 if with_minimum else 2 ** (bits - 1)
    return round_to_nearest(values, GroupForm(bits, zero, group, with_minimum, half_scales), **options)


def normal(outputs: int, inner: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((outputs, inner), np.float32) * np.float32(0.02)


def squared_error(weights: GroupedWeights, values: np.ndarray) -> float:
    return float(
        np.square(weights.dequantize() - values, dtype=np.float64).sum() / np.square(values, dtype=np.float64).sum()
    )


@pytest.mark.parametrize(("bits", "with_minimum"), FORMS)
@pytest.mark.parametrize("group", [32, 64, 128, 200])
def test_each_code_is_the_nearest_and_scales_are_fp16(bits, with_minimum, group):
    values = normal(5, 200)
    weights = quantize(values, bits, group, with_minimum)
    assert (weights.bits, weights.group, weights.half_scales) == (bits, group, True)
    assert weights.zero == (0 if with_minimum else 2 ** (bits - 1))
    assert (weights.minima is not None) == with_minimum
    assert weights.codes.max() < 2**bits
    error = np.abs(weights.dequantize() - values)
    for code in range(2**bits):
        other = GroupedWeights(np.full_like(weights.codes, code), *_rest(weights))
        assert (np.abs(other.dequantize() - values) >= error - 1e-7).all()


def _rest(weights: GroupedWeights) -> tuple:
    return weights.scales, weights.minima, weights.bits, weights.zero, weights.group


def test_8_bits_span_the_largest_magnitude():
    values = normal(16, 96)
    weights = quantize(values, 8, 32)
    np.testing.assert_allclose(weights.scales, np.abs(values).reshape(16, 3, 32).max(-1) / 127, rtol=1e-3)
    assert squared_error(weights, values) < 5e-5


@pytest.mark.parametrize(("group", "symmetric_limit", "minimum_limit"), [(32, 0.0068, 0.0055), (128, 0.0096, 0.0089)])
def test_4_bit_scales_are_those_of_least_error(group, symmetric_limit, minimum_limit):
    """On normal weights the plain scales, largest magnitude / -8 and distance / 15, give 0.74 % and 0.61 % in groups of
    32, and 1.07 % and 1.00 % in groups of 128."""
    values = normal(256, 1024)
    assert squared_error(quantize(values, 4, group), values) < symmetric_limit
    assert squared_error(quantize(values, 4, group, True), values) < minimum_limit


@pytest.mark.parametrize(("group", "shrunk"), [(32, 0.0004), (128, 0.003)])
def test_4_bit_weights_are_hardly_shrunk(group, shrunk):
    """Scales of least squares take 0.7 % of x.x in groups of 32 and 0.9 % in groups of 128; with a minimum, of what
    deviates from the mean."""
    values = normal(256, 1024)
    groups = values.reshape(-1, group).astype(np.float64)
    for deviations, with_minimum in ((groups, False), (groups - groups.mean(axis=1, keepdims=True), True)):
        found = quantize(values, 4, group, with_minimum).dequantize().reshape(-1, group)
        assert (deviations * found).sum() / (deviations**2).sum() == pytest.approx(1, abs=shrunk)


@pytest.mark.parametrize(("bits", "with_minimum"), FORMS)
def test_weights_on_a_grid_are_kept(bits, with_minimum):
    rng = np.random.default_rng(1)
    lowest = 1 if bits == 8 else 0  # -128 does not occur
    codes = rng.integers(lowest, 2**bits, (8, 64), dtype=np.uint8)
    codes[:, ::32], codes[:, 1::32] = 2**bits - 1, lowest
    scales = (rng.uniform(1e-3, 1e-2, (8, 2))).astype(np.float16).astype(np.float32)
    minima = -8 * scales if with_minimum else None
    grid = GroupedWeights(codes, scales, minima, bits, 0 if with_minimum else 2 ** (bits - 1), 32)
    found = quantize(grid.dequantize(), bits, 32, with_minimum)
    np.testing.assert_allclose(found.dequantize(), grid.dequantize(), rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize(("bits", "with_minimum"), FORMS)
def test_threads_and_chunks_do_not_change_the_result(bits, with_minimum):
    values = normal(3000, 100)
    whole = quantize(values, bits, 32, with_minimum, threads=2)
    part = quantize(values[1001:1004], bits, 32, with_minimum)
    np.testing.assert_array_equal(whole.rows(1001, 1004).codes, part.codes)
    np.testing.assert_array_equal(whole.rows(1001, 1004).dequantize(), part.dequantize())


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_refused(broken):
    values = normal(4, 96)
    values[2, 40] = broken
    with pytest.raises(ValueError, match="NaN or infinite"):
        quantize(values, 8, 96, half_scales=False)


@pytest.mark.parametrize(("bits", "with_minimum"), FORMS)
@pytest.mark.parametrize("factor", [1e-30, 1e-6, 1e9, 1e30])
def test_scales_outside_fp16_are_refused_unless_they_are_kept_in_fp32(bits, with_minimum, factor):
    values = normal(4, 96) * np.float32(factor)
    with pytest.raises(ValueError, match="outside the range of fp16"):
        quantize(values, bits, 32, with_minimum)
    assert squared_error(quantize(values, bits, 32, with_minimum, half_scales=False), values) < 0.01


@pytest.mark.parametrize(("bits", "with_minimum"), FORMS)
def test_groups_of_one_value_and_of_zeros_are_exact(bits, with_minimum):
    values = np.zeros((3, 64), np.float32)
    values[1] = 0.25
    found = quantize(values, bits, 32, with_minimum).dequantize()
    np.testing.assert_allclose(found, values, rtol=1e-3)
    assert (found[0] == 0).all()
