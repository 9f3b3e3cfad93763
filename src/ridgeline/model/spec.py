"""ModelSpec: a model's dimensions and feature flags, one type for every supported family.

A spec describes; whether this program can run it is `program.supports(spec)`. `from_config` reads a Hugging Face
`config.json`, `gguf_spec.from_gguf` the metadata of a GGUF file; both read or refuse every key that changes results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ridgeline.config import nearest
from ridgeline.model.config_values import layer_windows, stored_dtype
from ridgeline.model.families import is_known
from ridgeline.model.fields import Fields, short
from ridgeline.model.known_keys import passed_over
from ridgeline.model.rope_scaling import RopeScaling, config_rope


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
    warnings: tuple[str, ...] = field(default=(), compare=False)  # sentences: what the files say that is not followed

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


def from_config(
    config: Mapping[str, Any], *, source: str, generation_config: Mapping[str, Any] | None = None
) -> ModelSpec:
    """The spec of a Hugging Face `config.json`; `source` names the file in errors.

    Raises ConfigError for an unknown architecture, a missing or impossible value, and for every key that changes what
    the model computes and is not read (`known_keys`).
    """
    fields = Fields(config, source)
    architecture = _architecture(fields)
    if fields.text("hidden_act", "silu") not in ("silu", "swish"):
        raise fields.error("hidden_act", f"is {fields.get('hidden_act')!r}: only silu is supported")
    hidden_size, num_layers = fields.count("hidden_size"), fields.count("num_hidden_layers")
    num_heads = fields.count("num_attention_heads")
    if architecture == "qwen3" and fields.get("head_dim") is None:
        raise fields.error("head_dim", "is missing")
    theta, scaling = config_rope(fields)
    attention_bias = fields.flag("attention_bias")
    spec = ModelSpec(
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
    return replace(spec, warnings=passed_over(fields, serving=True))


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


def _eos(fields: Fields, generation_config: Mapping[str, Any] | None) -> tuple[int, ...]:
    generation = Fields(generation_config or {}, f"{fields.source}: generation_config")
    return tuple(dict.fromkeys(fields.token_ids("eos_token_id") + generation.token_ids("eos_token_id")))
