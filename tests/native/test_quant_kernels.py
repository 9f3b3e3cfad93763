"""8-bit activations times 8- and 4-bit weights: every ISA path against slow twins, over all groupings.

One file, long as it is: one and two levels of scales, plain and rotated inputs share their makers of operands."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from ridgeline._native import kernels, matmul_flops
from ridgeline.quant.groups import GroupedWeights, num_groups
from ridgeline.quant.rotation import mixing, rotate

ISAS = kernels.isas()
# bits, zero, group (None: whole rows), minima, fp16 scales: those of the formats, and some that none has yet. Those of
# two levels of scales also a subgroup
GROUPINGS = [
    (8, 128, None, False, False),
    (8, 128, 32, False, True),
    (8, 128, 64, False, False),
    (8, 0, 32, True, False),
    (8, 32, 16, False, False),
    (4, 8, 32, False, True),
    (4, 8, 128, False, True),
    (4, 8, None, False, False),
    (4, 0, 16, True, True),
    (4, 0, 32, True, False),
    (4, 0, 64, True, True),
]
TWO_LEVELS = [(4, 0, 256, True, True, 32), (5, 0, 256, True, True, 32), (6, 32, 256, False, False, 16)]
GROUPINGS += TWO_LEVELS
SHAPES = [(1, 1, 1), (1, 96, 48), (2, 33, 17), (7, 160, 70), (13, 257, 130), (35, 576, 16), (4, 1024, 33)]


@dataclass
class Input:
    """Quantized rows: codes [rows, inner], scales [rows, groups]."""

    codes: np.ndarray
    scales: np.ndarray

    def __getitem__(self, rows):
        return Input(self.codes[rows], self.scales[rows])

    def values(self, group):
        return self.codes * np.repeat(self.scales.astype(np.float64), group, axis=1)[:, : self.codes.shape[1]]


def wide(rng, *shape):
    """Normal values over a wide range of exponents."""
    return (rng.standard_normal(shape) * np.exp2(rng.integers(-8, 8, shape))).astype(np.float32)


def random_weights(rng, outputs, inner, grouping):
    """Of two levels rows are whole groups: then `inner` is rounded up."""
    bits, zero, group, has_minima, half, *subgroup = grouping
    group = group or inner
    inner = -(-inner // group) * group if subgroup else inner
    codes = rng.integers(0, 1 << bits, (outputs, inner)).astype(np.uint8)
    scales, minima = (wide(rng, outputs, num_groups(inner, group)) for _ in range(2))
    if half:
        scales, minima = (x.astype(np.float16).astype(np.float32) for x in (scales, minima))
    weights = GroupedWeights(codes, scales, minima if has_minima else None, bits, zero, group)
    return in_two_levels(rng, weights, *subgroup) if subgroup else weights


def in_two_levels(rng, weights, subgroup):
    """With random integers for each subgroup: of 6 bits beside minima, signed ones of 8 bits without."""
    shape = (weights.shape[0], weights.shape[1] // subgroup)
    lowest, highest = (0, 63) if weights.minima is not None else (-128, 127)
    subscales = rng.integers(lowest, highest + 1, shape).astype(np.int8)
    subminima = None if weights.minima is None else rng.integers(0, 64, shape).astype(np.uint8)
    return replace(weights, subscales=subscales, subminima=subminima, subgroup=subgroup)


def random_input(rng, rows, weights):
    codes = rng.integers(-127, 128, (rows, weights.shape[1])).astype(np.int8)
    return Input(codes, np.abs(wide(rng, rows, weights.scales.shape[1])))


def product(isa, x, weights, epilogue="store", out=None, bias=None, blocks_per_call=100):
    outputs = weights.shape[0] // (2 if epilogue == "silu_mul" else 1)
    out = np.zeros((len(x.codes), outputs), np.float32) if out is None else out
    w = weights
    kernels.matmul_quant(
        isa, epilogue, blocks_per_call, w.bits, w.zero, w.group, w.half_scales,
        x.codes, x.scales, w.codes, w.scales, w.minima, w.subscales, w.subminima, bias, out,
    )  # fmt: skip
    return out


def magnitudes(w):
    """What the terms of a weight's value add up to: sums of products err in proportion."""
    w = w.expanded()
    parts = GroupedWeights(w.codes, np.abs(w.scales), None, w.bits, w.zero, w.group)
    minima = 0 if w.minima is None else np.repeat(np.abs(w.minima), w.group, axis=1)[:, : w.shape[1]]
    return np.abs(parts.dequantize()) + minima


def reference(x, w):
    out = np.zeros((len(x.codes), w.shape[0]), np.float32)
    kernels.reference_matmul_quant(
        w.zero, w.group, x.codes, x.scales, w.codes, w.scales, w.minima, w.subscales, w.subminima, out
    )
    return out


@pytest.mark.parametrize("grouping", GROUPINGS, ids=str)
def test_product_has_the_bits_of_the_reference(grouping):
    for rows, inner, outputs in SHAPES:
        rng = np.random.default_rng(rows * inner)
        weights = random_weights(rng, outputs, inner, grouping)
        x = random_input(rng, rows, weights)
        expected = reference(x, weights)
        values = x.values(weights.group)
        bound = 1e-5 * (np.abs(values) @ magnitudes(weights).T)
        assert (np.abs(expected - values @ weights.dequantize().astype(np.float64).T) <= bound).all()
        for isa in ISAS:
            for blocks_per_call in (1, 3, 100):
                ours = product(isa, x, weights, blocks_per_call=blocks_per_call)
                np.testing.assert_array_equal(ours, expected, err_msg=f"{isa} {rows}x{inner}x{outputs}")


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("grouping", GROUPINGS, ids=str)
def test_a_row_has_the_same_bits_alone_and_in_any_batch(isa, grouping):
    rng = np.random.default_rng(1)
    weights = random_weights(rng, 80, 288, grouping)
    x = random_input(rng, 70, weights)
    together = product(isa, x, weights)
    for count in (1, 2, 3, 5, 8, 15, 16, 17, 31, 32, 33):
        np.testing.assert_array_equal(product(isa, x[:count], weights), together[:count], err_msg=f"{count} rows")


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("grouping", GROUPINGS, ids=str)
@pytest.mark.parametrize("rows", [5, 21, 34, 70])
def test_bias_and_epilogues(isa, grouping, rows):
    rng = np.random.default_rng(2)
    weights = random_weights(rng, 2 * 37, 96, grouping)
    weights = replace(weights, scales=weights.scales * np.float32(2**-8))
    if weights.subgroup:  # whose scales are multiplied by up to 128
        minima = None if weights.minima is None else weights.minima * np.float32(2**-7)
        weights = replace(weights, scales=weights.scales * np.float32(2**-7), minima=minima)
    x, bias, residual = random_input(rng, rows, weights), wide(rng, 74), wide(rng, rows, 74)
    x.scales = np.exp2(rng.integers(-10, -6, x.scales.shape)).astype(np.float32)
    plain = reference(x, weights)
    np.testing.assert_array_equal(product(isa, x, weights, "store", bias=bias), plain + bias)
    np.testing.assert_array_equal(product(isa, x, weights, "add", residual.copy()), residual + plain)
    np.testing.assert_array_equal(product(isa, x, weights, "add", residual.copy(), bias), residual + (plain + bias))

    gate, value = (half.astype(np.float64) for half in np.split(plain + bias, 2, axis=1))
    with np.errstate(over="ignore"):
        expected = gate / (1 + np.exp(-gate)) * value
    out = product(isa, x, weights, "silu_mul", bias=bias)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-30)
    np.testing.assert_array_equal(out, product("generic", x, weights, "silu_mul", bias=bias))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "grouping", [(4, 0, 16, True, True), (8, 32, 16, False, False), (8, 128, 2048, False, False), *TWO_LEVELS]
)
def test_more_rows_and_groups_than_are_worked_on_at_once(isa, grouping):
    rng = np.random.default_rng(5)
    weights = random_weights(rng, 20, 2048, grouping)
    x = random_input(rng, 290, weights)
    np.testing.assert_array_equal(product(isa, x, weights), reference(x, weights))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("bits", "zero"), [(8, 128), (4, 8)])
def test_very_long_rows_in_groups(isa, bits, zero):
    rng = np.random.default_rng(6)
    weights = random_weights(rng, 16, 16 * 1040, (bits, zero, 16, False, True))
    x = random_input(rng, 17, weights)
    np.testing.assert_array_equal(product(isa, x, weights), reference(x, weights))


@pytest.mark.parametrize("isa", ISAS)
def test_the_largest_sums_are_exact(isa):
    """Every product at its largest over the longest row: the sum needs all 31 bits."""
    inner = 65_536
    codes = np.stack([np.full(inner, 255, np.uint8), np.zeros(inner, np.uint8)])
    weights = GroupedWeights(codes, np.ones((2, 1), np.float32), None, 8, 128, inner)
    x = Input(np.stack([np.full(inner, sign * 127, np.int8) for sign in (1, -1)]), np.ones((2, 1), np.float32))
    expected = np.float32(127 * inner) * np.array([[127, -128], [-127, 128]], np.float32)
    np.testing.assert_array_equal(product(isa, x, weights), expected)


def quantized(isa, values, group, hadamard=1, factors=None):
    """codes, scales and sums, padded to whole groups and one more."""
    rows, width = values.shape
    groups = num_groups(width, group) + 1
    codes = np.full((rows, groups * group), 77, np.int8)
    scales, sums = np.full((rows, groups), 7, np.float32), np.full((rows, groups), 7, np.int32)
    kernels.quantize(isa, hadamard, factors, group, values.copy(), codes, scales, sums)
    return codes, scales, sums


def expected_quantized(values, group):
    """The same by numpy: every operation rounds once, so the bits must agree."""
    rows, width = values.shape
    groups = num_groups(width, group) + 1
    padded = np.zeros((rows, groups * group), np.float32)
    padded[:, :width] = values
    x = padded.reshape(rows, groups, group)
    with np.errstate(all="ignore"):
        largest = np.abs(x).max(-1, keepdims=True)
        scales = np.where(largest < 1e-30, np.float32(0), largest / np.float32(127))
        codes = np.where(largest < 1e-30, 0, np.rint(x * (np.float32(127) / largest)))
        broken = ~np.isfinite(x).all(-1, keepdims=True)
        codes = np.where(broken, 0, codes).astype(np.int8)
    scales = np.where(broken, np.float32(np.nan), scales)[..., 0]
    return codes.reshape(rows, -1), scales, codes.astype(np.int32).sum(-1)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("group", [16, 32, 64, 128, 640])
def test_quantization(isa, group):
    for width in (1, 16, 45, 130, 576):
        rng = np.random.default_rng(width)
        values = wide(rng, 6, width)
        values[0] = 0
        values[1] *= np.float32(2.0**-110)  # some groups become zeros
        values[2, width // 2] = np.nan
        values[3, 0] = -np.inf
        values[4] = np.round(values[4] * 8) * np.float32(0.5)  # halves: ties
        for ours, expected in zip(quantized(isa, values, group), expected_quantized(values, group), strict=True):
            np.testing.assert_array_equal(ours, expected, err_msg=f"width {width}")


@pytest.mark.parametrize("isa", ISAS)
def test_quantization_rounds_ties_to_even(isa):
    values = np.array([[127, 0.5, 1.5, 2.5, -0.5, -1.5, 126.5, -127]], np.float32)
    codes, scales, _ = quantized(isa, values, 16)
    assert codes[0, :8].tolist() == [127, 0, 2, 2, 0, -2, 126, -127]
    assert scales[0, 0] == 1


def transformed(values, block):
    """The Hadamard transform of each block, by the butterflies in fp32: neighbours first."""
    x = values.reshape(-1, block).copy()
    half = 1
    while half < block:
        pairs = x.reshape(len(x), -1, 2, half)
        x = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2).reshape(len(x), block)
        half *= 2
    return (x * (np.float32(1) / np.sqrt(np.float32(block)))).reshape(values.shape)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("width", "block"), [(64, 1), (6, 2), (24, 8), (96, 32), (576, 64), (1536, 512), (2048, 2048)])
def test_hadamard_before_quantization(isa, width, block):
    values = np.random.default_rng(width).standard_normal((3, width)).astype(np.float32)
    expected = transformed(values, block)
    matrix = np.array([[1.0]])
    while len(matrix) < block:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    exact = values.reshape(-1, block).astype(np.float64) @ matrix / np.sqrt(block)
    np.testing.assert_allclose(expected.reshape(-1, block), exact, atol=1e-5)
    for group in (16, -(-width // 16) * 16):
        for ours, twin in zip(quantized(isa, values, group, block), expected_quantized(expected, group), strict=True):
            np.testing.assert_array_equal(ours, twin)


def mixed(values, factors):
    """Across the blocks, each multiply-add rounded once: a product of two fp32 numbers is exact in fp64."""
    blocks = values.reshape(len(values), len(factors), -1)
    out = np.zeros_like(blocks)
    for i, of_block in enumerate(factors):
        for j, factor in enumerate(of_block):
            out[:, i] = (np.float64(factor) * blocks[:, j] + np.float64(out[:, i])).astype(np.float32)
    return out.reshape(values.shape)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("width", "block"), [(6, 2), (24, 8), (48, 16), (576, 64), (240, 16), (1536, 512)])
def test_blocks_are_mixed_before_quantization(isa, width, block):
    values = np.random.default_rng(width).standard_normal((3, width)).astype(np.float32)
    factors = mixing(width).astype(np.float32)
    expected = mixed(transformed(values, block), factors)
    np.testing.assert_allclose(expected, rotate(values), atol=1e-5)
    for group in (16, -(-width // 16) * 16):
        found = quantized(isa, values, group, block, factors)
        for ours, twin in zip(found, expected_quantized(expected, group), strict=True):
            np.testing.assert_array_equal(ours, twin)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("grouping", [(8, 128, 32, False, False), *TWO_LEVELS], ids=str)
def test_a_group_that_is_not_finite_reaches_its_row_alone(isa, grouping):
    rng = np.random.default_rng(3)
    for rows in (4, 20):  # few by Vec, more by tiles
        weights = random_weights(rng, 20, 96, grouping)
        inner, groups = weights.shape[1], weights.scales.shape[1]
        values = wide(rng, rows, inner)
        values[1, 40], values[2, 95] = np.nan, np.inf
        codes, scales, _ = quantized(isa, values, weights.group)
        x = Input(np.ascontiguousarray(codes[:, :inner]), np.ascontiguousarray(scales[:, :groups]))
        out = product(isa, x, weights)
        assert np.isnan(out[[1, 2]]).all()
        assert np.isfinite(np.delete(out, [1, 2], axis=0)).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("grouping", TWO_LEVELS, ids=str)
@pytest.mark.parametrize("rows", [3, 17])
def test_the_largest_sums_of_two_levels_are_exact(isa, grouping, rows):
    """Codes, subscales and inputs at either end: sums of a super-block need up to 29 bits."""
    rng = np.random.default_rng(8)
    weights = random_weights(rng, 32, 512, grouping)
    ends = -128 if weights.minima is None else 63
    subscales = np.where(np.arange(32) < 16, ends, 127 if ends < 0 else 0)[:, None]
    codes = np.where(np.arange(32) % 2, (1 << weights.bits) - 1, 0)[:, None]
    weights = replace(
        weights,
        codes=np.broadcast_to(codes, weights.codes.shape).astype(np.uint8),
        subscales=np.broadcast_to(subscales, weights.subscales.shape).astype(np.int8),
        subminima=None if weights.subminima is None else np.full_like(weights.subminima, 63),
    )
    x = Input(np.full((rows, 512), 127, np.int8), np.ones((rows, 2), np.float32))
    x.codes[1] = -127
    np.testing.assert_array_equal(product(isa, x, weights), reference(x, weights))


@pytest.mark.parametrize("isa", ISAS)
def test_sums_of_parts_of_an_input(isa):
    """Sums of 16 codes in order, of 32 in the order of packed words."""
    values = wide(np.random.default_rng(9), 3, 700)
    codes, scales = np.zeros((3, 768), np.int8), np.zeros((3, 3), np.float32)
    sums, parts = np.zeros((3, 3), np.int32), np.zeros((3, 3 * 24), np.int32)
    kernels.quantize(isa, 1, None, 256, values, codes, scales, sums, parts)
    of_16 = codes.reshape(9, 16, 16).astype(np.int32).sum(-1)
    np.testing.assert_array_equal(parts.reshape(9, 24)[:, :16], of_16)
    of_32 = of_16.reshape(9, 8, 2).sum(-1)
    np.testing.assert_array_equal(parts.reshape(9, 24)[:, 16:], of_32[:, [0, 2, 1, 3, 4, 6, 5, 7]])


@pytest.mark.parametrize("grouping", GROUPINGS, ids=str)
def test_packed_weights_keep_every_value(grouping):
    rng = np.random.default_rng(4)
    for outputs, inner in ((1, 1), (33, 70), (16, 256)):
        w = random_weights(rng, outputs, inner, grouping)
        out = np.zeros(w.shape, np.float32)
        size = packed_and_unpacked(w, out)
        np.testing.assert_array_equal(out, w.dequantize())
    codes, scale_bytes = 16 * 256 * w.bits // 8, 16 * w.scales.shape[1] * (2 if w.half_scales else 4)
    integers = 16 * (0 if w.subscales is None else 16 if w.subminima is None else 12)
    assert size == codes + integers + scale_bytes * (1 if w.minima is None else 2)  # 16 x 256 needs no padding


def packed_and_unpacked(w, out):
    return kernels.pack_and_unpack(
        w.bits, w.zero, w.group, w.half_scales, w.codes, w.scales, w.minima, w.subscales, w.subminima, out
    )


def test_fp16_scales_cover_denormals_the_ends_and_nan():
    scales = np.array([[2**-24, 3 * 2**-24, 2**-14, -(2**-15), 65504, 0, -0.0, np.nan]], np.float32)
    codes, out = np.full((1, 8 * 16), 129, np.uint8), np.zeros((1, 8 * 16), np.float32)
    packed_and_unpacked(GroupedWeights(codes, scales, None, 8, 128, 16), out)
    np.testing.assert_array_equal(out.reshape(8, 16)[:, 0], scales[0])


@pytest.mark.parametrize(
    ("bits", "zero", "group", "code", "scale", "message"),
    [
        (5, 0, 32, 0, 1, "5 bits"),
        (4, 16, 32, 0, 1, "zero 16"),
        (8, 128, 24, 0, 1, "groups of 24"),
        (4, 8, 32, 16, 1, "code 16 needs more than 4 bits"),
        (8, 128, 32, 0, 0.1, "fp16 does not hold the scale 0.1"),
        (8, 128, 32, 0, 1e6, "fp16 does not hold the scale 1000000"),
    ],
)
def test_weights_that_do_not_fit_their_form_are_refused(bits, zero, group, code, scale, message):
    codes, scales = np.full((1, 64), code, np.uint8), np.full((1, num_groups(64, group)), scale, np.float32)
    with pytest.raises(ValueError, match=message):
        kernels.pack_and_unpack(bits, zero, group, True, codes, scales, None, None, None, np.zeros((1, 64), np.float32))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bits": 7}, "of 4 or 5 bits with minima or of 6 bits around 32"),
        ({"bits": 6}, "of 4 or 5 bits with minima"),
        ({"codes": np.full((1, 256), 16, np.uint8)}, "code 16 needs more than 4 bits"),
        ({"subscales": np.full((1, 8), -1, np.int8)}, r"subscale -1 and subminimum \d+: 6 bits hold 0..63"),
        ({"subminima": np.full((1, 8), 64, np.uint8)}, "subminimum 64: 6 bits hold 0..63"),
    ],
    ids=str,
)
def test_weights_that_do_not_fit_two_levels_are_refused(change, message):
    weights = replace(random_weights(np.random.default_rng(7), 1, 256, TWO_LEVELS[0]), **change)
    with pytest.raises(ValueError, match=message):
        packed_and_unpacked(weights, np.zeros((1, 256), np.float32))


def test_rows_too_long_for_32_bit_sums_are_refused():
    codes = np.zeros((1, 65_552), np.uint8)
    with pytest.raises(ValueError, match="65552: sums fit 32 bits up to 65536"):
        kernels.pack_and_unpack(
            8, 128, 65_552, False, codes, np.ones((1, 1), np.float32), None, None, None, codes.astype(np.float32)
        )


@pytest.mark.parametrize("name", ["int8", "int8-g64", "int4-g32", "int4-g128-zp", "q4_k", "q6_k"])
def test_throughput_is_measured_by_the_name_of_a_format(name):
    assert matmul_flops(name, rows=3, inner=256, outputs=40, threads=2, seconds=0) > 0


@pytest.mark.parametrize("name", ["int", "int4", "int8-g", "int8-g64-", "int4-g32-zpx", "q4_0", ""])
def test_throughput_of_an_unknown_format_is_refused(name):
    with pytest.raises(ValueError, match=f"format '{name}'"):
        matmul_flops(name, rows=1, inner=64, outputs=16, threads=1, seconds=0)
