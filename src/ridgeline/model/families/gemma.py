"""Gemma 2, 3 and 4: sliding and full layers in turn, norms before and after each part."""

from __future__ import annotations

from ridgeline.model import blocks
from ridgeline.model.anatomy import Block, Matrix
from ridgeline.model.families.common import (
    Config,
    Family,
    Heads,
    Stack,
    grouped,
    heads,
    periodic,
    sliding_windows,
    stack,
)
from ridgeline.model.fields import short

_KINDS = ("sliding_attention", "full_attention")
_FULL_EVERY_2 = 2  # Gemma 2's code fixes it


def _kinds(config: Config, num_layers: int, period: int | None) -> list[str]:
    """`layer_types`, else every `period`-th layer full."""
    given = config.choices("layer_types", num_layers, _KINDS)
    if given:
        config.unused("sliding_window_pattern", "_sliding_window_pattern")
        return given
    return periodic(num_layers, period or config.count("sliding_window_pattern"), *_KINDS)


def _layers(config: Config, h: Heads, kinds: list[str], extra: int) -> Stack:
    bias = config.flag("attention_bias")
    rest = blocks.mlp(h.hidden, config.count("intermediate_size")) + blocks.norms(4, h.hidden)
    windows = sliding_windows(config, kinds)
    layers = [grouped(h, window, qkv_bias=bias, o_bias=bias, extra_values=extra) + rest for window in windows]
    return stack(h, layers)


def _gemma2(config: Config) -> Stack:
    h = heads(config, own_head_dim=True)
    return _layers(config, h, _kinds(config, h.layers, _FULL_EVERY_2), 0)


def _gemma3(config: Config) -> Stack:
    h = heads(config, own_head_dim=True)
    return _layers(config, h, _kinds(config, h.layers, None), 2 * h.head_dim)


def _gemma4(config: Config) -> Stack:
    """Full layers have heads of another size and number, in some models values made by the key projection. In the
    small models the last layers read the cache of an earlier layer, and each layer has an input of its own."""
    h = heads(config, own_head_dim=True)
    kinds = config.choices("layer_types", h.layers, _KINDS)
    if not kinds:
        raise config.error("layer_types", "is missing")
    k_is_v = config.required_flag("attention_k_eq_v")
    full = _gemma4_full_heads(config, h, kinds, k_is_v)
    first_shared = h.layers - (config.nullable("num_kv_shared_layers") or 0)
    ffn, wide_ffn = _gemma4_ffn(config, h, 1), _gemma4_ffn(config, h, 1 + config.required_flag("use_double_wide_mlp"))
    per_layer, shared, lookups = _per_layer_inputs(config, h)
    bias = config.flag("attention_bias")
    layers = []
    for i, window in enumerate(sliding_windows(config, kinds)):
        own, has_cache = h if window else full, i < first_shared
        attention = grouped(
            own,
            window,
            qkv_bias=bias,
            o_bias=bias,
            shared_kv_matrix=k_is_v and not window,
            owns_cache=has_cache,
            extra_values=own.head_dim * (2 if has_cache else 1),
        )
        layers.append(attention + (ffn if has_cache else wide_ffn) + per_layer)
    return Stack(tuple(layers), shared + blocks.norms(1, h.hidden), lookups)


def _gemma4_full_heads(config: Config, h: Heads, kinds: list[str], k_is_v: bool) -> Heads:
    """The heads of full layers: under keys of their own, or, since transformers 5.25, in `per_layer_config`, an object
    from the numbers of layers to what they have of their own."""
    own_sizes = config.table("per_layer_config")
    if not own_sizes:
        kv_heads = (config.nullable("num_global_key_value_heads") or h.kv_heads) if k_is_v else h.kv_heads
        config.unused("num_global_key_value_heads")
        return Heads(h.hidden, h.layers, h.heads, kv_heads, config.count("global_head_dim"))
    full_layers = [i for i, kind in enumerate(kinds) if kind == "full_attention"]
    sizes = next(iter(own_sizes.values()))
    if not isinstance(sizes, dict) or {number.lstrip("0") or "0": own for number, own in own_sizes.items()} != {
        str(i): sizes for i in full_layers
    }:
        raise config.error("per_layer_config", f"must give each full layer the same sizes, is {short(own_sizes)}")
    own = Config(sizes, f"{config.source}: per_layer_config")
    kv_heads = own.count("num_key_value_heads", h.kv_heads)
    full = Heads(h.hidden, h.layers, h.heads, kv_heads, own.count("head_dim", h.head_dim))
    for key, value in own.unread().items():
        raise own.error(key, f"is {short(value)}: this variant is unknown")
    return full


def _gemma4_ffn(config: Config, h: Heads, width: int) -> Block:
    """A dense MLP; in the MoE model experts beside it, with three norms more, a router scale and one per expert."""
    ffn = blocks.mlp(h.hidden, width * config.count("intermediate_size")) + blocks.norms(4, h.hidden)
    if not config.required_flag("enable_moe_block"):
        config.unused("num_experts", "top_k_experts", "moe_intermediate_size")
        return ffn
    total, inner = config.count("num_experts"), config.count("moe_intermediate_size")
    experts = blocks.moe(h.hidden, inner, total, config.count("top_k_experts"), router="router.proj")
    return ffn + experts + Block(vector_values=4 * h.hidden + total)


def _per_layer_inputs(config: Config, h: Heads) -> tuple[Block, Block, tuple[Matrix, ...]]:
    """What each layer has, what is there once, and the table of inputs per token and layer."""
    size = config.nullable("hidden_size_per_layer_input")
    if not size:
        config.unused("vocab_size_per_layer_input")
        return Block(), Block(), ()
    gate = Matrix("per_layer_input_gate", size, h.hidden)
    layer = Block((gate, Matrix("per_layer_projection", h.hidden, size)), h.hidden)
    shared = Block((Matrix("per_layer_model_projection", h.layers * size, h.hidden),), size)
    table = Matrix("embed_tokens_per_layer", config.count("vocab_size_per_layer_input"), h.layers * size)
    return layer, shared, (table,)


FAMILIES = {
    "gemma2": Family(_gemma2, ("Gemma2ForCausalLM",), tied=True),
    "gemma3_text": Family(_gemma3, ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"), tied=True),
    "gemma4_text": Family(_gemma4, ("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"), tied=True),
}
