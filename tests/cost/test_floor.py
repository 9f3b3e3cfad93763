"""The decode floor's bytes, counted by hand and against the program's own list of weights."""

import dataclasses
import math

import pytest

from ridgeline.cost.floor import decode_bytes, decode_weight_bytes
from ridgeline.model.program import weight_shapes
from ridgeline.model.spec import ModelSpec

SPEC = ModelSpec(
    architecture="llama",
    vocab_size=1000,
    hidden_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    intermediate_size=96,
    max_context_len=512,
    norm_eps=1e-5,
    rope_theta=1e4,
)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("tied", [False, True])
def test_weights_read_per_token_are_all_but_the_unread_embedding_rows(dtype, tied):
    spec = dataclasses.replace(SPEC, tie_embeddings=tied)
    sizes = {name: math.prod(shape) for name, shape in weight_shapes(spec).items()}
    if not tied:
        sizes["embed"] = spec.hidden_size  # one row
    assert decode_weight_bytes(spec, dtype) == sum(sizes.values()) * {"fp32": 4, "bf16": 2}[dtype]


def test_kv_of_the_context_is_read_too():
    per_token = 2 * 2 * 2 * 16 * 2  # K and V, layers, KV heads, head dimension, bytes
    weights = decode_weight_bytes(SPEC, "bf16")
    assert decode_bytes(SPEC, dtype="bf16", kv_dtype="bf16", context_len=100.5) == weights + round(per_token * 100.5)
