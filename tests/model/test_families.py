"""Anatomies of models beyond the golden configurations, counted by transformers; and what is refused."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from ridgeline.cost.parameters import active_parameters, total_parameters
from ridgeline.errors import ConfigError
from ridgeline.model.anatomy import Anatomy
from ridgeline.model.families import FAMILIES, describe

GOLDEN = Path(__file__).parents[1] / "golden"
NAMES = sorted(json.loads((GOLDEN / "expected.json").read_text()))
SMALL = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 100, "num_hidden_layers": 4}
FALCON = {"num_attention_heads": 4, "hidden_size": 64, "ffn_hidden_size": 96, "vocab_size": 100, "num_hidden_layers": 4}
MOE = SMALL | {"moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 2, "first_k_dense_replace": 1}
GQA = {"num_attention_heads": 4, "num_key_value_heads": 2}
MLA = MOE | {"num_attention_heads": 4, "kv_lora_rank": 24, "q_lora_rank": 40, "qk_rope_head_dim": 8}


def golden(name: str) -> dict[str, Any]:
    return json.loads((GOLDEN / "configs" / name / "config.json").read_text())


# config class, model class, settings
VARIANTS = [
    ("DeepseekV3Config", "DeepseekV3ForCausalLM", MLA | {"attention_bias": True}),
    ("DeepseekV3Config", "DeepseekV3ForCausalLM", MLA | {"q_lora_rank": None}),
    ("DeepseekV32Config", "DeepseekV32ForCausalLM", MLA | {"index_n_heads": 4, "index_head_dim": 16}),
    ("GlmMoeDsaConfig", "GlmMoeDsaForCausalLM", MLA | {"index_n_heads": 4, "index_head_dim": 16}),
    ("Glm4MoeLiteConfig", "Glm4MoeLiteForCausalLM", MLA),
    ("Glm4MoeConfig", "Glm4MoeForCausalLM", MOE | GQA | {"head_dim": 16, "use_qk_norm": True, "attention_bias": True}),
    ("Glm4Config", "Glm4ForCausalLM", SMALL | GQA | {"head_dim": 16, "pad_token_id": 0}),
    ("MiniMaxM2Config", "MiniMaxM2ForCausalLM", SMALL | GQA | {"head_dim": 24, "num_local_experts": 8}),
    ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM", SMALL | GQA | {"linear_num_key_heads": 2, "linear_num_value_heads": 4}),
    ("Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM", {k: v for k, v in SMALL.items() if k[:5] != "inter"} | GQA),
    ("Qwen3MoeConfig", "Qwen3MoeForCausalLM", SMALL | GQA | {"head_dim": 24, "decoder_sparse_step": 2}),
    ("GraniteMoeConfig", "GraniteMoeForCausalLM", SMALL | GQA),
    ("GraniteMoeHybridConfig", "GraniteMoeHybridForCausalLM", SMALL | GQA | {"num_local_experts": 0}),
    ("Ministral3Config", "Ministral3ForCausalLM", SMALL | GQA | {"head_dim": 24}),
    ("Olmo3Config", "Olmo3ForCausalLM", SMALL | GQA | {"attention_bias": True}),
    ("Phi3Config", "Phi3ForCausalLM", SMALL | GQA | {"pad_token_id": 0, "tie_word_embeddings": True}),
    ("FalconConfig", "FalconForCausalLM", FALCON | {"num_kv_heads": 2, "new_decoder_architecture": True}),
    ("FalconConfig", "FalconForCausalLM", FALCON | {"bias": True, "parallel_attn": False, "multi_query": False}),
    ("GPT2Config", "GPT2LMHeadModel", {"n_embd": 64, "n_head": 4, "n_inner": 100}),
    ("Llama4TextConfig", "Llama4ForCausalLM", SMALL | GQA | {"head_dim": 16, "interleave_moe_layer_step": 2}),
    ("GptOssConfig", "GptOssForCausalLM", SMALL | GQA | {"head_dim": 16, "num_local_experts": 4}),
    ("MiMoV2FlashConfig", "MiMoV2FlashForCausalLM", SMALL | GQA | {"moe_intermediate_size": 32, "n_routed_experts": 8}),
    ("NemotronHConfig", "NemotronHForCausalLM", {"hidden_size": 64, "vocab_size": 100, "mamba_num_heads": 16}),
    ("OlmoeConfig", "OlmoeForCausalLM", SMALL | GQA | {"attention_bias": True}),
    ("SmolLM3Config", "SmolLM3ForCausalLM", SMALL | GQA | {"pad_token_id": 0, "mlp_bias": True}),
]  # fmt: skip


def described(config: Any, model_class: str, **changes: Any) -> Anatomy:
    values = json.loads(json.dumps(config.to_dict(), default=str)) | {"architectures": [model_class]} | changes
    return describe(values, source=model_class)


def meta_parameters(config: Any, model_class: str) -> int:
    with torch.device("meta"):
        model = getattr(transformers, model_class)(config)
    return sum(p.numel() for p in model.parameters())  # yields a tied matrix once


@pytest.mark.parametrize(("config_class", "model_class", "settings"), VARIANTS)
def test_parameters_of_variants_equal_what_transformers_builds(config_class, model_class, settings):
    config = getattr(transformers, config_class)(**settings)
    assert total_parameters(described(config, model_class)) == meta_parameters(config, model_class)


@pytest.mark.parametrize("shared_layers", [0, 10])
def test_gemma_4_with_per_layer_inputs_and_shared_caches(shared_layers):
    config = transformers.Gemma4TextConfig(
        **SMALL | {"num_hidden_layers": 30, "vocab_size_per_layer_input": 100, "hidden_size_per_layer_input": 16},
        num_kv_shared_layers=shared_layers,
        use_double_wide_mlp=True,
    )
    written = {"global_head_dim": 512, "num_global_key_value_heads": None, "per_layer_config": None}
    anatomy = described(config, "Gemma4ForCausalLM", **written)
    assert total_parameters(anatomy) == meta_parameters(config, "Gemma4ForCausalLM")
    assert sum(not layer.mixer.owns_cache for layer in anatomy.layers) == shared_layers


def fingerprint(values: dict[str, Any]) -> Any:
    anatomy = describe(values, source="c")
    sizes = anatomy.vocab_size, anatomy.hidden_size, anatomy.max_context_len, anatomy.tied
    return total_parameters(anatomy), active_parameters(anatomy), sizes, anatomy.layers, anatomy.lookups


def fingerprint_or_refusal(values: dict[str, Any]) -> Any:
    try:
        return fingerprint(values)
    except ConfigError:
        return "refused"


@pytest.mark.parametrize("name", NAMES)
def test_a_key_that_is_missing_or_renamed_never_changes_a_number_silently(name):
    """For every key of every configuration: the same model comes out, or a refusal that names the file."""
    whole = golden(name)
    text_key = "text_config" if "text_config" in whole else None
    truth, refused = fingerprint(whole), set()
    for key in whole[text_key] if text_key else whole:
        for new_name in {None, key + "s", "n_" + key} - set(whole[text_key] if text_key else whole):
            mutant = copy.deepcopy(whole)
            target = mutant[text_key] if text_key else mutant
            value = target.pop(key)
            if new_name:
                target[new_name] = value
            outcome = fingerprint_or_refusal(mutant)
            assert outcome in (truth, "refused"), f"{key} -> {new_name}"
            refused.update({key} if outcome == "refused" else ())
    sizes = {"num_hidden_layers", "n_layer", "hidden_size", "n_embd", "vocab_size", "num_attention_heads", "n_head"}
    assert refused >= sizes & set(whole[text_key] if text_key else whole)


@pytest.mark.parametrize("name", NAMES)
def test_keys_below_an_unknown_name_are_refused(name):
    with pytest.raises(ConfigError, match="model_type is missing"):
        describe({"language_config": golden(name)}, source="c")


REFUSED = {
    "model_type is 'gemma3n': unknown architecture": golden("Qwen3-0.6B") | {"model_type": "gemma3n"},
    "architectures is ['LlamaForSequenceClassification']: a llama model must be LlamaForCausalLM": golden(
        "Llama-3.1-8B"
    )
    | {"architectures": ["LlamaForSequenceClassification"]},
    "altup_num_inputs is 4: this feature is not supported": golden("Qwen3-0.6B") | {"altup_num_inputs": 4},
    "use_gated_attention is True: this feature is not supported": golden("Qwen3-0.6B") | {"use_gated_attention": True},
    "linear_attn_config is {'kda_layers': [1]}: this feature is not supported": golden("Qwen3-0.6B")
    | {"linear_attn_config": {"kda_layers": [1]}},
    "tie_word_embeddings is missing": {k: v for k, v in golden("Llama-3.1-8B").items() if k != "tie_word_embeddings"},
    "layer_types must be 24 of sliding_attention, full_attention": golden("gpt-oss-20b")
    | {"layer_types": ["sliding_attention", "lightning_attention"] * 12},
    "hybrid_override_pattern has unknown letters {'X'}": golden("Nemotron-3-Nano-30B-A3B")
    | {"hybrid_override_pattern": "X" * 52},
    "hybrid_override_pattern has 2 layers of 52": golden("Nemotron-3-Nano-30B-A3B") | {"hybrid_override_pattern": "ME"},
    "num_experts_per_tok is 9, there are 8 experts": golden("Mixtral-8x7B-v0.1") | {"num_experts_per_tok": 9},
    "num_key_value_heads is 5, which does not divide 32 heads": golden("Llama-3.1-8B") | {"num_key_value_heads": 5},
    "num_hidden_layers is 0, not above 0": golden("Llama-3.1-8B") | {"num_hidden_layers": 0},
    "num_hidden_layers is 1,000,000,000: at most 10,000": golden("Llama-3.1-8B") | {"num_hidden_layers": 10**9},
    "hidden_size is -1, not above 0": golden("Llama-3.1-8B") | {"hidden_size": -1},
    "indexer_types is": golden("DeepSeek-V3.2") | {"indexer_types": ["full", "shared"]},
    "moe_latent_size is 1024: this variant is unknown": golden("Nemotron-3-Nano-30B-A3B") | {"moe_latent_size": 1024},
    "alibi is True": golden("falcon-7b") | {"alibi": True},
    "num_key_value_heads is 71, the rest says 1": golden("falcon-7b") | {"num_key_value_heads": 71},
    "per_layer_config must give each full layer the same sizes": golden("gemma-4-26B-A4B")
    | {"text_config": golden("gemma-4-26B-A4B")["text_config"] | {"per_layer_config": {"5": {"head_dim": 8}}}},
    "full_attention_interval does not agree with layer_types": golden("Qwen3-Next-80B-A3B")
    | {"layer_types": ["full_attention"] * 48},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_unknown_is_refused_by_name(message):
    with pytest.raises(ConfigError) as caught:
        describe(REFUSED[message], source="some/config.json")
    assert message in caught.value.message
    assert caught.value.message.startswith("some/config.json: ")


def test_text_config_may_not_contradict_the_outer_one():
    config = golden("gemma-4-26B-A4B") | {"tie_word_embeddings": False}
    with pytest.raises(ConfigError, match="tie_word_embeddings is False, and True in text_config"):
        describe(config, source="c")


def test_the_families_that_can_be_planned_have_distinct_names():
    assert len(FAMILIES) >= 30
    assert all(family.classes for family in FAMILIES.values())


JUNK = ["x", "", -1, 0, 1.5, float("inf"), True, [], ["x"], [[]], {}, {"factor": "x"}]


@pytest.mark.parametrize("junk", JUNK, ids=repr)
@pytest.mark.parametrize(
    "name", ["DeepSeek-V3.2", "MiMo-V2-Flash", "Nemotron-3-Nano-30B-A3B", "gemma-4-26B-A4B", "falcon-7b"]
)
def test_a_value_of_the_wrong_kind_is_never_a_crash(name, junk):
    whole = golden(name)
    keys = [(key,) for key in whole] + [("text_config", key) for key in whole.get("text_config", ())]
    for *outer, key in keys:
        mutant = copy.deepcopy(whole)
        (mutant[outer[0]] if outer else mutant)[key] = junk
        fingerprint_or_refusal(mutant)  # raises nothing but a ConfigError
