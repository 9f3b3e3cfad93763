"""ModelSpec: a model's dimensions and feature flags, one type for every supported family.

A spec describes; whether this program can run it is `program.supports(spec)`. `from_config` reads a Hugging Face
`config.json`, `from_gguf` the metadata of a GGUF file; both refuse what they do not know, by name.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched: `linear` divides them all, `llama3` only the slow ones."""

    kind: str  # linear | llama3
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context_len: int = 8192


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
