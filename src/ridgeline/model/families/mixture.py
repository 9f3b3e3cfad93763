"""Mixtures of experts with ordinary attention: Mixtral, OLMoE, Qwen3-MoE, GLM-4.5, gpt-oss, Llama 4, MiniMax-M2,
MiMo-V2-Flash, Granite MoE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ridgeline.model import blocks
from ridgeline.model.anatomy import Block
from ridgeline.model.families.common import (
    Config,
    Family,
    Heads,
    Stack,
    grouped,
    heads,
    sliding_windows,
    stack,
    switched_windows,
    uniform,
)


def _active(config: Config, total: int, key: str = "num_experts_per_tok") -> int:
    active = config.count(key)
    if active > total:
        raise config.error(key, f"is {active}, there are {total} experts")
    return active


def _mixtral(config: Config) -> Stack:
    h = heads(config)
    total = config.count_under("num_local_experts", "num_experts")
    ffn = blocks.moe(h.hidden, config.count("intermediate_size"), total, _active(config, total))
    return uniform(grouped(h, config.nullable("sliding_window")) + ffn + blocks.norms(2, h.hidden), h)


def _granite_moe(config: Config) -> Stack:
    h = heads(config)
    total, bias = config.count_under("num_local_experts", "num_experts"), config.flag("attention_bias")
    ffn = blocks.moe(h.hidden, config.count("intermediate_size"), total, _active(config, total))
    return uniform(grouped(h, qkv_bias=bias, o_bias=bias) + ffn + blocks.norms(2, h.hidden), h)


def _olmoe(config: Config) -> Stack:
    h = heads(config)
    total, bias = config.count_under("num_experts", "num_local_experts"), config.flag("attention_bias")
    ffn = blocks.moe(h.hidden, config.count("intermediate_size"), total, _active(config, total))
    attention = grouped(h, qkv_bias=bias, o_bias=bias, extra_values=(h.heads + h.kv_heads) * h.head_dim)
    return uniform(attention + ffn + blocks.norms(2, h.hidden), h)


def _qwen3_moe(config: Config) -> Stack:
    h = heads(config, own_head_dim=True)
    bias = config.flag("attention_bias")
    ffns = sparse_ffns(config, h)
    layers = [
        grouped(h, window, qkv_bias=bias, o_bias=bias, extra_values=2 * h.head_dim) + ffn + blocks.norms(2, h.hidden)
        for window, ffn in zip(switched_windows(config, h.layers), ffns, strict=True)
    ]
    return stack(h, layers)


def sparse_ffns(config: Config, h: Heads, *, shared: int = 0) -> list[Block]:
    """Qwen's: experts in every `decoder_sparse_step`-th layer that is not in `mlp_only_layers`."""
    step, dense_layers = config.count("decoder_sparse_step", 1), config.items("mlp_only_layers")
    total = config.count_under("num_experts", "num_local_experts")
    inner = config.count("moe_intermediate_size")
    sparse = blocks.moe(h.hidden, inner, total, _active(config, total), shared=shared, shared_gate=shared > 0)
    dense_size = config.get("intermediate_size")  # of the dense layers only
    flags = [i not in dense_layers and (i + 1) % step == 0 for i in range(h.layers)]
    if not all(flags) and dense_size is None:
        raise config.error("intermediate_size", "is missing, and some layers are dense")
    dense = Block() if all(flags) else blocks.mlp(h.hidden, config.count("intermediate_size"))
    return [sparse if flag else dense for flag in flags]


def leading_dense(config: Config, hidden: int, num_layers: int) -> list[Block]:
    """DeepSeek's and GLM's: `first_k_dense_replace` dense layers, then experts with shared ones."""
    total = config.count_under("n_routed_experts", "num_experts", "num_local_experts")
    inner = config.count("moe_intermediate_size")
    config.demand("moe_layer_freq", 1)
    kinds = config.choices("mlp_layer_types", num_layers, ("dense", "sparse"))
    if not kinds:
        first = config.count("first_k_dense_replace", minimum=0)
        kinds = ["dense" if i < first else "sparse" for i in range(num_layers)]
    config.unused("first_k_dense_replace")
    shared = inner * (config.nullable("n_shared_experts") or 0)
    bias = config.flag("mlp_bias")
    dense = blocks.mlp(hidden, config.count("intermediate_size"), bias=bias)
    sparse = blocks.moe(hidden, inner, total, _active(config, total), shared=shared, bias=bias)
    return [dense if kind == "dense" else sparse for kind in kinds]


def _glm4_moe(config: Config) -> Stack:
    h = heads(config, own_head_dim=True)
    extra = 2 * h.head_dim * config.required_flag("use_qk_norm")
    attention = grouped(h, qkv_bias=config.required_flag("attention_bias"), extra_values=extra)
    attention += blocks.norms(2, h.hidden)
    return stack(h, (attention + ffn for ffn in leading_dense(config, h.hidden, h.layers)))


def _minimax_m2(config: Config) -> Stack:
    h = heads(config, own_head_dim=True)
    config.demand("use_qk_norm", True)
    config.demand("qk_norm_type", "per_layer")
    config.demand("shared_intermediate_size", 0, None)
    config.demand("attn_type_list", [1] * h.layers)
    total = config.count_under("num_local_experts", "num_experts")
    ffn = blocks.moe(h.hidden, config.count("intermediate_size"), total, _active(config, total))
    attention = grouped(h, extra_values=(h.heads + h.kv_heads) * h.head_dim)
    return uniform(attention + ffn + blocks.norms(2, h.hidden), h)


def _gpt_oss(config: Config) -> Stack:
    """Biases everywhere, and a learned attention sink per head."""
    h = heads(config, own_head_dim=True)
    bias, total = config.required_flag("attention_bias"), config.count_under("num_local_experts", "num_experts")
    active = _active(config, total)
    config.demand("experts_per_token", active)  # the same number under its older name
    ffn = blocks.moe(
        h.hidden, config.count("intermediate_size"), total, active, bias=True, router="mlp.router", router_bias=True
    )
    kinds = config.choices("layer_types", h.layers, ("sliding_attention", "full_attention"))
    if not kinds:
        raise config.error("layer_types", "is missing")
    rest = ffn + blocks.norms(2, h.hidden)
    windows = sliding_windows(config, kinds)
    layers = [grouped(h, window, qkv_bias=bias, o_bias=bias, extra_values=h.heads) + rest for window in windows]
    return stack(h, layers)


def _llama4(config: Config) -> Stack:
    """Chunked attention, full in every fourth layer (the one without rotation); head norms have no weights."""
    h = heads(config, own_head_dim=True)
    step, total = config.count("interleave_moe_layer_step"), config.count_under("num_local_experts", "num_experts")
    inner, bias = config.count("intermediate_size"), config.flag("attention_bias")
    sparse = blocks.moe(h.hidden, inner, total, _active(config, total), router="feed_forward.router", shared=inner)
    dense = blocks.mlp(h.hidden, config.count("intermediate_size_mlp"))
    chunk = config.nullable("attention_chunk_size")
    moe_layers = config.items("moe_layers") or range(step - 1, h.layers, step)
    config.unused("use_qk_norm")
    layers = []
    for i, rotates in enumerate(_rotated(config, h.layers)):
        attention = grouped(h, chunk if rotates else None, kind="chunked", qkv_bias=bias, o_bias=bias)
        layers.append(attention + (sparse if i in moe_layers else dense) + blocks.norms(2, h.hidden))
    return stack(h, layers)


def _rotated(config: Config, num_layers: int) -> list[bool]:
    kinds = config.choices("layer_types", num_layers, ("chunked_attention", "full_attention"))
    if kinds:
        return [kind == "chunked_attention" for kind in kinds]
    flags = config.items("no_rope_layers")  # 1: with rotation, in spite of the name
    if flags and len(flags) != num_layers:
        raise config.error("no_rope_layers", f"has {len(flags)} entries for {num_layers} layers")
    interval = config.count("no_rope_layer_interval", 4)
    return [bool(f) for f in flags] or [(i + 1) % interval != 0 for i in range(num_layers)]


def _mimo_v2(config: Config) -> Stack:
    """Full and sliding layers have their own head counts and sizes; values are smaller than keys."""
    full = heads(config, own_head_dim=True)
    if config.get("layer_types") is not None:
        return _mimo_v2_of_transformers(config, full)
    swa = Heads(
        full.hidden,
        full.layers,
        config.count("swa_num_attention_heads"),
        config.count("swa_num_key_value_heads"),
        config.count("swa_head_dim"),
    )
    value_dims = config.count("v_head_dim"), config.count("swa_v_head_dim")
    sinks = config.required_flag("add_full_attention_sink_bias"), config.required_flag("add_swa_attention_sink_bias")
    window = config.count("sliding_window")
    config.demand("sliding_window_size", window)
    config.unused("attention_chunk_size")
    config.demand("attention_bias", False)
    config.demand("n_shared_experts", None, 0)
    total = config.count_under("n_routed_experts", "num_experts", "num_local_experts")
    full_layer, swa_layer = (
        grouped(h, w, value_dim=value_dim, extra_values=h.heads * has_sinks)
        for h, w, value_dim, has_sinks in zip((full, swa), (None, window), value_dims, sinks, strict=True)
    )
    slides, routes = _bits(config, "hybrid_layer_pattern", full), _bits(config, "moe_layer_freq", full)
    return _mimo_v2_stack(config, full, [swa_layer if bit else full_layer for bit in slides], routes, total)


def _mimo_v2_of_transformers(config: Config, full: Heads) -> Stack:
    """The form that transformers writes: its code, not the config, gives sliding layers sinks and double KV heads."""
    swa = replace(full, kv_heads=2 * full.kv_heads)
    kinds = config.choices("layer_types", full.layers, ("sliding_attention", "full_attention"))
    value_dim, bias = config.count("v_head_dim"), config.flag("attention_bias")
    attention = [
        grouped(swa, window, value_dim=value_dim, qkv_bias=bias, extra_values=swa.heads)
        if window
        else grouped(full, value_dim=value_dim, qkv_bias=bias)
        for window in sliding_windows(config, kinds)
    ]
    ffns = config.choices("mlp_layer_types", full.layers, ("dense", "sparse"))
    if not kinds or not ffns:
        raise config.error("layer_types and mlp_layer_types", "must both be there")
    total = config.count_under("n_routed_experts", "num_experts", "num_local_experts")
    return _mimo_v2_stack(config, full, attention, [kind == "sparse" for kind in ffns], total)


def _mimo_v2_stack(config: Config, h: Heads, attention: list[Block], routes: Sequence[int], total: int) -> Stack:
    sparse = blocks.moe(h.hidden, config.count("moe_intermediate_size"), total, _active(config, total))
    dense = blocks.mlp(h.hidden, config.count("intermediate_size"))
    ffns = (sparse if flag else dense for flag in routes)
    norms = blocks.norms(2, h.hidden)
    return stack(h, (mixer + ffn + norms for mixer, ffn in zip(attention, ffns, strict=True)))


def _bits(config: Config, key: str, h: Heads) -> list[int]:
    bits = config.items(key)
    if len(bits) != h.layers or any(bit not in (0, 1) for bit in bits):
        raise config.error(key, f"must be {h.layers} of 0 and 1, has {len(bits)}")
    return bits


FAMILIES = {
    "mixtral": Family(_mixtral, ("MixtralForCausalLM",)),
    "granitemoe": Family(_granite_moe, ("GraniteMoeForCausalLM",)),
    "olmoe": Family(_olmoe, ("OlmoeForCausalLM",)),
    "qwen3_moe": Family(_qwen3_moe, ("Qwen3MoeForCausalLM",)),
    "glm4_moe": Family(_glm4_moe, ("Glm4MoeForCausalLM",)),
    "minimax_m2": Family(_minimax_m2, ("MiniMaxM2ForCausalLM",)),
    "gpt_oss": Family(_gpt_oss, ("GptOssForCausalLM",)),
    "llama4_text": Family(_llama4, ("Llama4ForCausalLM", "Llama4ForConditionalGeneration"), tied=False),
    "mimo_v2_flash": Family(_mimo_v2, ("MiMoV2FlashForCausalLM",)),
}
