"""ModelSpec: a model's dimensions and feature flags, one type for every supported family.

A spec describes; whether this program can run it is `program.supports(spec)`. `from_config` reads a Hugging Face
`config.json`, `from_gguf` the metadata of a GGUF file; both refuse what they do not know, by name.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ridgeline.config import nearest
from ridgeline.errors import ConfigError
from ridgeline.model.config_values import layer_windows, stored_dtype
from ridgeline.model.families import is_known
from ridgeline.model.fields import Fields, short


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched: `linear` divides them all by `factor`, `llama3` only the slow ones.

    `factors` divides frequency i by `factors[i]`: GGUF files hold llama3's stretching as such a table.
    """

    kind: str  # linear | llama3 | factors
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context_len: int = 8192
    factors: tuple[float, ...] = ()  # [head_dim / 2]


@dataclass(frozen=True)
class ModelSpec:
    """Dimensions are counts; `windows` has an entry per layer, None for full attention."""

    architecture: str  # llama | qwen2 | qwen3 | mistral
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_context_len: int
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    tie_embeddings: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    windows: tuple[int | None, ...] = ()
    stored_dtype: str = "bf16"  # fp32 | bf16 | fp16 | a GGUF type's name
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    @property
    def num_parameters(self) -> int:
        """Unique parameters: a tied output matrix counts once."""
        attention = self.hidden_size * self.head_dim * (2 * self.num_heads + 2 * self.num_kv_heads)
        attention += self.qkv_bias * self.head_dim * (self.num_heads + 2 * self.num_kv_heads)
        attention += self.o_bias * self.hidden_size + self.qk_norm * 2 * self.head_dim
        mlp = 3 * self.hidden_size * self.intermediate_size
        mlp += self.mlp_bias * (2 * self.intermediate_size + self.hidden_size)
        layer = attention + mlp + 2 * self.hidden_size
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_embeddings else 2)
        return self.num_layers * layer + self.hidden_size + embeddings


# The class names what a checkpoint computes; the flags are the optional biases that the class knows.
_FAMILIES = {
    "llama": ("LlamaForCausalLM", ("attention_bias", "mlp_bias")),
    "mistral": ("MistralForCausalLM", ()),
    "qwen2": ("Qwen2ForCausalLM", ()),
    "qwen3": ("Qwen3ForCausalLM", ("attention_bias",)),
}
_GGUF_ARCHITECTURES = ("llama", "qwen2", "qwen3")  # Mistral files call themselves llama
_DEFAULT_ROPE_THETA = 10_000.0  # all families and llama.cpp, when a file does not say

# Features that some checkpoints of these architectures switch on and the program does not compute.
_UNSUPPORTED_CONFIG = (
    "quantization_config", "num_experts", "num_local_experts", "n_routed_experts", "no_rope_layers",
    "attn_logit_softcapping", "final_logit_softcapping", "logits_scaling", "embedding_multiplier",
)  # fmt: skip
_UNSUPPORTED_GGUF = (
    "expert_count", "attention.sliding_window", "attention.clamp_kqv", "attention.max_alibi_bias", "attention.scale",
    "embedding_scale", "residual_scale", "logit_scale", "rope.scale_linear",
)  # fmt: skip

_ROPE_KEYS = (
    "rope_type", "type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor",
    "original_max_position_embeddings", "partial_rotary_factor",
)  # fmt: skip
_GGUF_FILE_TYPES = {
    0: "fp32", 1: "fp16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S",
    12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 32: "bf16",
}  # fmt: skip


def from_config(
    config: Mapping[str, Any], *, source: str, generation_config: Mapping[str, Any] | None = None
) -> ModelSpec:
    """The spec of a Hugging Face `config.json`; `source` names the file in errors.

    Raises ConfigError for an unknown architecture, a missing or impossible value, and for every feature that the
    program does not compute.
    """
    fields = Fields(config, source)
    architecture = _architecture(fields)
    fields.refuse(_UNSUPPORTED_CONFIG)
    if fields.text("hidden_act", "silu") not in ("silu", "swish"):
        raise fields.error("hidden_act", f"is {fields.get('hidden_act')!r}: only silu is supported")
    hidden_size, num_layers = fields.count("hidden_size"), fields.count("num_hidden_layers")
    num_heads = fields.count("num_attention_heads")
    if architecture == "qwen3" and fields.get("head_dim") is None:
        raise fields.error("head_dim", "is missing")
    theta, scaling = _rope(fields)
    attention_bias = fields.flag("attention_bias")
    return ModelSpec(
        architecture=architecture,
        vocab_size=fields.count("vocab_size"),
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=fields.count("num_key_value_heads", num_heads if architecture == "llama" else None),
        head_dim=fields.head_dim("head_dim", hidden_size, num_heads),
        intermediate_size=fields.count("intermediate_size"),
        max_context_len=fields.count("max_position_embeddings"),
        norm_eps=fields.number("rms_norm_eps"),
        rope_theta=theta,
        rope_scaling=scaling,
        tie_embeddings=fields.flag("tie_word_embeddings"),
        qkv_bias=architecture == "qwen2" or attention_bias,
        o_bias=attention_bias,
        mlp_bias=fields.flag("mlp_bias"),
        qk_norm=architecture == "qwen3",
        windows=layer_windows(fields, architecture, num_layers),
        stored_dtype=stored_dtype(fields),
        bos_token_id=next(iter(fields.token_ids("bos_token_id")), None),
        eos_token_ids=_eos(fields, generation_config),
    )


def _architecture(fields: Fields) -> str:
    """The family, from `model_type`; `architectures` must name the causal language model of that family."""
    name, served = fields.text("model_type"), ", ".join(_FAMILIES)
    if name not in _FAMILIES and is_known(name):
        raise fields.error("model_type", f"is {name!r}: it can be planned, not served yet", "served: " + served)
    if name not in _FAMILIES:
        raise fields.error("model_type", f"is {name!r}: unknown architecture", nearest(name, list(_FAMILIES)))
    model_class, bias_flags = _FAMILIES[name]
    classes = fields.items("architectures") or [model_class]
    if model_class not in classes:
        raise fields.error("architectures", f"is {short(classes)}: a {name} model must be {model_class}")
    fields.refuse([flag for flag in ("attention_bias", "mlp_bias") if flag not in bias_flags])
    return name


def _rope(fields: Fields) -> tuple[float, RopeScaling | None]:
    """Base and scaling, from `rope_theta` and `rope_scaling`, or `rope_parameters` (since transformers 5) for both."""
    key = "rope_parameters" if fields.table("rope_parameters") else "rope_scaling"
    rope = Fields(fields.table(key), f"{fields.source}: {key}")
    kind = rope.text("rope_type") or rope.text("type") or "default"
    if kind not in ("default", "linear", "llama3"):
        raise rope.error("rope_type", f"is {short(kind)}: not supported", "supported: default, linear, llama3")
    for name in rope.values:
        if name not in _ROPE_KEYS:
            raise rope.error(name, "is not supported", nearest(name, list(_ROPE_KEYS)))
    for holder in (fields, rope):
        if holder.number("partial_rotary_factor", 1.0) != 1.0:
            raise holder.error("partial_rotary_factor", "other than 1 is not supported")
    theta = rope.number("rope_theta", fields.number("rope_theta", _DEFAULT_ROPE_THETA))
    if kind == "default":
        return theta, None
    if kind == "linear":
        return theta, RopeScaling("linear", rope.number("factor"))
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if not low < high:
        raise rope.error("high_freq_factor", f"is {high:g}, not above low_freq_factor {low:g}")
    original_len = rope.count("original_max_position_embeddings")
    return theta, RopeScaling("llama3", rope.number("factor"), low, high, original_len)


def _eos(fields: Fields, generation_config: Mapping[str, Any] | None) -> tuple[int, ...]:
    generation = Fields(generation_config or {}, f"{fields.source}: generation_config")
    return tuple(dict.fromkeys(fields.token_ids("eos_token_id") + generation.token_ids("eos_token_id")))


def from_gguf(
    metadata: Mapping[str, Any],
    tensor_names: Collection[str],
    *,
    source: str,
    rope_factors: Sequence[float] | None = None,
) -> ModelSpec:
    """The spec of a GGUF file. `rope_factors` are the values of its tensor `rope_freqs.weight`, where it has one.

    Raises ConfigError as `from_config` does.
    """
    general = Fields(metadata, source)
    architecture = general.text("general.architecture")
    if architecture not in _GGUF_ARCHITECTURES:
        hint = nearest(architecture, list(_GGUF_ARCHITECTURES))
        raise general.error("general.architecture", f"is {architecture!r}: unknown architecture", hint)
    fields = Fields(metadata, source, f"{architecture}.")
    fields.refuse(_UNSUPPORTED_GGUF)
    if general.count("split.count", 1) > 1:
        raise general.error(
            "split.count", f"is {metadata['split.count']}: this is one part of a split file", "merge it"
        )
    hidden_size, num_layers = fields.count("embedding_length"), fields.count("block_count")
    num_heads = fields.count("attention.head_count")
    head_dim = fields.head_dim("attention.key_length", hidden_size, num_heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if fields.count(key, head_dim) != head_dim:
            raise fields.error(key, f"is {fields.get(key)}, the key length is {head_dim}: they must be equal")
    num_tokens = len(general.items("tokenizer.ggml.tokens"))
    return ModelSpec(
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
        rope_theta=fields.number("rope.freq_base", _DEFAULT_ROPE_THETA),
        rope_scaling=_gguf_rope_scaling(fields, "rope_freqs.weight" in tensor_names, rope_factors, head_dim),
        tie_embeddings="output.weight" not in tensor_names,
        qkv_bias=architecture == "qwen2" or "blk.0.attn_q.bias" in tensor_names,
        o_bias="blk.0.attn_output.bias" in tensor_names,
        mlp_bias="blk.0.ffn_down.bias" in tensor_names,
        qk_norm=architecture == "qwen3",
        windows=(None,) * num_layers,
        stored_dtype=_gguf_stored_dtype(general),
        bos_token_id=next(iter(general.token_ids("tokenizer.ggml.bos_token_id")), None),
        eos_token_ids=general.token_ids(*(f"tokenizer.ggml.{end}_token_id" for end in ("eos", "eot", "eom"))),
    )


def _gguf_stored_dtype(general: Fields) -> str:
    if general.get("general.file_type") is None:
        return "unknown"
    return _GGUF_FILE_TYPES.get(general.count("general.file_type", minimum=0), "unknown")


def _gguf_rope_scaling(
    fields: Fields, has_factors: bool, factors: Sequence[float] | None, head_dim: int
) -> RopeScaling | None:
    kind = fields.text("rope.scaling.type", "none")
    if kind not in ("none", "linear"):
        raise fields.error("rope.scaling.type", f"is {kind!r}: not supported", "supported: none, linear")
    if not has_factors:
        return RopeScaling("linear", fields.number("rope.scaling.factor")) if kind == "linear" else None
    if kind == "linear":
        raise fields.error("rope.scaling.type", "is linear, and the file holds rope_freqs.weight too")
    if factors is None or len(factors) != head_dim // 2:
        found = "missing" if factors is None else f"{len(factors)} values"
        raise ConfigError(f"{fields.source}: rope_freqs.weight: {found}, head size {head_dim} needs {head_dim // 2}")
    if not all(0 < factor < math.inf for factor in factors):
        raise ConfigError(f"{fields.source}: rope_freqs.weight holds {min(factors)}..{max(factors)}, not all above 0")
    return RopeScaling("factors", max(factors), factors=tuple(factors))
