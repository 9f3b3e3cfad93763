import numpy as np
import torch

from ridgeline.quant.bf16 import from_bf16, to_bf16


def torch_bf16(values: np.ndarray) -> np.ndarray:
    return torch.from_numpy(values).to(torch.bfloat16).view(torch.uint16).numpy()


def test_rounding_equals_torch_on_random_bits():
    values = np.random.default_rng(0).integers(0, 1 << 32, 200_000, dtype=np.uint32).view(np.float32)
    ours, theirs = to_bf16(values), torch_bf16(values)
    nan = np.isnan(values)
    assert 0 < nan.sum() < 2_000
    np.testing.assert_array_equal(ours[~nan], theirs[~nan])
    assert np.isnan(from_bf16(ours[nan])).all()


def test_ties_infinities_and_the_smallest_nan():
    bits = [0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x80000000, 0x7F800001, 0xFFFFFFFF]
    expected = [0x3F80, 0x3F82, 0x3F81, 0x7F80, 0x7F80, 0xFF80, 0x8000, 0x7FC0, 0xFFFF]
    np.testing.assert_array_equal(to_bf16(np.array(bits, np.uint32).view(np.float32)), np.array(expected, np.uint16))


def test_every_bf16_survives_the_way_through_fp32():
    bits = np.arange(1 << 16, dtype=np.uint16)
    values = from_bf16(bits)
    numbers = ~np.isnan(values)
    np.testing.assert_array_equal(to_bf16(values)[numbers], bits[numbers])
