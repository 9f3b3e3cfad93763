"""Rotated weights: the same model in other coordinates."""

import numpy as np
import pytest

from checkpoints import VOCAB_SIZE, make_hf
from ridgeline.executors.torch import TorchExecutor
from ridgeline.model.program import build
from ridgeline.model.resolve import load_spec, resolve_model
from ridgeline.model.rotated import RotatedWeights, untied
from ridgeline.model.weights import Weights, open_weights
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
def test_powers_of_two_stand_in_place_of_norms_and_shapes_stay(name, tmp_path):
    files = resolve_model(str(make_hf(tmp_path, **CHECKPOINTS[name])))
    spec = load_spec(files)
    source = open_weights(files, spec)
    rotated = RotatedWeights(source, spec)
    assert set(rotated.shapes) == set(source.shapes) | {"head"}
    for name, shape in rotated.shapes.items():
        values = rotated.read(name)
        assert (values.shape, values.dtype) == (shape, np.float32)
        if name.endswith(("attn_norm", "mlp_norm", "final_norm")):
            mantissas, _ = np.frexp(values)
            assert (np.abs(mantissas) == 0.5).all()
        elif name.endswith(("q_norm", "k_norm")):
            np.testing.assert_array_equal(values, source.read(name))
        if name != "head":
            assert rotated.stored_type(name) == source.stored_type(name)


def test_channels_with_large_inputs_get_small_weights(tmp_path):
    """Rows that write a channel of the residual are large: its norm shrinks it, and its columns grow."""
    files = resolve_model(str(make_hf(tmp_path, family="llama")))
    spec = load_spec(files)
    source = open_weights(files, spec)
    plain = RotatedWeights(source, spec)
    loud = RotatedWeights(Loud(source, "layers.0.down", 5), spec)
    before, after = (np.abs(weights.read("layers.1.attn_norm")) for weights in (plain, loud))
    assert after[5] < before[5] / 4
    assert np.median(after / before) == 1
    assert (loud.read("layers.0.attn_norm") == plain.read("layers.0.attn_norm")).all()


class Loud(Weights):
    """One row of one matrix, a hundredfold."""

    def __init__(self, source, name, row):
        self.shapes, self._source, self._name, self._row = source.shapes, source, name, row

    def read(self, name):
        values = np.array(self._source.read(name))
        if name == self._name:
            values[self._row] *= 100
        return values

    def stored_type(self, name):
        return self._source.stored_type(name)

    def close(self):
        self._source.close()
