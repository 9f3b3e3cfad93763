"""Families with one feed-forward network per layer: Llama and its relatives, Phi, OLMo, Granite, GLM-4, Falcon, GPT-2,
GPT-NeoX (Pythia)."""

from __future__ import annotations

from ridgeline.model import blocks
from ridgeline.model.anatomy import Block, Matrix
from ridgeline.model.config_values import layer_windows
from ridgeline.model.families.common import (
    Config,
    Family,
    Heads,
    Stack,
    equal_share,
    grouped,
    heads,
    sliding_windows,
    stack,
    switched_windows,
    uniform,
)


def _llama(config: Config) -> Stack:
    return _llama_like(config, heads(config))


def _llama_like(config: Config, h: Heads, extra: int = 0) -> Stack:
    bias = config.flag("attention_bias")
    config.refuse(["sliding_window"])
    ffn = blocks.mlp(h.hidden, config.count("intermediate_size"), bias=config.flag("mlp_bias"))
    return uniform(grouped(h, qkv_bias=bias, o_bias=bias, extra_values=extra) + ffn + blocks.norms(2, h.hidden), h)


def _mistral(config: Config) -> Stack:
    h = heads(config)
    window = layer_windows(config, "mistral", h.layers)[0]
    ffn = blocks.mlp(h.hidden, config.count("intermediate_size"))
    return uniform(grouped(h, window) + ffn + blocks.norms(2, h.hidden), h)


def _smollm3(config: Config) -> Stack:
    h = heads(config)
    bias = config.flag("attention_bias")
    ffn = blocks.mlp(h.hidden, config.count("intermediate_size"), bias=config.flag("mlp_bias"))
    return _windowed(config, h, ffn, qkv_bias=bias, o_bias=bias)


def _qwen2(config: Config) -> Stack:
    h = heads(config)
    return _windowed(config, h, blocks.mlp(h.hidden, config.count("intermediate_size")), qkv_bias=True)


def _qwen3(config: Config) -> Stack:
    h = heads(config, own_head_dim=True)
    bias = config.flag("attention_bias")
    ffn = blocks.mlp(h.hidden, config.count("intermediate_size"))
    return _windowed(config, h, ffn, qkv_bias=bias, o_bias=bias, extra_values=2 * h.head_dim)


def _windowed(config: Config, h: Heads, ffn: Block, *, extra_values: int = 0, **biases: bool) -> Stack:
    """Pre-norm layers whose windows are switched on by `use_sliding_window`."""
    rest = ffn + blocks.norms(2, h.hidden)
    layers = [
        grouped(h, window, extra_values=extra_values, **biases) + rest for window in switched_windows(config, h.layers)
    ]
    return stack(h, layers)


def _phi3(config: Config) -> Stack:
    h = heads(config)
    ffn = blocks.mlp(h.hidden, config.count("intermediate_size"))
    config.demand("attention_bias", False, None)
    return uniform(grouped(h, config.nullable("sliding_window")) + ffn + blocks.norms(2, h.hidden), h)


def _olmo2(config: Config) -> Stack:
    """Norms after attention and MLP; head norms over all heads at once."""
    return _llama_like(config, h := heads(config), extra=(h.heads + h.kv_heads) * h.head_dim)


def _olmo3(config: Config) -> Stack:
    h = heads(config)
    kinds = config.choices("layer_types", h.layers, ("sliding_attention", "full_attention"))
    if not kinds:
        raise config.error("layer_types", "is missing")
    bias, extra = config.flag("attention_bias"), (h.heads + h.kv_heads) * h.head_dim
    rest = blocks.mlp(h.hidden, config.count("intermediate_size")) + blocks.norms(2, h.hidden)
    windows = sliding_windows(config, kinds)
    layers = [grouped(h, window, qkv_bias=bias, o_bias=bias, extra_values=extra) + rest for window in windows]
    return stack(h, layers)


def _glm4(config: Config) -> Stack:
    """Four norms a layer; `attention_bias` is on q, k and v only."""
    h = heads(config, own_head_dim=True)
    attention = grouped(h, qkv_bias=config.required_flag("attention_bias"))
    return uniform(attention + blocks.mlp(h.hidden, config.count("intermediate_size")) + blocks.norms(4, h.hidden), h)


def _falcon(config: Config) -> Stack:
    """`multi_query` is a boolean that stands for one KV head, unless the new architecture counts them."""
    hidden, num_heads = config.count("hidden_size"), config.count("num_attention_heads")
    new = config.required_flag("new_decoder_architecture")
    if new:
        kv_heads, num_norms = config.count("num_kv_heads"), config.count("num_ln_in_parallel_attn", 2)
    else:
        kv_heads = 1 if config.required_flag("multi_query") else num_heads
        num_norms = 1 if config.required_flag("parallel_attn") else 2
    config.unused("parallel_attn", "multi_query", "num_kv_heads")
    if config.count("num_key_value_heads", kv_heads) != kv_heads:  # transformers writes it since 5.25; it follows
        raise config.error("num_key_value_heads", f"is {config.get('num_key_value_heads')}, the rest says {kv_heads}")
    h = Heads(hidden, config.count("num_hidden_layers"), num_heads, kv_heads, equal_share(config, hidden, num_heads))
    bias = config.required_flag("bias")
    config.demand("alibi", False)
    ffn = blocks.mlp(hidden, config.count("ffn_hidden_size", 4 * hidden), gated=False, bias=bias)
    layer = grouped(h, qkv_bias=bias, o_bias=bias) + ffn + blocks.norms(num_norms, hidden, bias=True)
    return uniform(layer, h, norm_bias=True)


def _gpt2(config: Config) -> Stack:
    hidden, num_heads = config.count("n_embd"), config.count("n_head")
    h = Heads(hidden, config.count("n_layer"), num_heads, num_heads, equal_share(config, hidden, num_heads))
    config.unused("n_ctx")  # an older name of n_positions' value
    config.demand("add_cross_attention", False, None)
    ffn = blocks.mlp(hidden, config.count("n_inner", 4 * hidden), gated=False, bias=True)
    layer = grouped(h, qkv_bias=True, o_bias=True) + ffn + blocks.norms(2, hidden, bias=True)
    positions = Matrix("transformer.wpe", config.count("n_positions"), hidden)
    return Stack((layer,) * h.layers, blocks.norms(1, hidden, bias=True), (positions,))


def _gpt_neox(config: Config) -> Stack:
    hidden, num_heads = config.count("hidden_size"), config.count("num_attention_heads")
    h = Heads(hidden, config.count("num_hidden_layers"), num_heads, num_heads, equal_share(config, hidden, num_heads))
    config.demand("attention_bias", True, None)
    ffn = blocks.mlp(hidden, config.count("intermediate_size"), gated=False, bias=True)
    layer = grouped(h, qkv_bias=True, o_bias=True) + ffn + blocks.norms(2, hidden, bias=True)
    return uniform(layer, h, norm_bias=True)


FAMILIES = {
    "llama": Family(_llama, ("LlamaForCausalLM",)),
    "mistral": Family(_mistral, ("MistralForCausalLM", "Mistral3ForConditionalGeneration")),
    "ministral3": Family(_mistral, ("Ministral3ForCausalLM", "Mistral3ForConditionalGeneration")),
    "smollm3": Family(_smollm3, ("SmolLM3ForCausalLM",)),
    "qwen2": Family(_qwen2, ("Qwen2ForCausalLM",)),
    "qwen3": Family(_qwen3, ("Qwen3ForCausalLM",)),
    "phi3": Family(_phi3, ("Phi3ForCausalLM",)),
    "olmo2": Family(_olmo2, ("Olmo2ForCausalLM",)),
    "olmo3": Family(_olmo3, ("Olmo3ForCausalLM",)),
    "granite": Family(_llama, ("GraniteForCausalLM",)),
    "glm4": Family(_glm4, ("Glm4ForCausalLM",)),
    "falcon": Family(_falcon, ("FalconForCausalLM",), tied=True, default_context_len=2048),
    "gpt2": Family(_gpt2, ("GPT2LMHeadModel",), tied=True, context_key="n_positions", hidden_key="n_embd"),
    "gpt_neox": Family(_gpt_neox, ("GPTNeoXForCausalLM",)),
}
