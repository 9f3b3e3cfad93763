"""Facts from GGUF files of many architectures, written here tensor by tensor."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from ridgeline.cost.facts import load_facts
from ridgeline.errors import ConfigError

HIDDEN, VOCAB = 64, 50
COMMON = {"embedding_length": HIDDEN, "context_length": 512, "attention.head_count": 4, "attention.head_count_kv": 2}
MOE = {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 32}
Shapes = dict[str, tuple[int, ...]]


def attention(head_dim: int, *, norms: bool = False) -> Shapes:
    shapes: Shapes = {
        "attn_norm": (HIDDEN,), "ffn_norm": (HIDDEN,),
        "attn_q": (4 * head_dim, HIDDEN), "attn_k": (2 * head_dim, HIDDEN), "attn_v": (2 * head_dim, HIDDEN),
        "attn_output": (HIDDEN, 4 * head_dim),
    }  # fmt: skip
    return shapes | ({"attn_q_norm": (head_dim,), "attn_k_norm": (head_dim,)} if norms else {})


def mlp(inner: int) -> Shapes:
    return {"ffn_gate": (inner, HIDDEN), "ffn_up": (inner, HIDDEN), "ffn_down": (HIDDEN, inner)}


def experts(inner: int) -> Shapes:
    router = {"ffn_gate_inp": (8, HIDDEN)}
    return router | {f"{name}_exps": (8, *shape) for name, shape in mlp(inner).items()}


LATENT: Shapes = {
    "attn_norm": (HIDDEN,), "ffn_norm": (HIDDEN,), "attn_q": (4 * 24, HIDDEN), "attn_kv_a_mqa": (32 + 8, HIDDEN),
    "attn_kv_a_norm": (32,), "attn_k_b": (4, 32, 16), "attn_v_b": (4, 16, 32), "attn_output": (HIDDEN, 4 * 16),
}  # fmt: skip
SHARED: Shapes = {f"{name}_shexp": shape for name, shape in mlp(32).items()} | {"exp_probs_b": (8,)}


def write(path: Path, architecture: str, metadata: dict[str, Any], layers: list[Shapes], *, tied: bool = False) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (metadata | {"block_count": len(layers)}).items():
        writer.add_uint32(f"{architecture}.{key}", value)
    shapes: Shapes = {"token_embd": (VOCAB, HIDDEN), "output_norm": (HIDDEN,)}
    shapes |= {} if tied else {"output": (VOCAB, HIDDEN)}
    shapes |= {f"blk.{i}.{name}": shape for i, layer in enumerate(layers) for name, shape in layer.items()}
    for name, shape in shapes.items():
        dtype = np.float32 if len(shape) == 1 else np.float16
        writer.add_tensor(f"{name}.weight", np.zeros(shape, dtype))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_qwen3_moe(tmp_path):
    keys = COMMON | MOE | {"attention.key_length": 16, "attention.value_length": 16, "feed_forward_length": 96}
    layers = [attention(16, norms=True) | experts(32)] * 3
    model = load_facts(str(write(tmp_path / "m.gguf", "qwen3moe", keys, layers)))
    assert model.architecture == "qwen3_moe"
    assert model.expert_parameters == 3 * 8 * 3 * 32 * HIDDEN
    assert model.kv_bytes(100) == 100 * 3 * 2 * 2 * 16 * 2
    vectors = 3 * (2 * HIDDEN + 2 * 16) + HIDDEN
    assert model.weight_bytes("stored") == 2 * model.parameters + 2 * vectors
    unread = 2 * (VOCAB - 1) * HIDDEN + 2 * model.expert_parameters * 6 / 8
    assert model.decode_read_bytes("stored") == pytest.approx(model.weight_bytes("stored") - unread)


def test_mixtral_calls_itself_llama(tmp_path):
    keys = COMMON | {"expert_count": 8, "expert_used_count": 2, "feed_forward_length": 32}
    model = load_facts(str(write(tmp_path / "m.gguf", "llama", keys, [attention(16) | experts(32)])))
    assert (model.architecture, model.kv_bytes_per_token()) == ("mixtral", 2 * 2 * 16 * 2)
    assert model.parameters - model.active_parameters == 6 * 3 * 32 * HIDDEN


def test_gemma3_windows(tmp_path):
    keys = COMMON | {"attention.key_length": 32, "attention.sliding_window": 8, "feed_forward_length": 96}
    layer = attention(32, norms=True) | mlp(96)
    layer |= {"post_attention_norm": (HIDDEN,), "post_ffw_norm": (HIDDEN,)}
    model = load_facts(str(write(tmp_path / "m.gguf", "gemma3", keys, [layer] * 7, tied=True)))
    per_layer = 2 * 2 * 32 * 2
    assert model.kv_bytes(100) == per_layer * (100 + 6 * 8)
    assert model.decode_read_bytes("stored") == model.weight_bytes("stored")


def test_deepseek_latents(tmp_path):
    keys = COMMON | MOE | {
        "attention.kv_lora_rank": 32, "attention.key_length_mla": 24, "attention.value_length_mla": 16,
        "attention.key_length": 40, "attention.value_length": 32, "rope.dimension_count": 8,
        "leading_dense_block_count": 1, "expert_shared_count": 1, "feed_forward_length": 96,
    }  # fmt: skip
    layers = [LATENT | mlp(96), LATENT | experts(32) | SHARED]
    model = load_facts(str(write(tmp_path / "m.gguf", "deepseek2", keys, layers)))
    assert model.kv_bytes_per_token() == 2 * (32 + 8) * 2


def test_a_file_that_holds_more_than_its_metadata_says_is_refused(tmp_path):
    keys = COMMON | {"feed_forward_length": 96}
    path = write(tmp_path / "m.gguf", "llama", keys, [attention(16) | mlp(96) | {"attn_gate": (3, HIDDEN)}])
    with pytest.raises(ConfigError, match=r"holds 37,\d\d\d parameters, its metadata describes 37,\d\d\d"):
        load_facts(str(path))


def test_an_unknown_architecture_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match=r"general\.architecture is 'rwkv7': unknown architecture"):
        load_facts(str(write(tmp_path / "m.gguf", "rwkv7", COMMON, [])))
