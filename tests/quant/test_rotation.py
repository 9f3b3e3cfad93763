"""Rotations: orthogonal, the same along rows and columns, and they spread outliers."""

import numpy as np
import pytest

from ridgeline.quant.rotation import block_len, hadamard, hadamard_outputs, rotate, rotate_outputs

WIDTHS = [1, 2, 7, 16, 24, 96, 576, 896]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("transform", [rotate, hadamard])
def test_a_transform_is_orthogonal(transform, width):
    matrix = transform(np.eye(width))
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(width), atol=1e-13)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_hadamard_transform_is_the_textbooks_in_each_block(width):
    block = block_len(width)
    sylvester = np.ones((1, 1))
    while len(sylvester) < block:
        sylvester = np.kron([[1, 1], [1, -1]], sylvester)
    textbook = np.kron(np.eye(width // block), sylvester / np.sqrt(block))
    values = np.random.default_rng(0).standard_normal((3, width))
    np.testing.assert_allclose(hadamard(values), values @ textbook, atol=1e-13)


@pytest.mark.parametrize("width", WIDTHS)
def test_weights_that_read_and_weights_that_write_are_rotated_alike(width):
    """A product through both is what it was; also when the columns come in several chunks."""
    rng = np.random.default_rng(0)
    writes, reads = rng.standard_normal((width, 300)), rng.standard_normal((500, width))
    expected = reads @ writes
    np.testing.assert_allclose(rotate(reads) @ rotate_outputs(writes), expected, atol=1e-11)
    np.testing.assert_allclose(hadamard(reads) @ hadamard_outputs(writes, width), expected, atol=1e-11)
    np.testing.assert_allclose(rotate_outputs(writes[:, 0]), rotate_outputs(writes)[:, 0])  # a bias


def test_heads_are_transformed_each_on_its_own():
    values = np.random.default_rng(0).standard_normal((4, 3 * 24))
    heads = values.reshape(4, 3, 24)
    np.testing.assert_array_equal(hadamard(values, 24), hadamard(heads).reshape(4, -1))
    np.testing.assert_array_equal(hadamard_outputs(values.T, 24), hadamard(values, 24).T)


@pytest.mark.parametrize("width", [64, 576, 1536])
def test_an_outlier_is_spread_over_the_whole_row(width):
    row = np.zeros((1, width), np.float32)
    row[0, 3] = 1
    assert np.abs(rotate(row)).max() < 1.5 / np.sqrt(width)


def test_fp32_stays_fp32_and_the_input_is_not_changed():
    values = np.ones((5, 96), np.float32)
    for transform in (rotate, hadamard, rotate_outputs):
        assert transform(values).dtype == np.float32
    assert (values == 1).all()


def test_the_rotation_is_part_of_the_format():
    """Rotated weights that lie in files must fit those of a later version."""
    expected = [-0.5, -0.5, 0.5, 0.5]
    np.testing.assert_allclose(np.abs(rotate(np.eye(4, dtype=np.float32))), 0.5)
    np.testing.assert_allclose(rotate(np.eye(4, dtype=np.float32))[:, 0], expected)
