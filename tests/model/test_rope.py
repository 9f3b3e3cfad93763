"""Rotary frequencies equal transformers', for the dimensions of real models."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ridgeline.errors import ConfigError
from ridgeline.model.rope import inverse_frequencies
from ridgeline.model.rope_scaling import RopeScaling
from ridgeline.model.spec import ModelSpec

LLAMA_3_1 = {
    "rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip


def spec(theta: float, scaling: RopeScaling | None, head_dim: int = 128) -> ModelSpec:
    return ModelSpec("llama", 320, 4096, 2, 32, 8, head_dim, 96, 512, 1e-6, theta, scaling)


@pytest.mark.parametrize(
    ("parameters", "scaling"),
    [
        (LLAMA_3_1, RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)),
        ({"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}, RopeScaling("linear", 4.0)),
    ],
)
def test_scaled_frequencies_equal_transformers(parameters, scaling):
    config = transformers.LlamaConfig(hidden_size=4096, num_attention_heads=32, rope_parameters=parameters)
    expected, _ = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, torch.device("cpu"))
    np.testing.assert_allclose(inverse_frequencies(spec(parameters["rope_theta"], scaling)), expected, rtol=1e-6)


def test_unscaled_frequencies_fall_from_one_to_almost_one_over_theta():
    frequencies = inverse_frequencies(spec(10_000.0, None, head_dim=4))
    np.testing.assert_allclose(frequencies, [1.0, 0.01])


def test_a_table_of_factors_divides_each_frequency():
    scaling = RopeScaling("factors", 8.0, factors=(1.0, 8.0))
    np.testing.assert_allclose(inverse_frequencies(spec(10_000.0, scaling, head_dim=4)), [1.0, 0.00125])


def test_an_unknown_scaling_is_refused_by_name():
    unknown = dataclasses.replace(RopeScaling("linear", 2.0), kind="yarn")
    with pytest.raises(ConfigError, match="yarn"):
        inverse_frequencies(spec(10_000.0, unknown))
