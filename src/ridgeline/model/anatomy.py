"""What a model is made of, for planning: every matrix, every vector, and what each layer keeps per sequence.

A `ModelSpec` holds what the decoder program needs to compute a model and covers the families that can be served; an
`Anatomy` holds what decides memory and work, and covers many more. It is built from `config.json` by
`model/families`; `cost/` turns it into parameters, bytes and FLOPs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Matrix:
    """A weight [outputs, inputs] that multiplies activations; `name` is its module's, as checkpoints spell it."""

    name: str
    outputs: int
    inputs: int
    is_router: bool = False  # kept in 16 bits by every quantized format

    @property
    def num_values(self) -> int:
        return self.outputs * self.inputs


@dataclass(frozen=True)
class Experts:
    """`total` equal sets of weights in a layer, of which a token uses `active`. The matrices are one expert's."""

    total: int
    active: int
    matrices: tuple[Matrix, ...]
    vector_values: int = 0

    @property
    def num_values(self) -> int:
        """Of one expert."""
        return sum(m.num_values for m in self.matrices) + self.vector_values


@dataclass(frozen=True)
class Attention:
    """Softmax attention over cached keys and values.

    `window`: a query sees that many keys at most. chunked: only keys of its own chunk of that length.
    """

    kind: Literal["full", "sliding", "chunked"]
    num_heads: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None = None
    owns_cache: bool = True  # False: reads the K and V of an earlier layer


@dataclass(frozen=True)
class LatentAttention:
    """MLA: caches one latent of `latent_dim` and one rotary key of `rope_dim` per token, for all heads.

    `top_k`: a query attends to that many keys, chosen by an indexer that caches a key of `index_dim` per token.
    """

    num_heads: int
    latent_dim: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    top_k: int | None = None
    index_heads: int = 0
    index_dim: int = 0
    kind: Literal["mla"] = "mla"


@dataclass(frozen=True)
class Recurrent:
    """A state of fixed size per sequence: fp32 `state_values` and 16-bit `conv_values` of the short convolution."""

    state_values: int
    conv_values: int
    flops_per_state_value: int  # to update and read the state, per token
    kind: Literal["recurrent"] = "recurrent"


Mixer = Attention | LatentAttention | Recurrent


@dataclass(frozen=True)
class Block:
    """A part of a layer, or a whole one. `vector_values` counts norms, biases and convolutions: never quantized."""

    matrices: tuple[Matrix, ...] = ()
    vector_values: int = 0
    mixer: Mixer | None = None
    experts: Experts | None = None

    def __add__(self, other: Block) -> Block:
        return Block(
            self.matrices + other.matrices,
            self.vector_values + other.vector_values,
            self.mixer or other.mixer,
            self.experts or other.experts,
        )

    @property
    def num_values(self) -> int:
        experts = self.experts.total * self.experts.num_values if self.experts else 0
        return sum(m.num_values for m in self.matrices) + self.vector_values + experts

    @property
    def num_active_values(self) -> int:
        experts = self.experts.active * self.experts.num_values if self.experts else 0
        return sum(m.num_values for m in self.matrices) + self.vector_values + experts


@dataclass(frozen=True)
class Anatomy:
    """`shared` holds what is there once, beside the layers: the last norm above all. `lookups` are tables of which a
    token reads one row, beside the embedding: learned positions, per-layer inputs."""

    architecture: str
    vocab_size: int
    hidden_size: int
    max_context_len: int
    tied: bool  # the output matrix is the input embedding table
    layers: tuple[Block, ...]
    shared: Block
    lookups: tuple[Matrix, ...] = ()
    stored_dtype: str = "bf16"  # of what is not quantized
    assumptions: tuple[str, ...] = ()  # sentences: what the description takes for granted or leaves out
    warnings: tuple[str, ...] = ()  # sentences: keys that are unknown and were passed over
    quantization: Mapping[str, Any] = field(default_factory=dict)  # `quantization_config` as it stands

    @property
    def embedding(self) -> Matrix:
        return Matrix("model.embed_tokens", self.vocab_size, self.hidden_size)

    @property
    def head(self) -> Matrix:
        return Matrix("lm_head", self.vocab_size, self.hidden_size)
