"""Every kernel on every ISA path that this CPU has, against a slow twin, on realistic data with odd sizes."""

import numpy as np
import pytest

from ridgeline._native import kernels
from ridgeline.cost.memory import PAGE_SIZE
from ridgeline.quant.bf16 import from_bf16, to_bf16

ISAS = kernels.isas()
FORMATS = ["fp32", "bf16"]
KV_FORMATS = [*FORMATS, "int8"]


def realistic(rng, *shape):
    """Normal values over a wide range of exponents, as activations and weights have."""
    return (rng.standard_normal(shape) * np.exp2(rng.integers(-12, 4, shape))).astype(np.float32)


def rounded(values):
    return from_bf16(to_bf16(values))


def operands(rng, dtype, rows, inner, outputs):
    pair = realistic(rng, rows, inner), realistic(rng, outputs, inner)
    return tuple(rounded(x) for x in pair) if dtype == "bf16" else pair


def product(isa, dtype, a, b, epilogue="store", out=None):
    out = np.zeros((len(a), len(b)), np.float32) if out is None else out
    kernels.matmul(isa, dtype, epilogue, a, b, out)
    return out


def reference_product(dtype, a, b):
    out = np.zeros((len(a), len(b)), np.float32)
    kernels.reference_matmul(dtype, a, b, out)
    return out


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("rows", "inner", "outputs"),
    [(1, 1, 1), (1, 64, 48), (2, 33, 17), (7, 96, 70), (13, 257, 130), (25, 576, 16), (70, 576, 45)],
)
def test_product_has_the_bits_of_the_reference(isa, dtype, rows, inner, outputs):
    a, b = operands(np.random.default_rng(rows * inner), dtype, rows, inner, outputs)
    reference = reference_product(dtype, a, b)
    np.testing.assert_array_equal(product(isa, dtype, a, b), reference)
    exact = a.astype(np.float64) @ b.T.astype(np.float64)
    bound = 1e-6 * np.sqrt(inner) * (np.abs(a) @ np.abs(b).T)
    assert (np.abs(reference - exact) <= bound + 1e-30).all()


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("isa", ISAS)
def test_a_row_has_the_same_bits_alone_and_in_any_batch(isa, dtype):
    a, b = operands(np.random.default_rng(1), dtype, 19, 288, 80)
    together = product(isa, dtype, a, b)
    for row in range(len(a)):
        np.testing.assert_array_equal(product(isa, dtype, a[row : row + 1], b), together[row : row + 1])


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("rows", [5, 70])
def test_epilogues(isa, dtype, rows):
    rng = np.random.default_rng(2)
    a, b = operands(rng, dtype, rows, 64, 2 * 37)
    residual = realistic(rng, rows, 74)
    np.testing.assert_array_equal(
        product(isa, dtype, a, b, "add", residual.copy()), residual + reference_product(dtype, a, b)
    )

    gate, value = (reference_product(dtype, a, half).astype(np.float64) for half in (b[:37], b[37:]))
    out = product(isa, dtype, a, b, "silu_mul", np.zeros((rows, 37), np.float32))
    with np.errstate(over="ignore"):
        expected = gate / (1 + np.exp(-gate)) * value
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-30)
    np.testing.assert_array_equal(out, product("generic", dtype, a, b, "silu_mul", np.zeros((rows, 37), np.float32)))


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("isa", ISAS)
def test_nan_and_infinity_stay_in_their_row(isa, dtype):
    a, b = operands(np.random.default_rng(3), dtype, 4, 40, 20)
    clean = product(isa, dtype, a, b)
    a[1, 5], a[2, 7] = np.nan, np.inf
    dirty = product(isa, dtype, a, b)
    assert np.isnan(dirty[1]).all()
    assert (~np.isfinite(dirty[2])).all()
    np.testing.assert_array_equal(dirty[[0, 3]], clean[[0, 3]])


@pytest.mark.parametrize("isa", ISAS)
def test_denormals_count_as_zero(isa):
    tiny, one = np.full((1, 32), 1e-39, np.float32), np.ones((1, 32), np.float32)
    assert product(isa, "fp32", tiny, one) == 0


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("width", [1, 16, 45, 576])
def test_norm(isa, width):
    rng = np.random.default_rng(width)
    x, weight = realistic(rng, 3, width), realistic(rng, width)
    out, rounded_out = np.zeros_like(x), np.zeros_like(x)
    kernels.norm(isa, "fp32", 1e-5, x, weight, out)
    kernels.norm(isa, "bf16", 1e-5, x, weight, rounded_out)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(out, expected, rtol=2e-6)
    np.testing.assert_array_equal(rounded_out, rounded(out))
    generic = np.zeros_like(x)
    kernels.norm("generic", "fp32", 1e-5, x, weight, generic)
    np.testing.assert_array_equal(out, generic)


@pytest.mark.parametrize("isa", ISAS)
def test_log_sum_exp(isa):
    values = np.random.default_rng(4).normal(0, 8, 1003).astype(np.float32)
    expected = np.log(np.exp(values.astype(np.float64)).sum())
    assert kernels.log_sum_exp(isa, values) == pytest.approx(expected, rel=1e-6)
    assert kernels.log_sum_exp(isa, values) == kernels.log_sum_exp("generic", values)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("count", [1, 128, 300])
def test_block_maxima_count_a_nan_as_infinity(isa, count):
    values = realistic(np.random.default_rng(count), count)
    blocks = [values[first : first + 128] for first in range(0, count, 128)]
    assert kernels.block_maxima(isa, values) == [block.max() for block in blocks]
    blocks[-1][-1] = np.nan
    assert kernels.block_maxima(isa, values)[-1] == np.inf
    blocks[-1][:] = -np.inf
    assert kernels.block_maxima(isa, values)[-1] == -np.inf


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("scale", [1e-3, 1.4426950408889634, 50.0, 1e300])
def test_weights_are_exponentials_in_fp64(isa, scale):
    values = -np.abs(realistic(np.random.default_rng(2), 160))
    values[:4] = 0.0, -np.inf, -1e30, -1e-38
    weights, total = kernels.weigh(isa, values, 0.0, scale)
    with np.errstate(over="ignore"):
        exponents = np.maximum(values.astype(np.float64) * scale, -1e6)
    np.testing.assert_allclose(weights, np.where(exponents < -1022, 0.0, np.exp2(exponents)), rtol=1e-15)
    assert total == pytest.approx(sum(weights), rel=1e-14)
    assert (weights, total) == kernels.weigh("generic", values, 0.0, scale)


def as_codes(heads):
    """Each head's values rounded to 127 steps on either side, times the step."""
    steps = np.abs(heads).max(axis=-1, keepdims=True) / 127
    return np.rint(heads / steps) * steps


class AttentionCase:
    """One sequence of `length` rows whose queries, keys and values are random, in shuffled pages."""

    def __init__(self, dtype, heads, kv_heads, head_dim, length, window=0, seed=0):
        self.dtype, self.heads, self.kv_heads, self.head_dim, self.window = dtype, heads, kv_heads, head_dim, window
        rng = np.random.default_rng(seed)
        self.qkv = rng.standard_normal((length, (heads + 2 * kv_heads) * head_dim)).astype(np.float32)
        self.frequencies = (10_000.0 ** -np.linspace(0, 0.9, head_dim // 2)).astype(np.float32)
        num_pages = -(-length // PAGE_SIZE)
        self.block_table = (rng.permutation(num_pages) + 1).astype(np.int32)
        self.num_pages = num_pages + 1

    def run(self, isa, chunk=None, stale=0.0, split=False):
        """Output of all rows, `chunk` rows a call; pages hold `stale` before; `split`: a task per 512 keys."""
        page_floats = (self.head_dim + -(-self.head_dim // 16) * 16) * PAGE_SIZE
        pages = np.full((self.num_pages, self.kv_heads, page_floats), stale, np.float32)
        out = np.zeros((len(self.qkv), self.heads * self.head_dim), np.float32)
        step = chunk or len(self.qkv)
        for first in range(0, len(self.qkv), step):
            rows = self.qkv[first : first + step]
            part = np.zeros((len(rows), out.shape[1]), np.float32)
            kernels.attention(
                isa, self.dtype, self.heads, self.kv_heads, self.window, split, first, rows, self.frequencies,
                self.block_table, pages, part,
            )  # fmt: skip
            out[first : first + step] = part
        return out

    def expected(self):
        """Plain softmax attention in fp64, over keys and values as int8 pages hold them."""
        length, group = len(self.qkv), self.heads // self.kv_heads
        x = self.qkv.astype(np.float64).reshape(length, -1, self.head_dim)
        half = self.head_dim // 2
        angles = np.arange(length)[:, None] * self.frequencies
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        a, b = x[..., :half], x[..., half:]
        turned = np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
        q, k, v = turned[:, : self.heads], turned[:, self.heads : -self.kv_heads], x[:, -self.kv_heads :]
        if self.dtype == "int8":
            k, v = as_codes(k), as_codes(v)
        out = np.zeros((length, self.heads, self.head_dim))
        for row in range(length):
            first = max(0, row + 1 - self.window) if self.window else 0
            for head in range(self.heads):
                scores = k[first : row + 1, head // group] @ q[row, head] / np.sqrt(self.head_dim)
                weights = np.exp(scores - scores.max())
                out[row, head] = weights / weights.sum() @ v[first : row + 1, head // group]
        return out.reshape(length, -1)


SHAPES = [
    (3, 3, 16, 5, 0),
    (9, 3, 64, 70, 0),
    (4, 1, 24, 33, 0),
    (4, 2, 128, 48, 0),
    (6, 2, 32, 81, 20),
    (2, 2, 2, 17, 1),
    (3, 1, 32, 1100, 0),
    (2, 2, 16, 1100, 40),
]


@pytest.mark.parametrize("dtype", KV_FORMATS)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "length", "window"), SHAPES)
def test_attention(isa, dtype, heads, kv_heads, head_dim, length, window):
    case = AttentionCase(dtype, heads, kv_heads, head_dim, length, window)
    whole = case.run(isa)
    tolerance = {"fp32": 2e-5, "bf16": 4e-2, "int8": 2e-3}[dtype]  # int8: some rounds to another code
    np.testing.assert_allclose(whole, case.expected(), atol=tolerance)
    for chunk in (1, 7, 32, 64):  # decode, and chunks that end inside, at and beyond a page
        if chunk > 1 or length < 512:
            np.testing.assert_array_equal(case.run(isa, chunk), whole)
    np.testing.assert_array_equal(case.run(isa, 250, split=True), whole)
    np.testing.assert_array_equal(whole, case.run("generic"))


@pytest.mark.parametrize("dtype", KV_FORMATS)
@pytest.mark.parametrize("isa", ISAS)
def test_scores_that_grow_block_after_block(isa, dtype):
    """Maxima rise by far in some rows and not in others, and what is summed up already shrinks."""
    case = AttentionCase(dtype, 4, 2, 32, 300)
    case.qkv *= np.linspace(0.5, 8, len(case.qkv), dtype=np.float32)[:, None]
    whole = case.run(isa)
    if dtype == "fp32":  # in bf16 the rounding of such queries and keys alone changes the weights
        np.testing.assert_allclose(whole, case.expected(), atol=2e-3)
    for chunk in (1, 7, 32):
        np.testing.assert_array_equal(case.run(isa, chunk), whole)
    np.testing.assert_array_equal(whole, case.run("generic"))


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("isa", ISAS)
def test_what_a_page_held_before_does_not_show(isa, dtype):
    case = AttentionCase(dtype, 6, 2, 64, 37)
    for chunk in (None, 1, 5):
        np.testing.assert_array_equal(case.run(isa, chunk, stale=np.nan), case.run(isa))


@pytest.mark.parametrize(("dtype", "bad"), [*((dtype, np.nan) for dtype in KV_FORMATS), ("int8", np.inf)])
@pytest.mark.parametrize("part", ["k", "v"])
@pytest.mark.parametrize("isa", ISAS)
def test_a_key_or_value_that_is_not_finite_reaches_who_sees_it_and_no_page_before(isa, dtype, part, bad):
    case = AttentionCase(dtype, 4, 2, 64, 130)
    clean = case.run(isa, 1)
    first_kv = {"k": 4, "v": 6}[part] * 64  # of KV head 0
    case.qkv[100, first_kv + 5] = bad
    dirty = case.run(isa, 1)
    assert (~np.isfinite(dirty[100:, :128])).any(axis=1).all()
    np.testing.assert_array_equal(dirty[:96], clean[:96])
    np.testing.assert_array_equal(dirty[:, 128:], clean[:, 128:])


def test_an_unknown_path_is_refused_by_name():
    with pytest.raises(ValueError, match="unknown ISA path 'sse9'"):
        kernels.log_sum_exp("sse9", np.zeros(3, np.float32))
