"""Weights by our names against the files that transformers and the gguf package wrote."""

import json
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from checkpoints import make_gguf, make_hf
from ridgeline.errors import CheckpointError, ConfigError
from ridgeline.model.gguf import open_gguf
from ridgeline.model.resolve import ModelFiles, load_spec, resolve_model
from ridgeline.model.spec import ModelSpec
from ridgeline.model.weights import Weights, open_weights, random_weights
from ridgeline.quant.bf16 import from_bf16

# One tensor of each kind, named by us and by transformers.
NAMES = {
    "embed": "model.embed_tokens.weight",
    "final_norm": "model.norm.weight",
    "layers.0.attn_norm": "model.layers.0.input_layernorm.weight",
    "layers.1.q": "model.layers.1.self_attn.q_proj.weight",
    "layers.1.k": "model.layers.1.self_attn.k_proj.weight",
    "layers.1.v": "model.layers.1.self_attn.v_proj.weight",
    "layers.1.o": "model.layers.1.self_attn.o_proj.weight",
    "layers.1.mlp_norm": "model.layers.1.post_attention_layernorm.weight",
    "layers.1.gate": "model.layers.1.mlp.gate_proj.weight",
    "layers.1.up": "model.layers.1.mlp.up_proj.weight",
    "layers.1.down": "model.layers.1.mlp.down_proj.weight",
}
OPTIONAL = {
    "head": "lm_head.weight",
    "layers.1.q_bias": "model.layers.1.self_attn.q_proj.bias",
    "layers.1.k_bias": "model.layers.1.self_attn.k_proj.bias",
    "layers.1.v_bias": "model.layers.1.self_attn.v_proj.bias",
    "layers.1.o_bias": "model.layers.1.self_attn.o_proj.bias",
    "layers.1.gate_bias": "model.layers.1.mlp.gate_proj.bias",
    "layers.1.up_bias": "model.layers.1.mlp.up_proj.bias",
    "layers.1.down_bias": "model.layers.1.mlp.down_proj.bias",
    "layers.1.q_norm": "model.layers.1.self_attn.q_norm.weight",
    "layers.1.k_norm": "model.layers.1.self_attn.k_norm.weight",
}


def open_path(path: Path) -> tuple[ModelSpec, Weights]:
    files = resolve_model(str(path))
    spec = load_spec(files)
    return spec, open_weights(files, spec)


def stored_tensors(directory: Path) -> dict[str, torch.Tensor]:
    return {name: t for file in directory.glob("*.safetensors") for name, t in load_file(file).items()}


def assert_equals_file(weights: Weights, stored: dict[str, torch.Tensor]) -> None:
    names = NAMES | {ours: theirs for ours, theirs in OPTIONAL.items() if ours in weights.shapes}
    for ours, theirs in names.items():
        np.testing.assert_array_equal(weights.read(ours), stored[theirs].float().numpy(), err_msg=ours)
        assert weights.read(ours).shape == weights.shapes[ours]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_safetensors_of_every_dtype(dtype, tmp_path):
    directory = make_hf(tmp_path / "m", "llama", dtype=dtype)
    _, weights = open_path(directory)
    stored = stored_tensors(directory)
    assert_equals_file(weights, stored)
    for ours, theirs in NAMES.items():
        expected = stored[theirs].to(torch.bfloat16).view(torch.uint16).numpy()
        np.testing.assert_array_equal(weights.read_bf16(ours), expected)
    assert weights.stored_type("embed") == {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}[dtype]


@pytest.mark.parametrize("family", ["llama3", "qwen2", "qwen3", "mistral"])
@pytest.mark.parametrize("tied", [False, True])
def test_families_sharded_tied_or_not(family, tied, tmp_path):
    directory = make_hf(tmp_path / "m", family, sharded=True, tied=tied)
    assert len(list(directory.glob("*.safetensors"))) > 1
    spec, weights = open_path(directory)
    assert ("head" in weights.shapes) is not tied
    assert_equals_file(weights, stored_tensors(directory))
    assert sum(weights.read(name).size for name in weights.shapes) == spec.num_parameters


@pytest.mark.parametrize(
    ("family", "options"), [("llama", {"attention_bias": True, "mlp_bias": True}), ("qwen2", {}), ("qwen3", {})]
)
def test_gguf_rows_come_back_in_half_split_order(family, options, tmp_path):
    """The file of a llama model has permuted q and k rows, of the others not; we serve the same for both."""
    directory = make_hf(tmp_path / "m", family, **options)
    _, weights = open_path(make_gguf(directory, tmp_path / "m.gguf"))
    assert_equals_file(weights, stored_tensors(directory))


@pytest.mark.parametrize("quantization", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_quantized_gguf_equals_the_gguf_package(quantization, tmp_path):
    path = make_gguf(make_hf(tmp_path / "m", "qwen2"), tmp_path / "m.gguf", quantization)
    spec, weights = open_path(path)
    for tensor in gguf.GGUFReader(path).tensors:
        if tensor.name in ("token_embd.weight", "blk.1.ffn_down.weight"):
            name = "embed" if tensor.name.startswith("token") else "layers.1.down"
            expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            np.testing.assert_array_equal(weights.read(name), expected)
            expected_bf16 = torch.from_numpy(np.array(expected)).to(torch.bfloat16).float().numpy()
            np.testing.assert_array_equal(from_bf16(weights.read_bf16(name)), expected_bf16)
            assert weights.stored_type(name) == quantization
    assert spec.vocab_size == weights.shapes["embed"][0]


def test_the_bundled_model_is_the_gguf_packages_values():
    """Larger than one decoding chunk, with permuted rows. (That our reader finds the right bytes: test_gguf.py.)"""
    files = resolve_model("smollm2-135m")
    spec = load_spec(files)
    weights = open_weights(files, spec)
    assert spec.num_parameters == 134_515_008
    stored = open_gguf(files.path).tensors
    for name, theirs in (("layers.29.down", "blk.29.ffn_down.weight"), ("layers.29.k", "blk.29.attn_k.weight")):
        tensor = stored[theirs]
        rows = tensor.data.reshape(tensor.shape[0], -1)
        expected = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[tensor.type])
        if name.endswith("k"):
            pairs = expected.reshape(spec.num_kv_heads, spec.head_dim // 2, 2, spec.hidden_size)
            expected = pairs.transpose(0, 2, 1, 3).reshape(expected.shape)
        np.testing.assert_array_equal(weights.read(name), expected)
        assert (from_bf16(weights.read_bf16(name)) == torch.from_numpy(expected).bfloat16().float().numpy()).all()


@pytest.fixture(scope="module")
def pristine(tmp_path_factory) -> Path:
    return make_hf(tmp_path_factory.mktemp("weights") / "m", "llama")


@pytest.fixture
def checkpoint(pristine, tmp_path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "m"))


def rewrite(checkpoint: Path, **changes: torch.Tensor | None) -> None:
    """Replaces tensors of a one-file checkpoint; None removes one. `__` stands for a dot."""
    path = checkpoint / "model.safetensors"
    tensors = load_file(path) | {name.replace("__", "."): tensor for name, tensor in changes.items()}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)


def assert_refused(checkpoint: Path, *parts: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_path(checkpoint)
    assert "\n" not in str(caught.value)
    for part in parts:
        assert part in caught.value.message


def test_a_missing_tensor_is_named(checkpoint):
    rewrite(checkpoint, model__layers__1__mlp__up_proj__weight=None)
    assert_refused(checkpoint, str(checkpoint), "'model.layers.1.mlp.up_proj.weight' is missing", "[96, 64]")


def test_a_mis_shaped_tensor_is_named_with_both_shapes(checkpoint):
    rewrite(checkpoint, model__norm__weight=torch.ones(65))
    assert_refused(checkpoint, "model.safetensors", "'model.norm.weight' has shape [65], the model needs [64]")


def test_a_tensor_without_a_place_is_named(checkpoint):
    rewrite(checkpoint, model__layers__0__self_attn__sinks=torch.ones(4))
    assert_refused(checkpoint, "model.safetensors", "'model.layers.0.self_attn.sinks' has no place in a llama model")


def test_rotary_tables_of_old_checkpoints_are_ignored(checkpoint):
    rewrite(checkpoint, model__layers__0__self_attn__rotary_emb__inv_freq=torch.ones(8))
    assert open_path(checkpoint)[1].read("final_norm").shape == (64,)


def test_an_unreadable_type_is_named(checkpoint):
    rewrite(checkpoint, model__norm__weight=torch.ones(64, dtype=torch.float64))
    assert_refused(checkpoint, "model.safetensors", "'model.norm.weight'", "type F64 cannot be read")


def test_truncated_safetensors_name_the_tensor(checkpoint):
    path = checkpoint / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    assert_refused(checkpoint, "model.safetensors", "truncated: tensor 'model.", f"the file has {len(whole) - 100:,}")
    path.write_bytes(whole[:50])
    assert_refused(checkpoint, "model.safetensors", "truncated: the header ends at byte", "the file has 50")
    path.write_bytes(b"\0\0")
    assert_refused(checkpoint, "model.safetensors", "truncated")


NORM = {"dtype": "F32", "shape": [64], "data_offsets": [0, 256]}


def with_header(entry: object, **others: object) -> bytes:
    header = json.dumps({"model.norm.weight": entry, **others}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(256)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((4).to_bytes(8, "little") + b"{]}}", "its header is not a JSON object"),
        ((2).to_bytes(8, "little") + b"[]", "its header is not a JSON object"),
        (with_header({"dtype": "F32"}), "'model.norm.weight' has a damaged header entry"),
        (with_header({"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}), "impossible dimensions"),
        (with_header({"dtype": "F32", "shape": [64], "data_offsets": [0, 8]}), "needs 256 bytes, has 8"),
        (with_header(NORM, other=NORM), "'other' begins at byte 0 of the data, the one before ends at 256"),
        (with_header({**NORM, "shape": [32], "data_offsets": [64, 192]}), "begins at byte 64"),
        (with_header(NORM) + b"1234", "4 bytes after the last tensor belong to none"),
    ],
)
def test_damaged_headers(checkpoint, data, message):
    (checkpoint / "model.safetensors").write_bytes(data)
    assert_refused(checkpoint, "model.safetensors", message)


def test_missing_files_are_named(checkpoint):
    (checkpoint / "model.safetensors").rename(checkpoint / "pytorch_model.bin")
    assert_refused(checkpoint, "no model.safetensors", "only pytorch_model.bin")
    index = checkpoint / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}))
    assert_refused(checkpoint, "model-00001-of-00002.safetensors: cannot be read: No such file")
    index.write_text("[]")
    assert_refused(checkpoint, "not an index")
    for shard in ("../model.safetensors", "/model.safetensors", 7):
        index.write_text(json.dumps({"weight_map": {"model.norm.weight": shard}}))
        assert_refused(checkpoint, "'model.norm.weight'", repr(shard), "no file beside it")


def test_a_shard_without_its_tensor_is_named(checkpoint):
    index = {"weight_map": {"model.layers.9.x": "model.safetensors"}}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
    assert_refused(checkpoint, "model.safetensors: tensor 'model.layers.9.x' is missing")


def test_a_config_alone_has_no_weights(checkpoint):
    files = ModelFiles("m", "config", checkpoint / "config.json")
    with pytest.raises(ConfigError, match="has no weights"):
        open_weights(files, load_spec(files))


def test_random_weights_depend_on_seed_and_name_only(checkpoint):
    spec, _ = open_path(checkpoint)
    first, again, other = random_weights(spec), random_weights(spec), random_weights(spec, seed=1)
    for name, shape in first.shapes.items():
        assert first.read(name).shape == shape
        np.testing.assert_array_equal(first.read(name), again.read(name))
    assert (first.read("final_norm") == 1).all()
    assert not np.array_equal(first.read("embed"), other.read("embed"))
    assert not np.array_equal(first.read("layers.0.gate"), first.read("layers.0.up"))
    assert first.read("embed").std() == pytest.approx(0.02, rel=0.05)
    assert (
        from_bf16(first.read_bf16("embed")) == torch.from_numpy(first.read("embed")).bfloat16().float().numpy()
    ).all()
