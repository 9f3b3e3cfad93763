"""Multi-head latent attention: DeepSeek V2, V3, V3.2, Kimi-K2, GLM-4.7-Flash, GLM-5."""

from __future__ import annotations

from ridgeline.model import blocks
from ridgeline.model.anatomy import LatentAttention
from ridgeline.model.families.common import Config, Family, Stack
from ridgeline.model.families.mixture import leading_dense


def _deepseek(config: Config) -> Stack:
    return _latent(config, None)


def _deepseek_sparse(config: Config) -> Stack:
    num_layers = config.count("num_hidden_layers")
    config.demand("indexer_types", ["full"] * num_layers)  # others reuse an earlier layer's choice
    config.demand("layer_types", ["indexed_attention"] * num_layers)
    return _latent(config, config.count("index_topk"))


def _latent(config: Config, top_k: int | None) -> Stack:
    hidden, num_layers = config.count("hidden_size"), config.count("num_hidden_layers")
    mixer = LatentAttention(
        config.count("num_attention_heads"),
        config.count("kv_lora_rank"),
        config.count("qk_rope_head_dim"),
        config.count("qk_nope_head_dim"),
        config.count("v_head_dim"),
        top_k,
        config.count("index_n_heads") if top_k else 0,
        config.count("index_head_dim") if top_k else 0,
    )
    config.unused("num_key_value_heads", "head_dim")
    rank = config.nullable("q_lora_rank")
    if rank is None and top_k:
        raise config.error("q_lora_rank", "is null: the indexer needs a compressed query")
    attention = blocks.latent_attention(hidden, mixer, q_rank=rank, bias=config.flag("attention_bias"))
    attention += blocks.norms(2, hidden)
    layers = tuple(attention + ffn for ffn in leading_dense(config, hidden, num_layers))
    return Stack(layers, blocks.norms(1, hidden))


FAMILIES = {
    "deepseek_v2": Family(_deepseek, ("DeepseekV2ForCausalLM",)),
    "deepseek_v3": Family(_deepseek, ("DeepseekV3ForCausalLM",)),
    "kimi_k2": Family(_deepseek, ("DeepseekV3ForCausalLM", "KimiK25ForConditionalGeneration")),
    "deepseek_v32": Family(_deepseek_sparse, ("DeepseekV32ForCausalLM",)),
    "glm4_moe_lite": Family(_deepseek, ("Glm4MoeLiteForCausalLM",)),
    "glm_moe_dsa": Family(_deepseek_sparse, ("GlmMoeDsaForCausalLM",)),
}
