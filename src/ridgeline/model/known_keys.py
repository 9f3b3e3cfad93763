"""Keys of `config.json`, and what those that nobody read mean: the one table for planning and for serving.

A model's reader takes what it understands (`Fields` notes which keys those were). Of what is left,

- a key of RESULTS or SIZES whose value is not neutral asks for something that the reader does not do: an error, by its
  name. Planning minds sizes alone, serving minds both;
- a key that looks like one that was looked for and is not there is a slip of the pen: an error, by both names;
- when serving, a key in no table whose name speaks of what a model computes (`SUSPICIOUS`) is an error too: a wrong
  answer costs more than a refusal, which a `null` in its place lifts;
- every other key, such as those that a newer transformers writes, is told in a sentence and passed over.

A neutral value switches off: null, false, 0, an empty list, or what `NEUTRAL` gives for a key.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ridgeline.model.fields import Fields, short


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _keys(groups: Mapping[str, str]) -> frozenset[str]:
    return _words(" ".join(groups.values()))


# Neither sizes nor results, whatever they hold.
INERT = _keys(
    {
        "Files, code, tasks": (
            "architectures model_type torch_dtype dtype transformers_version auto_map use_cache attn_implementation "
            "cache_implementation tokenizer_class id2label label2id return_dict return_dict_in_generate "
            "output_attentions output_hidden_states torchscript is_encoder_decoder is_decoder tie_encoder_decoder "
            "pruned_heads problem_type chunk_size_feed_forward use_bfloat16 use_flash_attn use_flash_attention "
            "use_flash_attention_2 task_specific_params summary_type summary_use_proj summary_proj_to_labels "
            "summary_activation summary_first_dropout num_logits_to_keep unsloth_fixed is_llama_config "
            "for_llm_compressor gradient_checkpointing name_or_path finetuning_task num_labels prefix tf_legacy_loss "
            "use_mamba_kernels"
        ),
        "Token ids": (
            "bos_token_id eos_token_id pad_token_id sep_token_id decoder_start_token_id image_token_id "
            "video_token_id audio_token_id boi_token_id eoi_token_id boa_token_id eoa_token_id eoa_token_index "
            "forced_bos_token_id forced_eos_token_id suppress_tokens begin_suppress_tokens bad_words_ids "
            "vision_soft_tokens_per_image"
        ),
        "Generation, in configs of old": (
            "max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature "
            "top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size remove_invalid_values "
            "encoder_no_repeat_ngram_size num_return_sequences output_scores exponential_decay_length_penalty"
        ),
        "Training": (
            "initializer_range init_device pretraining_tp ep_size seq_length seq_aux pretrain_seq_length "
            "training_seq_len output_router_logits router_aux_loss_coef router_jitter_noise router_z_loss_coef "
            "rescale_prenorm_residual attention_dropout attn_pdrop embd_pdrop resid_pdrop hidden_dropout "
            "embedding_dropout resid_dropout classifier_dropout aux_loss_alpha initializer_cutoff_factor "
            "max_sequence_length tokenizer_model_max_length model_max_length mup_init"
        ),
        "Of windows that are off, and of norms that are not RMSNorm": (
            "max_window_layers layer_norm_eps layer_norm_epsilon layernorm_epsilon norm_eps norm_epsilon"
        ),
    }
)  # fmt: skip

# What a model computes, at the same sizes.
RESULTS = _keys(
    {
        "Weights in other forms": "quantization_config",
        "Positions": (
            "rope_theta rope_scaling rope_parameters rope_type rope_interleave rope_interleaved rope_local_base_freq "
            "rope_ratio rope_percent swa_rope_theta swa_rope_parameters global_rope_theta partial_rotary_factor "
            "rotary_pct rotary_emb_base rotary_emb_fraction rotary_dim original_max_position_embeddings "
            "initial_context_length position_embedding_type pos_emb no_rope_layers no_rope_layer_interval "
            "no_rope_layer_indices attn_temperature_tuning floor_scale attn_scale interpolate_factor full_attn_mod "
            "indexer_rope_interleave use_mrope use_dynamic_ntk use_logn_attn use_alibi alibi"
        ),
        "Attention": (
            "sliding_window use_sliding_window sliding_window_size sliding_window_pattern layer_types window_size "
            "attention_window_size attention_chunk_size query_pre_attn_scalar attn_logit_softcapping "
            "final_logit_softcapping attention_multiplier attention_scale scale_attention scale_attn_weights "
            "scale_attn_by_inverse_layer_idx reorder_and_upcast_attn use_bidirectional_attention is_causal clip_qkv "
            "softmax_scale attention_value_scale attention_softmax_in_fp32 logit_scale logits_scaling attn_type_list "
            "use_qkv_split"
        ),
        "Residual, norms, activations": (
            "embedding_multiplier residual_multiplier embedding_scale scale_emb scale_depth dim_model_base "
            "mup_scale_factor lm_head_multiplier key_multiplier attention_in_multiplier attention_out_multiplier "
            "mlp_multipliers scale_embedding use_parallel_residual parallel_residual residual_in_fp32 "
            "hidden_act hidden_activation activation activation_function ffn_act_fn swiglu_limit swiglu_alpha "
            "mlp_hidden_act rms_norm_eps normalization_function norm_type apply_residual_connection_post_layernorm "
            "norm_after pre_norm"
        ),
        "Routing": (
            "norm_topk_prob routed_scaling_factor scoring_func topk_method n_group topk_group scale_fmt "
            "moe_shared_expert_overlap use_routing_bias"
        ),
        "Layers that predict further tokens": (
            "num_nextn_predict_layers mtp_num_hidden_layers mtp_use_dedicated_embeddings num_mtp_modules "
            "mtp_transformer_layers mtp_layers_block_type num_mtp_layers use_mtp"
        ),
        "Recurrent layers": (
            "mamba_hidden_act mamba_ssm_cache_dtype time_step_limit time_step_min time_step_max time_step_floor "
            "time_step_rank"
        ),
        "Follow from sizes that are read": "mamba_chunk_size mamba_expand chunk_size expand qk_head_dim",
    }
)  # fmt: skip

# Shapes of weights, and what is cached per token.
SIZES = _keys(
    {
        "Model": (
            "vocab_size hidden_size n_embd d_model num_hidden_layers n_layer n_layers num_layers intermediate_size "
            "n_inner ffn_hidden_size ffn_dim max_position_embeddings n_positions n_ctx type_vocab_size "
            "tie_word_embeddings embedding_size word_embed_proj_dim cross_layer_sharing num_parallel_layers "
            "add_cross_attention cross_attention_layers num_memory_blocks"
        ),
        "Attention": (
            "num_attention_heads n_head n_heads num_heads num_key_value_heads num_kv_heads n_head_kv multi_query "
            "multi_query_group_num new_decoder_architecture parallel_attn num_ln_in_parallel_attn head_dim "
            "attention_head_dim kv_channels v_head_dim global_head_dim num_global_key_value_heads "
            "num_kv_shared_layers attention_k_eq_v attn_output_gate use_gated_attention use_output_gate qk_norm "
            "use_qk_norm qk_layernorm use_qk_layernorm qk_norm_type attention_sink attention_sinks "
            "add_full_attention_sink_bias add_swa_attention_sink_bias swa_num_attention_heads "
            "swa_num_key_value_heads swa_head_dim swa_v_head_dim hybrid_layer_pattern kv_lora_rank q_lora_rank "
            "qk_rope_head_dim qk_nope_head_dim index_n_heads index_head_dim index_topk indexer_types "
            "block_configs layers_block_type attn_layer_period attn_layer_offset"
        ),
        "Biases": (
            "bias attention_bias mlp_bias qkv_bias add_qkv_bias attention_out_bias use_bias lm_head_bias norm_bias"
        ),
        "Experts": (
            "num_experts num_local_experts n_routed_experts n_shared_experts num_shared_experts num_experts_per_tok "
            "num_experts_per_token experts_per_token top_k_experts moe_topk moe_top_k moe_num_experts "
            "moe_intermediate_size moe_latent_size moe_layer_freq moe_layers moe_layer_interval moe_layer_start_index "
            "moe_layer_end_index moe_shared_expert_intermediate_size shared_expert_intermediate_size "
            "shared_intermediate_size intermediate_size_mlp enable_moe_block first_k_dense_replace "
            "interleave_moe_layer_step decoder_sparse_step mlp_only_layers mlp_layer_types expert_layer_period "
            "expert_layer_offset"
        ),
        "Recurrent layers": (
            "full_attention_interval linear_attn_config linear_conv_kernel_dim linear_key_head_dim "
            "linear_num_key_heads linear_num_value_heads linear_value_head_dim hybrid_override_pattern conv_kernel "
            "ssm_state_size n_groups mamba_num_heads mamba_head_dim mamba_n_heads mamba_d_head mamba_d_state "
            "mamba_n_groups mamba_d_conv mamba_d_ssm mamba_conv_bias mamba_proj_bias use_conv_bias conv_L_cache "
            "block_types lru_width"
        ),
        "Gemma's": (
            "hidden_size_per_layer_input vocab_size_per_layer_input use_double_wide_mlp altup_num_inputs "
            "altup_active_idx laurel_rank activation_sparsity_pattern per_layer_config"
        ),
    }
)  # fmt: skip

_ONE = (None, 1)
_SILU = (None, "silu", "swish")
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        _words(
            "partial_rotary_factor rotary_pct rotary_emb_fraction rope_ratio embedding_multiplier residual_multiplier "
            "logits_scaling logit_scale embedding_scale scale_emb lm_head_multiplier key_multiplier "
            "attention_in_multiplier attention_out_multiplier routed_scaling_factor attn_scale"
        ),
        _ONE,
    ),
    **dict.fromkeys(("hidden_act", "hidden_activation", "activation", "activation_function"), _SILU),
    "position_embedding_type": (None, "rope", "rotary"),
    "is_causal": (None, True),
    "scale_attn_weights": (None, True),
    "norm_type": (None, "rms_norm", "rmsnorm", "RMSNorm"),
}

# Words of names that speak of what a model computes. Also GGUF's.
SUSPICIOUS = _words(
    "rope rotary theta yarn ntk alibi position positions attn attention mha gqa mla qk qkv kv sink sinks causal mask "
    "window sliding scale scales scaled scaling multiplier multipliers softcap softcapping cap clip clamp norm norms "
    "layernorm rmsnorm residual parallel act activation gate gated gating bias expert experts moe router routing mlp "
    "ffn head heads layer layers hidden intermediate dim dims rank lora conv mamba ssm recurrent mup logit logits "
    "softmax temperature embedding embeddings adapter dense sparse sparsity block blocks"
)
_WORD = re.compile(r"[a-z]+")
_TRAINING = _words("dropout drop loss aux init initializer jitter")
_ALIKE = 0.85  # difflib's ratio: `head_dims` and `n_head_dim` are alike `head_dim`


def passed_over(fields: Fields, *, serving: bool) -> tuple[str, ...]:
    """Sentences about keys that are unknown and taken to be harmless. Raises ConfigError for the others, see above."""
    for key, value in _of_substance(fields):
        if key in SIZES or (serving and key in RESULTS):
            raise fields.error(key, f"is {short(value)}: this feature is not supported", _LIFT)
    unknown = [(key, value) for key, value in _of_substance(fields) if key not in RESULTS]
    for key, value in unknown:
        refuse_slip(fields, key, value)
        if serving and is_suspicious(key):
            raise fields.error(key, f"is {short(value)}: this key is unknown and may change results", _LIFT)
    what = "sizes or results" if serving else "sizes"
    return tuple(
        f"{fields.source}: {key} is {short(value)}: this key is unknown, and taken to change no {what}."
        for key, value in unknown
    )


_LIFT = "if the model computes the same without it, set it to null"


def refuse_slip(fields: Fields, key: str, value: Any) -> None:
    """Refuses a key that is alike one that was looked for in vain."""
    for meant in difflib.get_close_matches(key, sorted(fields.missed()), 1, _ALIKE):
        raise fields.error(key, f"is {short(value)}: this key is unknown", f"is {meant} meant? Else set it to null")


def is_suspicious(key: str) -> bool:
    words = set(_WORD.findall(key.lower()))
    return bool(words & SUSPICIOUS) and not words & _TRAINING


def is_neutral(key: str, value: Any) -> bool:
    """Whether the value switches off what the key is about."""
    return value in NEUTRAL[key] if key in NEUTRAL else not value


def _of_substance(fields: Fields) -> Iterator[tuple[str, Any]]:
    for key, value in fields.unread().items():
        if key in INERT or key.startswith("_") or key.endswith(("_token_id", "_token_index", "_token_ids")):
            continue
        if not is_neutral(key, value):
            yield key, value
