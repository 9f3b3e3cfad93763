"""A GGUF file's metadata under the names of `config.json`, so that one description serves both kinds of file.

Only for planning, and only for architectures whose remaining facts llama.cpp fixes in code, such as the period of
Gemma's windows. Whoever uses the result compares it with the tensors that the file holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ridgeline.config import nearest
from ridgeline.errors import ConfigError
from ridgeline.model.fields import Fields

_Shapes = Mapping[str, tuple[int, ...]]
_Read = Callable[[Fields], dict[str, Any]]


def config_of(metadata: Mapping[str, Any], shapes: _Shapes, *, source: str) -> dict[str, Any]:
    """`shapes` are those of the tensors, [outputs, inputs]. Raises ConfigError for an unknown architecture."""
    general = Fields(metadata, source)
    architecture = general.text("general.architecture")
    if architecture not in _ARCHITECTURES:
        hint = nearest(architecture, list(_ARCHITECTURES))
        raise general.error("general.architecture", f"is {architecture!r}: unknown architecture", hint)
    fields = Fields(metadata, source, f"{architecture}.")
    if "token_embd.weight" not in shapes:
        raise ConfigError(f"{source}: no tensor token_embd.weight")
    return {
        "vocab_size": shapes["token_embd.weight"][0],
        "hidden_size": fields.count("embedding_length"),
        "num_hidden_layers": fields.count("block_count"),
        "max_position_embeddings": fields.count("context_length"),
        "num_attention_heads": fields.count("attention.head_count"),
        "tie_word_embeddings": "output.weight" not in shapes,
        **_ARCHITECTURES[architecture](fields),
    }


def _grouped(model_type: str, fields: Fields) -> dict[str, Any]:
    """Grouped-query attention and a dense MLP."""
    heads = fields.count("attention.head_count")
    head_dim = fields.head_dim("attention.key_length", fields.count("embedding_length"), heads)
    if fields.count("attention.value_length", head_dim) != head_dim:
        raise fields.error("attention.value_length", f"is not the key length {head_dim}")
    return {
        "model_type": model_type,
        "num_key_value_heads": fields.count("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "intermediate_size": fields.get("feed_forward_length"),
    }


def _llama(fields: Fields) -> dict[str, Any]:
    if not fields.get("expert_count"):
        return _grouped("llama", fields)
    experts = {"num_local_experts": fields.count("expert_count"), "sliding_window": None}
    return _grouped("mixtral", fields) | experts | {"num_experts_per_tok": fields.count("expert_used_count")}


def _plain(model_type: str) -> _Read:
    return lambda fields: _grouped(model_type, fields)


def _qwen3_moe(fields: Fields) -> dict[str, Any]:
    return _grouped("qwen3_moe", fields) | {
        "num_experts": fields.count("expert_count"),
        "num_experts_per_tok": fields.count("expert_used_count"),
        "moe_intermediate_size": fields.count("expert_feed_forward_length"),
    }


def _gemma2(fields: Fields) -> dict[str, Any]:
    return _grouped("gemma2", fields) | {"sliding_window": fields.count("attention.sliding_window")}


def _gemma3(fields: Fields) -> dict[str, Any]:
    window = {"sliding_window": fields.count("attention.sliding_window"), "sliding_window_pattern": 6}
    return _grouped("gemma3_text", fields) | window


def _phi3(fields: Fields) -> dict[str, Any]:
    return _grouped("phi3", fields) | {"sliding_window": fields.get("attention.sliding_window") or None}


def _gpt_oss(fields: Fields) -> dict[str, Any]:
    num_layers = fields.count("block_count")
    return _grouped("gpt_oss", fields) | {
        "num_local_experts": fields.count("expert_count"),
        "num_experts_per_tok": fields.count("expert_used_count"),
        "intermediate_size": fields.count("expert_feed_forward_length"),
        "sliding_window": fields.count("attention.sliding_window"),
        "layer_types": [("sliding_attention", "full_attention")[i % 2] for i in range(num_layers)],
        "attention_bias": True,
    }


def _deepseek2(fields: Fields) -> dict[str, Any]:
    """Files for absorbed MLA give the sizes of one expanded head under `_mla` keys."""
    mla = "_mla" if fields.get("attention.key_length_mla") is not None else ""
    rope = fields.count("rope.dimension_count")
    return {
        "model_type": "deepseek_v3",  # the same weights as deepseek_v2's
        "kv_lora_rank": fields.count("attention.kv_lora_rank"),
        "q_lora_rank": fields.get("attention.q_lora_rank"),
        "qk_rope_head_dim": rope,
        "qk_nope_head_dim": fields.count(f"attention.key_length{mla}") - rope,
        "v_head_dim": fields.count(f"attention.value_length{mla}"),
        "n_routed_experts": fields.count("expert_count"),
        "n_shared_experts": fields.count("expert_shared_count", 0, minimum=0),
        "num_experts_per_tok": fields.count("expert_used_count"),
        "first_k_dense_replace": fields.count("leading_dense_block_count", minimum=0),
        "intermediate_size": fields.count("feed_forward_length"),
        "moe_intermediate_size": fields.count("expert_feed_forward_length"),
    }


_ARCHITECTURES: dict[str, _Read] = {
    "llama": _llama,
    "qwen2": _plain("qwen2"),
    "qwen3": _plain("qwen3"),
    "qwen3moe": _qwen3_moe,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi3": _phi3,
    "olmo2": _plain("olmo2"),
    "granite": _plain("granite"),
    "gpt-oss": _gpt_oss,
    "deepseek2": _deepseek2,
}
