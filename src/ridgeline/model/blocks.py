"""The building blocks that model families are put together from, each with the weights that its published code has.

A norm is `size` values, with a bias twice as many. Matrices are [outputs, inputs]; fused and split projections count
the same, so the split names stand for both.
"""

from __future__ import annotations

from typing import Literal

from ridgeline.model.anatomy import Attention, Block, Experts, LatentAttention, Matrix, Recurrent


def norms(count: int, size: int, *, bias: bool = False) -> Block:
    return Block(vector_values=count * size * (2 if bias else 1))


def attention(
    hidden_size: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    *,
    value_dim: int | None = None,
    kind: Literal["full", "sliding", "chunked"] = "full",
    window: int | None = None,
    qkv_bias: bool = False,
    o_bias: bool = False,
    output_gate: bool = False,
    shared_kv_matrix: bool = False,
    owns_cache: bool = True,
    extra_values: int = 0,
) -> Block:
    """Multi-head, grouped-query or multi-query attention.

    output_gate: the query projection also makes a gate of its own size. shared_kv_matrix: values are made by the key
    projection. owns_cache False: no K and V projections either. extra_values: head norms, sinks.
    """
    value_dim = value_dim or head_dim
    query = num_heads * head_dim * (2 if output_gate else 1)
    key, value = num_kv_heads * head_dim, num_kv_heads * value_dim
    matrices = [Matrix("self_attn.q_proj", query, hidden_size)]
    outputs = query
    if owns_cache:
        matrices.append(Matrix("self_attn.k_proj", key, hidden_size))
        outputs += key
    if owns_cache and not shared_kv_matrix:
        matrices.append(Matrix("self_attn.v_proj", value, hidden_size))
        outputs += value
    matrices.append(Matrix("self_attn.o_proj", hidden_size, num_heads * value_dim))
    vectors = outputs * qkv_bias + hidden_size * o_bias + extra_values
    mixer = Attention(kind if window else "full", num_heads, num_kv_heads, head_dim, value_dim, window, owns_cache)
    return Block(tuple(matrices), vectors, mixer)


def latent_attention(hidden_size: int, mixer: LatentAttention, *, q_rank: int | None, bias: bool = False) -> Block:
    """Multi-head latent attention (DeepSeek-V2); with `mixer.top_k` also the sparse indexer (DeepSeek-V3.2)."""
    heads, latent = mixer.num_heads, mixer.latent_dim
    query = heads * (mixer.nope_dim + mixer.rope_dim)
    matrices = [
        Matrix("self_attn.kv_a_proj_with_mqa", latent + mixer.rope_dim, hidden_size),
        Matrix("self_attn.kv_b_proj", heads * (mixer.nope_dim + mixer.value_dim), latent),
        Matrix("self_attn.o_proj", hidden_size, heads * mixer.value_dim),
    ]
    vectors = latent + bias * (latent + mixer.rope_dim + hidden_size)
    if q_rank is None:
        matrices.append(Matrix("self_attn.q_proj", query, hidden_size))
    else:
        matrices += [Matrix("self_attn.q_a_proj", q_rank, hidden_size), Matrix("self_attn.q_b_proj", query, q_rank)]
        vectors += q_rank + bias * q_rank
    if mixer.top_k is not None:
        assert q_rank is not None  # the indexer's queries come from the compressed query
        matrices += [
            Matrix("self_attn.indexer.wq_b", mixer.index_heads * mixer.index_dim, q_rank),
            Matrix("self_attn.indexer.wk", mixer.index_dim, hidden_size),
            Matrix("self_attn.indexer.weights_proj", mixer.index_heads, hidden_size, is_router=True),
        ]
        vectors += 2 * mixer.index_dim  # LayerNorm of the key
    return Block(tuple(matrices), vectors, mixer)


def gated_delta_net(
    hidden_size: int, num_key_heads: int, num_value_heads: int, key_dim: int, value_dim: int, conv_len: int
) -> Block:
    """Gated DeltaNet (Qwen3-Next, Qwen3.5): a [key_dim, value_dim] state per value head.

    Per token and state value: decay 1, prediction 2, correction 2, output 2 FLOPs.
    """
    keys, values = num_key_heads * key_dim, num_value_heads * value_dim
    channels = 2 * keys + values
    matrices = (
        Matrix("linear_attn.in_proj_qkvz", channels + values, hidden_size),
        Matrix("linear_attn.in_proj_ba", 2 * num_value_heads, hidden_size),
        Matrix("linear_attn.out_proj", hidden_size, values),
    )
    vectors = channels * conv_len + 2 * num_value_heads + value_dim  # convolution, dt_bias and A_log, norm
    return Block(matrices, vectors, Recurrent(num_value_heads * key_dim * value_dim, channels * conv_len, 7))


def mamba2(
    hidden_size: int,
    num_heads: int,
    head_dim: int,
    state_dim: int,
    num_groups: int,
    conv_len: int,
    *,
    conv_bias: bool,
    proj_bias: bool,
) -> Block:
    """Mamba-2: a [head_dim, state_dim] state per head. Per token and state value: update 3, output 2 FLOPs."""
    inner = num_heads * head_dim
    channels = inner + 2 * num_groups * state_dim
    projected = inner + channels + num_heads
    matrices = (Matrix("mamba.in_proj", projected, hidden_size), Matrix("mamba.out_proj", hidden_size, inner))
    vectors = channels * (conv_len + conv_bias) + 3 * num_heads + inner  # convolution, dt_bias, A_log and D, norm
    vectors += proj_bias * (projected + hidden_size)
    return Block(matrices, vectors, Recurrent(inner * state_dim, channels * conv_len, 5))


def mlp(hidden_size: int, inner: int, *, gated: bool = True, bias: bool = False, name: str = "mlp") -> Block:
    names = ("gate_proj", "up_proj") if gated else ("up_proj",)
    matrices = [Matrix(f"{name}.{n}", inner, hidden_size) for n in names]
    vectors = bias * (len(names) * inner + hidden_size)
    return Block((*matrices, Matrix(f"{name}.down_proj", hidden_size, inner)), vectors)


def moe(
    hidden_size: int,
    inner: int,
    total: int,
    active: int,
    *,
    gated: bool = True,
    bias: bool = False,
    router: str = "mlp.gate",
    router_bias: bool = False,
    shared: int = 0,
    shared_gate: bool = False,
) -> Block:
    """Routed experts of size `inner`, and shared ones of `shared` in total that every token uses."""
    expert = mlp(hidden_size, inner, gated=gated, bias=bias, name="mlp.experts")
    matrices = [Matrix(router, total, hidden_size, is_router=True)]
    if shared:
        matrices += mlp(hidden_size, shared, gated=gated, name="mlp.shared_experts").matrices
    if shared_gate:
        matrices.append(Matrix("mlp.shared_expert_gate", 1, hidden_size, is_router=True))
    return Block(
        tuple(matrices),
        total * router_bias,
        experts=Experts(total, active, expert.matrices, expert.vector_values),
    )
