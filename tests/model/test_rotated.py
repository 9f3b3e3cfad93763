"""Rotated weights: the same model in other coordinates."""

import numpy as np
import pytest

from checkpoints import VOCAB_SIZE, make_hf
from ridgeline.executors.torch import TorchExecutor
from ridgeline.model.program import build
from ridgeline.model.resolve import load_spec, resolve_model
from ridgeline.model.rotated import RotatedWeights, untied
from ridgeline.model.weights import open_weights
from step_plans import Stepper

PROMPT = np.random.default_rng(3).integers(3, VOCAB_SIZE, 40).tolist()
CHECKPOINTS = {
    "llama": {"family": "llama"},
    "llama-tied": {"family": "llama", "tied": True},
    "llama-biases": {"family": "llama3"},
    "mistral-window": {"family": "mistral"},
    "qwen2-biases-tied": {"family": "qwen2", "tied": True},
    "qwen2-odd-sizes": {"family": "qwen2", "hidden_size": 144, "num_attention_heads": 6, "intermediate_size": 88},
    "qwen3-norms": {"family": "qwen3"},
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_logits_are_those_of_the_checkpoint(name, tmp_path):
    files = resolve_model(str(make_hf(tmp_path, **CHECKPOINTS[name])))
    spec = load_spec(files)
    weights = open_weights(files, spec)
    expected = logits(build(spec), weights)
    rotated = logits(build(untied(spec)), RotatedWeights(weights, spec))
    assert np.abs(rotated - expected).max() < 1e-4 * np.abs(expected).max()


def logits(program, weights) -> np.ndarray:
    executor = TorchExecutor(program, weights, dtype="fp64", num_pages=8, threads=1)
    (found,) = Stepper(executor).logits([PROMPT], chunk=16)
    return found


@pytest.mark.parametrize("name", ["llama-tied", "qwen3-norms"])
def test_norms_are_folded_in_and_shapes_stay(name, tmp_path):
    files = resolve_model(str(make_hf(tmp_path, **CHECKPOINTS[name])))
    spec = load_spec(files)
    source = open_weights(files, spec)
    rotated = RotatedWeights(source, spec)
    assert set(rotated.shapes) == set(source.shapes) | {"head"}
    for name, shape in rotated.shapes.items():
        values = rotated.read(name)
        assert (values.shape, values.dtype) == (shape, np.float32)
        if name.endswith(("attn_norm", "mlp_norm", "final_norm")):
            assert (values == 1).all()
        elif name.endswith(("q_norm", "k_norm")):
            np.testing.assert_array_equal(values, source.read(name))
        if name != "head":
            assert rotated.stored_type(name) == source.stored_type(name)
