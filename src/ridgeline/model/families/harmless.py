"""Keys of `config.json` that change neither shapes nor caches: the only ones that may go unread."""

from __future__ import annotations

_GROUPS = {
    "Files, code, generation": (
        "architectures model_type torch_dtype dtype transformers_version auto_map use_cache "
        "cache_implementation tokenizer_class id2label label2id return_dict return_dict_in_generate "
        "output_attentions output_hidden_states torchscript is_encoder_decoder is_decoder add_cross_attention "
        "tie_encoder_decoder pruned_heads problem_type chunk_size_feed_forward use_bfloat16 "
        "task_specific_params summary_type summary_use_proj summary_proj_to_labels num_logits_to_keep "
        "unsloth_fixed is_llama_config for_llm_compressor quantization_config"
    ),
    "Token ids": (
        "bos_token_id eos_token_id pad_token_id sep_token_id decoder_start_token_id image_token_id "
        "video_token_id audio_token_id boi_token_id eoi_token_id boa_token_id eoa_token_id eoa_token_index "
        "vision_soft_tokens_per_image"
    ),
    "Training": (
        "initializer_range init_device pretraining_tp ep_size seq_length seq_aux pretrain_seq_length "
        "training_seq_len output_router_logits router_aux_loss_coef router_jitter_noise "
        "rescale_prenorm_residual attention_dropout time_step_limit"
    ),
    "Positions": (
        "rope_theta rope_scaling rope_parameters rope_type rope_interleave rope_local_base_freq "
        "swa_rope_theta swa_rope_parameters partial_rotary_factor rotary_pct rotary_emb_base rotary_dim "
        "original_max_position_embeddings initial_context_length position_embedding_type no_rope_layers "
        "no_rope_layer_interval max_window_layers attn_temperature_tuning floor_scale attn_scale "
        "interpolate_factor full_attn_mod indexer_rope_interleave rope_interleaved"
    ),
    "Prediction layers after the last, which speculate and are not part of the model": (
        "num_nextn_predict_layers mtp_num_hidden_layers mtp_use_dedicated_embeddings num_mtp_modules "
        "mtp_transformer_layers use_mtp"
    ),
    "Routing, scaling, activations, kernels": (
        "norm_topk_prob routed_scaling_factor scoring_func topk_method n_group topk_group scale_fmt "
        "query_pre_attn_scalar attn_logit_softcapping final_logit_softcapping swiglu_limit "
        "normalization_function mamba_chunk_size mamba_expand chunk_size expand use_mamba_kernels "
        "residual_in_fp32 use_parallel_residual reorder_and_upcast_attn scale_attn_by_inverse_layer_idx "
        "scale_attn_weights layer_norm_epsilon attention_multiplier embedding_multiplier residual_multiplier "
        "logits_scaling qk_head_dim use_bidirectional_attention moe_shared_expert_overlap use_routing_bias "
        "use_qkv_split"
    ),
}
HARMLESS = frozenset(key for keys in _GROUPS.values() for key in keys.split())
