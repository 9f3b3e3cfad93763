"""Recurrent layers among attention layers: Qwen3-Next, Qwen3.5, Granite 4, Nemotron-H."""

from __future__ import annotations

from ridgeline.model import blocks
from ridgeline.model.anatomy import Block
from ridgeline.model.families.common import Config, Family, Heads, Stack, grouped, heads, periodic, stack
from ridgeline.model.families.mixture import sparse_ffns

_PATTERN = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}  # Nemotron-H's letters
_LAYER_TYPES = {"linear_attention": "mamba", "full_attention": "attention", "mamba": "mamba", "attention": "attention"}
_NEMOTRON_TYPES = {**_LAYER_TYPES, "moe": "moe", "mlp": "mlp"}


def _qwen3_next(config: Config) -> Stack:
    h = heads(config, own_head_dim=True)
    ffns = sparse_ffns(config, h, shared=config.count("shared_expert_intermediate_size"))
    return _gated_delta_stack(config, h, ffns)


def _qwen3_5(config: Config) -> Stack:
    h = heads(config, own_head_dim=True)
    return _gated_delta_stack(config, h, [blocks.mlp(h.hidden, config.count("intermediate_size"))] * h.layers)


def _gated_delta_stack(config: Config, h: Heads, ffns: list[Block]) -> Stack:
    """Gated DeltaNet with gated full attention in some layers."""
    linear = blocks.gated_delta_net(
        h.hidden,
        config.count("linear_num_key_heads"),
        config.count("linear_num_value_heads"),
        config.count("linear_key_head_dim"),
        config.count("linear_value_head_dim"),
        config.count("linear_conv_kernel_dim"),
    )
    bias = config.flag("attention_bias")
    config.demand("attn_output_gate", True)
    full = grouped(h, qkv_bias=bias, o_bias=bias, output_gate=True, extra_values=2 * h.head_dim)
    kinds = config.choices("layer_types", h.layers, ("linear_attention", "full_attention"))
    if not kinds or config.get("full_attention_interval") is not None:
        interval = periodic(h.layers, config.count("full_attention_interval"), "linear_attention", "full_attention")
        if kinds and kinds != interval:
            raise config.error("full_attention_interval", "does not agree with layer_types")
        kinds = interval
    norms = blocks.norms(2, h.hidden)
    mixers = [linear if kind == "linear_attention" else full for kind in kinds]
    return stack(h, (mixer + ffn + norms for mixer, ffn in zip(mixers, ffns, strict=True)))


def _granite_hybrid(config: Config) -> Stack:
    """Mamba-2 or attention, then experts beside an MLP that every token uses."""
    h = heads(config)
    bias, total = config.flag("attention_bias"), config.count("num_local_experts", minimum=0)
    ffn = blocks.mlp(h.hidden, config.count("shared_intermediate_size"), name="shared_mlp") + blocks.norms(2, h.hidden)
    inner, active = config.count("intermediate_size"), config.count("num_experts_per_tok", minimum=0)
    if total:
        ffn += blocks.moe(h.hidden, inner, total, active, router="block_sparse_moe.router")
    kinds = config.choices("layer_types", h.layers, tuple(_LAYER_TYPES))
    if not kinds:
        raise config.error("layer_types", "is missing")
    mamba = blocks.mamba2(
        h.hidden,
        config.count("mamba_n_heads"),
        config.count("mamba_d_head"),
        config.count("mamba_d_state"),
        config.count("mamba_n_groups"),
        config.count("mamba_d_conv"),
        conv_bias=config.required_flag("mamba_conv_bias"),
        proj_bias=config.required_flag("mamba_proj_bias"),
    )
    attention = grouped(h, qkv_bias=bias, o_bias=bias)
    return stack(h, ((mamba if _LAYER_TYPES[kind] == "mamba" else attention) + ffn for kind in kinds))


def _nemotron_h(config: Config) -> Stack:
    """Each layer is one part: Mamba-2, attention, MLP or experts, with one norm. MLPs are not gated."""
    types = config.items("layers_block_type")  # transformers 5's form of the pattern, which alone says how many
    h = heads(config, own_head_dim=True, num_layers=len(types) or None)
    bias, mlp_bias = config.flag("attention_bias"), config.flag("mlp_bias")
    kinds = [_NEMOTRON_TYPES[kind] for kind in config.choices("layers_block_type", h.layers, tuple(_NEMOTRON_TYPES))]
    kinds = kinds or _nemotron_kinds(config, h.layers)
    mamba = blocks.mamba2(
        h.hidden,
        config.count("mamba_num_heads"),
        config.count("mamba_head_dim"),
        config.count("ssm_state_size"),
        config.count("n_groups"),
        config.count("conv_kernel"),
        conv_bias=config.required_flag("use_conv_bias"),
        proj_bias=config.required_flag("use_bias"),
    )
    config.demand("mamba_proj_bias", config.get("use_bias"))
    config.demand("sliding_window", None)
    config.demand("moe_latent_size", None)
    parts = {
        "mamba": mamba,
        "attention": grouped(h, qkv_bias=bias, o_bias=bias),
        "mlp": blocks.mlp(h.hidden, config.count("intermediate_size"), gated=False, bias=mlp_bias),
        "moe": _nemotron_experts(config, h.hidden, mlp_bias) if "moe" in kinds else Block(),
    }
    return stack(h, (parts[kind] + blocks.norms(1, h.hidden) for kind in kinds))


def _nemotron_experts(config: Config, hidden: int, bias: bool) -> Block:
    config.demand("n_shared_experts", 1)
    return blocks.moe(
        hidden,
        config.count("moe_intermediate_size"),
        config.count("n_routed_experts"),
        config.count("num_experts_per_tok"),
        gated=False,
        bias=bias,
        shared=config.count("moe_shared_expert_intermediate_size"),
    )


def _nemotron_kinds(config: Config, num_layers: int) -> list[str]:
    pattern = config.text("hybrid_override_pattern")
    if not pattern:
        raise config.error("hybrid_override_pattern", "is missing")
    unknown = set(pattern) - set(_PATTERN)
    if unknown or len(pattern) != num_layers:
        problem = f"has {len(pattern)} layers of {num_layers}" if not unknown else f"has unknown letters {unknown}"
        raise config.error("hybrid_override_pattern", problem)
    return [_PATTERN[letter] for letter in pattern]


FAMILIES = {
    "qwen3_next": Family(_qwen3_next, ("Qwen3NextForCausalLM",)),
    "qwen3_5_text": Family(_qwen3_5, ("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration")),
    "qwen3_5_moe_text": Family(_qwen3_next, ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration")),
    "granitemoehybrid": Family(_granite_hybrid, ("GraniteMoeHybridForCausalLM",)),
    "nemotron_h": Family(_nemotron_h, ("NemotronHForCausalLM",)),
}
