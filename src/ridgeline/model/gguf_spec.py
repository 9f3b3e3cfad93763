"""A `ModelSpec` from the metadata of a GGUF file.

Of the keys under the architecture's own name (`llama.`), nearly all change what is computed; llama.cpp fixes the rest
of an architecture in code. Each is read, refused when it asks for something that the program does not do, or, when it
is unknown and its name speaks of nothing that matters, told and passed over.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ridgeline.config import nearest
from ridgeline.errors import ConfigError
from ridgeline.model.fields import Fields, short
from ridgeline.model.known_keys import is_suspicious, refuse_slip
from ridgeline.model.rope_scaling import gguf_rope
from ridgeline.model.spec import ModelSpec

ROPE_FACTORS = "rope_freqs.weight"  # the tensor
_ARCHITECTURES = ("llama", "qwen2", "qwen3")  # Mistral files call themselves llama

# Keys that change nothing here, whatever they hold.
_INERT = (
    "attention.layer_norm_epsilon",  # of norms that these families do not have
    "expert_used_count", "expert_feed_forward_length",  # without expert_count
)  # fmt: skip
# Values of other keys that switch them off; of all that are not here, 0, false and "" do.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "logit_scale": (0, 1),
    "embedding_scale": (0, 1),
    "residual_scale": (0, 1),
    "rope.scaling.attn_factor": (1,),
    "rope.scaling.yarn_attn_factor": (1,),
    "tensor_data_layout": ("Meta AI original pth",),  # the order of rows that every llama file has
}
_FILE_TYPES = {
    0: "fp32", 1: "fp16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S",
    12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 32: "bf16",
}  # fmt: skip


def from_gguf(
    metadata: Mapping[str, Any],
    tensor_names: Collection[str],
    *,
    source: str,
    rope_factors: Sequence[float] | None = None,
) -> ModelSpec:
    """The spec of a GGUF file; `source` names it in errors.

    `rope_factors` are the values of its tensor `rope_freqs.weight`, where it has one. Raises ConfigError as
    `spec.from_config` does.
    """
    general = Fields(metadata, source)
    architecture = general.text("general.architecture")
    if architecture not in _ARCHITECTURES:
        hint = nearest(architecture, list(_ARCHITECTURES))
        raise general.error("general.architecture", f"is {architecture!r}: unknown architecture", hint)
    fields = Fields(metadata, source, f"{architecture}.")
    hidden_size, num_layers = fields.count("embedding_length"), fields.count("block_count")
    num_heads = fields.count("attention.head_count")
    head_dim = fields.head_dim("attention.key_length", hidden_size, num_heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if fields.count(key, head_dim) != head_dim:
            raise fields.error(key, f"is {fields.get(key)}, the key length is {head_dim}: they must be equal")
    num_tokens = len(general.items("tokenizer.ggml.tokens"))
    theta, scaling = gguf_rope(fields, ROPE_FACTORS in tensor_names, rope_factors, head_dim)
    spec = ModelSpec(
        architecture=architecture,
        vocab_size=fields.count("vocab_size", num_tokens or None),
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=fields.count("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        intermediate_size=fields.count("feed_forward_length"),
        max_context_len=fields.count("context_length"),
        norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        rope_theta=theta,
        rope_scaling=scaling,
        tie_embeddings="output.weight" not in tensor_names,
        qkv_bias=architecture == "qwen2" or "blk.0.attn_q.bias" in tensor_names,
        o_bias="blk.0.attn_output.bias" in tensor_names,
        mlp_bias="blk.0.ffn_down.bias" in tensor_names,
        qk_norm=architecture == "qwen3",
        windows=(None,) * num_layers,
        stored_dtype=_stored_dtype(general),
        bos_token_id=next(iter(general.token_ids("tokenizer.ggml.bos_token_id")), None),
        eos_token_ids=general.token_ids(*(f"tokenizer.ggml.{end}_token_id" for end in ("eos", "eot", "eom"))),
    )
    return replace(spec, warnings=_passed_over(fields))


def _stored_dtype(general: Fields) -> str:
    if general.get("general.file_type") is None:
        return "unknown"
    return _FILE_TYPES.get(general.count("general.file_type", minimum=0), "unknown")


def _passed_over(fields: Fields) -> tuple[str, ...]:
    """Sentences about keys that are unknown and taken to be harmless. Raises ConfigError for the others."""
    for key, value in Fields(fields.values, fields.source, "rope.").unread().items():
        if value:
            raise ConfigError(f"{fields.source}: rope.{key} is {short(value)}: not read, {fields.prefix}rope.{key} is")
    unknown = []
    for key, value in fields.unread().items():
        if key in _INERT or (value in _NEUTRAL[key] if key in _NEUTRAL else not value):
            continue
        refuse_slip(fields, key, value)
        if key in _NEUTRAL or is_suspicious(key):
            raise fields.error(key, f"is {short(value)}: this feature is not supported")
        unknown.append(
            f"{fields.source}: {fields.prefix}{key} is {short(value)}: this key is unknown, and taken to change no "
            "sizes or results."
        )
    return tuple(unknown)
