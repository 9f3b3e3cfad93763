"""Gemma 2, 3 and 4: sliding and full layers in turn, norms before and after each part."""

from __future__ import annotations

from ridgeline.model import blocks
from ridgeline.model.anatomy import Block
from ridgeline.model.families.common import (
    Config,
    Family,
    Heads,
    Stack,
    grouped,
    heads,
    periodic,
    sliding_windows,
)

_KINDS = ("sliding_attention", "full_attention")
_FULL_EVERY_2 = 2  # Gemma 2's code fixes it


def _kinds(config: Config, num_layers: int, period: int | None) -> list[str]:
    """`layer_types`, else every `period`-th layer full."""
    given = config.choices("layer_types", num_layers, _KINDS)
    if given:
        config.get("sliding_window_pattern"), config.get("_sliding_window_pattern")
        return given
    return periodic(num_layers, period or config.count("sliding_window_pattern"), *_KINDS)


def _stack(config: Config, h: Heads, kinds: list[str], extra: int) -> Stack:
    bias = config.flag("attention_bias")
    rest = blocks.mlp(h.hidden, config.count("intermediate_size")) + blocks.norms(4, h.hidden)
    windows = sliding_windows(config, kinds)
    layers = [grouped(h, window, qkv_bias=bias, o_bias=bias, extra_values=extra) + rest for window in windows]
    return Stack(tuple(layers), h.hidden)


def _gemma2(config: Config) -> Stack:
    h = heads(config, own_head_dim=True)
    return _stack(config, h, _kinds(config, h.layers, _FULL_EVERY_2), 0)


def _gemma3(config: Config) -> Stack:
    h = heads(config, own_head_dim=True)
    return _stack(config, h, _kinds(config, h.layers, None), 2 * h.head_dim)


def _gemma4(config: Config) -> Stack:
    """Full layers have heads of another size and number, and values made by the key projection."""
    h = heads(config, own_head_dim=True)
    kinds = config.choices("layer_types", h.layers, _KINDS)
    if not kinds:
        raise config.error("layer_types", "is missing")
    for key in ("hidden_size_per_layer_input", "num_kv_shared_layers"):
        if config.nullable(key):
            raise config.error(key, f"is {config.get(key)}: per-layer inputs and shared caches are unknown yet")
    config.get("vocab_size_per_layer_input")
    config.demand("use_double_wide_mlp", False, None)
    shared = config.required_flag("attention_k_eq_v")
    kv_heads = config.nullable("num_global_key_value_heads") or h.kv_heads
    full = Heads(h.hidden, h.layers, h.heads, kv_heads if shared else h.kv_heads, config.count("global_head_dim"))
    rest = _gemma4_ffn(config, h)
    bias = config.flag("attention_bias")
    layers = []
    for window in sliding_windows(config, kinds):
        own = h if window else full
        layers.append(
            grouped(
                own,
                window,
                qkv_bias=bias,
                o_bias=bias,
                shared_kv_matrix=shared and not window,
                extra_values=2 * own.head_dim,
            )
            + rest
        )
    return Stack(tuple(layers), h.hidden)


def _gemma4_ffn(config: Config, h: Heads) -> Block:
    """A dense MLP; in the MoE model experts beside it, with three norms more, a router scale and one per expert."""
    ffn = blocks.mlp(h.hidden, config.count("intermediate_size")) + blocks.norms(4, h.hidden)
    if not config.required_flag("enable_moe_block"):
        for key in ("num_experts", "top_k_experts", "moe_intermediate_size"):
            config.get(key)
        return ffn
    total = config.count("num_experts")
    experts = blocks.moe(
        h.hidden,
        config.count("moe_intermediate_size"),
        total,
        config.count("top_k_experts"),
        router="router.proj",
    )
    return ffn + experts + Block(vector_values=4 * h.hidden + total)


FAMILIES = {
    "gemma2": Family(_gemma2, ("Gemma2ForCausalLM",), tied=True),
    "gemma3_text": Family(_gemma3, ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"), tied=True),
    "gemma4_text": Family(_gemma4, ("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"), tied=True),
}
