"""The decoder, written once, as a flat list of ops over named buffers.

`build(spec)` reads like a forward pass and serves every family through the spec's flags; executors run the list.
Buffers are row-major, one row per token of the step (`x`, `h`, `qkv`, `q`, `attn`, `act`) or per logit row (`rows`,
`final`, `logits`). Weight names are the ones that `model/weights.py` serves.

In bf16 the buffers `h`, `q`, `attn`, `act` and `final` hold bf16 values (they feed matrix products), as
do K, V and the attention probabilities; everything else, the residual `x` first of all, stays fp32. A quantized matrix
takes the same buffers as 8-bit codes in groups as long as its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ridgeline.errors import ConfigError
from ridgeline.model.spec import ModelSpec

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True)
class Embed:
    """out[t] = weight[token_ids[t]]"""

    weight: str
    out: str


@dataclass(frozen=True)
class Norm:
    """RMSNorm: out = source / sqrt(mean(source^2) + eps) * weight"""

    source: str
    weight: str
    out: str


@dataclass(frozen=True)
class Matmul:
    """source @ concat(weights).T + concat(biases), then the epilogue.

    store: out = product. add: out += product. silu_mul: the product's first half is the gate, the second the
    value: out = silu(gate) * value.
    """

    source: str
    weights: tuple[str, ...]  # each [outputs, inputs]
    out: str
    biases: tuple[str, ...] = ()
    epilogue: Literal["store", "add", "silu_mul"] = "store"


@dataclass(frozen=True)
class RopeStore:
    """Splits `qkv` rows into q, k, v; normalizes q and k per head when named; rotates q and k by position (half-split
    pairs); stores k and v in the layer's pages at the step's slots and q in `out`."""

    layer: int
    source: str
    out: str
    q_norm: str | None = None
    k_norm: str | None = None


@dataclass(frozen=True)
class Attention:
    """Causal softmax attention over the layer's pages; `window` keys at most, None: all."""

    layer: int
    source: str
    out: str
    window: int | None = None


@dataclass(frozen=True)
class GatherRows:
    """out[r] = source[logit_rows[r]]"""

    source: str
    out: str


@dataclass(frozen=True)
class Logits:
    """out = source @ weight.T, in fp32; then sampling and scoring."""

    source: str
    weight: str
    out: str


Op = Embed | Norm | Matmul | RopeStore | Attention | GatherRows | Logits


@dataclass(frozen=True)
class Program:
    spec: ModelSpec
    ops: tuple[Op, ...]
    widths: dict[str, int]  # buffer name -> values per row


def supports(spec: ModelSpec) -> None:
    """Raises ConfigError, naming the feature, when no op of this program computes what the spec asks for."""
    if spec.architecture not in ARCHITECTURES:
        raise ConfigError(
            f"architecture {spec.architecture!r} cannot be served", hint="served: " + ", ".join(ARCHITECTURES)
        )
    if spec.num_heads % spec.num_kv_heads:
        raise ConfigError(f"{spec.num_heads} query heads do not divide over {spec.num_kv_heads} KV heads")
    if spec.head_dim % 2:
        raise ConfigError(f"head_dim {spec.head_dim} is odd, rotary embedding needs pairs")


def build(spec: ModelSpec) -> Program:
    """The forward pass of `spec`."""
    supports(spec)
    ops: list[Op] = [Embed("embed", "x")]
    for i in range(spec.num_layers):
        ops += _layer(spec, i)
    ops.append(GatherRows("x", "rows"))
    ops.append(Norm("rows", "final_norm", "final"))
    ops.append(Logits("final", "embed" if spec.tie_embeddings else "head", "logits"))
    q_width = spec.num_heads * spec.head_dim
    kv_width = spec.num_kv_heads * spec.head_dim
    widths = {
        "x": spec.hidden_size,
        "h": spec.hidden_size,
        "qkv": q_width + 2 * kv_width,
        "q": q_width,
        "attn": q_width,
        "act": spec.intermediate_size,
        "rows": spec.hidden_size,
        "final": spec.hidden_size,
        "logits": spec.vocab_size,
    }
    return Program(spec, tuple(ops), widths)


def _layer(spec: ModelSpec, i: int) -> list[Op]:
    def names(*parts: str) -> tuple[str, ...]:
        return tuple(f"layers.{i}.{p}" for p in parts)

    qkv_biases = names("q_bias", "k_bias", "v_bias") if spec.qkv_bias else ()
    q_norm, k_norm = names("q_norm", "k_norm") if spec.qk_norm else (None, None)
    return [
        Norm("x", *names("attn_norm"), "h"),
        Matmul("h", names("q", "k", "v"), "qkv", qkv_biases),
        RopeStore(i, "qkv", "q", q_norm, k_norm),
        Attention(i, "q", "attn", spec.windows[i] if spec.windows else None),
        Matmul("attn", names("o"), "x", names("o_bias") if spec.o_bias else (), "add"),
        Norm("x", *names("mlp_norm"), "h"),
        Matmul("h", names("gate", "up"), "act", names("gate_bias", "up_bias") if spec.mlp_bias else (), "silu_mul"),
        Matmul("act", names("down"), "x", names("down_bias") if spec.mlp_bias else (), "add"),
    ]


def weight_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """The shape of every weight that the program reads, by name; matrices are [outputs, inputs]."""
    hidden, inner, head = spec.hidden_size, spec.intermediate_size, spec.head_dim
    q_width, kv_width = spec.num_heads * head, spec.num_kv_heads * head
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm": (hidden,), "q": (q_width, hidden), "k": (kv_width, hidden), "v": (kv_width, hidden),
        "o": (hidden, q_width), "mlp_norm": (hidden,),
        "gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner),
    }  # fmt: skip
    if spec.qkv_bias:
        layer |= {"q_bias": (q_width,), "k_bias": (kv_width,), "v_bias": (kv_width,)}
    if spec.o_bias:
        layer["o_bias"] = (hidden,)
    if spec.mlp_bias:
        layer |= {"gate_bias": (inner,), "up_bias": (inner,), "down_bias": (hidden,)}
    if spec.qk_norm:
        layer |= {"q_norm": (head,), "k_norm": (head,)}
    shapes: dict[str, tuple[int, ...]] = {"embed": (spec.vocab_size, hidden), "final_norm": (hidden,)}
    if not spec.tie_embeddings:
        shapes["head"] = (spec.vocab_size, hidden)
    for i in range(spec.num_layers):
        shapes |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes
