from dataclasses import replace

import gguf
import numpy as np
import pytest

from ridgeline.errors import CheckpointError
from ridgeline.quant.ggml_blocks import FORMATS, dequantize, group_form, unpack_groups

GROUPED = [name for name, fmt in FORMATS.items() if fmt.groups]


def random_blocks(type_name: str, num_blocks: int) -> np.ndarray:
    """Every bit random, so that every field of the layout matters; scales may be infinite or NaN."""
    rng = np.random.default_rng(7)
    return rng.integers(0, 256, num_blocks * FORMATS[type_name].block_bytes, dtype=np.uint8)


@pytest.mark.parametrize("type_name", FORMATS)
def test_values_equal_the_gguf_package_bit_for_bit(type_name):
    raw = random_blocks(type_name, 500)
    rows = raw.reshape(-1, FORMATS[type_name].block_bytes)
    with np.errstate(invalid="ignore"):
        ours = dequantize(type_name, raw)
        theirs = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[type_name]).reshape(-1)
    assert ours.dtype == np.float32
    numbers = np.isfinite(ours)
    assert numbers.mean() > 0.8
    np.testing.assert_array_equal(ours[numbers].view(np.uint32), theirs[numbers].view(np.uint32))
    np.testing.assert_array_equal(ours, theirs)  # the same infinities and NaNs


@pytest.mark.parametrize("type_name", GROUPED)
def test_groups_have_the_very_same_values(type_name):
    """Of the file's own decoding and of the gguf package, bit for bit, over more blocks than are unpacked at once."""
    fmt = FORMATS[type_name]
    shape = (6000, 2 * fmt.block_len)
    raw = random_blocks(type_name, 12000)
    with np.errstate(invalid="ignore"):
        weights = unpack_groups(type_name, raw, shape)
        ours = weights.dequantize()
        decoded = dequantize(type_name, raw).reshape(shape)
        theirs = gguf.quants.dequantize(raw.reshape(6000, -1), gguf.GGMLQuantizationType[type_name])
    numbers = np.isfinite(ours)
    assert numbers.mean() > 0.8
    np.testing.assert_array_equal(ours[numbers].view(np.uint32), decoded[numbers].view(np.uint32))
    np.testing.assert_array_equal(ours[numbers].view(np.uint32), theirs[numbers].view(np.uint32))
    assert weights.codes.max() < 2**weights.bits
    assert weights.group == fmt.block_len
    assert group_form(type_name) == replace(weights.form, half_scales=True)  # random bits are NaN here and there
    if type_name not in ("Q5_0", "Q5_1"):  # whose codes take 8 bits in memory
        assert group_form(type_name).row_bytes(shape[1]) == 2 * fmt.block_bytes


def test_formats_that_hold_numbers_have_no_groups():
    assert set(FORMATS) - set(GROUPED) == {"F32", "F16", "BF16"}
    with pytest.raises(CheckpointError, match="F16 has no groups"):
        unpack_groups("F16", np.zeros(64, np.uint8), (1, 32))


@pytest.mark.parametrize("type_name", FORMATS)
def test_block_sizes_are_ggmls(type_name):
    fmt = FORMATS[type_name]
    assert (fmt.block_len, fmt.block_bytes) == gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type_name]]


def test_a_type_that_cannot_be_decoded_is_refused_by_name():
    with pytest.raises(CheckpointError, match="IQ4_XS") as caught:
        dequantize("IQ4_XS", np.zeros(136, np.uint8))
    assert "Q4_K" in (caught.value.hint or "")
