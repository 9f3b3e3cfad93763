"""Rotations: orthogonal, the same along rows and columns, and they spread outliers."""

import numpy as np
import pytest

from ridgeline.quant.rotation import block_len, hadamard, hadamard_outputs, mixing, rotate, signs

WIDTHS = [1, 2, 7, 16, 24, 96, 272, 576, 896]


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
def test_inputs_and_weights_are_rotated_alike(width):
    """A product is what it was; also when the rows come in several chunks."""
    rng = np.random.default_rng(0)
    inputs, weights = rng.standard_normal((300, width)), rng.standard_normal((500, width))
    expected = weights @ inputs.T
    np.testing.assert_allclose(rotate(weights) @ rotate(inputs).T, expected, atol=1e-11)
    np.testing.assert_allclose(hadamard(weights) @ hadamard_outputs(inputs.T, width), expected, atol=1e-11)
    np.testing.assert_allclose(hadamard_outputs(inputs[0], width), hadamard_outputs(inputs.T, width)[:, 0])  # a bias


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


@pytest.mark.parametrize("width", [64, 576, 1536])
def test_a_mean_of_one_sign_is_spread_behind_signs(width):
    row = signs(width)[None] / np.float32(np.sqrt(width))
    assert np.abs(rotate(np.abs(row))).max() > 0.5
    assert np.abs(rotate(row)).max() < 4 / np.sqrt(width)


def test_too_many_blocks_are_not_mixed():
    assert mixing(15 * 16).shape == (15, 15)
    assert mixing(17 * 16).shape == (1, 1)
    values = np.eye(17 * 16, dtype=np.float32)
    np.testing.assert_array_equal(rotate(values), hadamard(values))


def test_fp32_stays_fp32_and_the_input_is_not_changed():
    values = np.ones((5, 96), np.float32)
    for transform in (rotate, hadamard, lambda x: hadamard_outputs(x, 5)):
        assert transform(values).dtype == np.float32
    assert (values == 1).all()


def test_the_rotation_is_part_of_the_format():
    """Rotated weights that lie in files must fit those of a later version."""
    assert signs(4).tolist() == [-1, -1, 1, 1]
    np.testing.assert_array_equal(rotate(np.eye(4, dtype=np.float32))[1], [0.5, -0.5, 0.5, -0.5])
