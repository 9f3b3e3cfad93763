"""What becomes of a key of config.json or GGUF metadata that nobody read: refused by name, or told and passed over."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ridgeline.cli import main
from ridgeline.errors import ConfigError
from ridgeline.model.families import describe
from ridgeline.model.known_keys import INERT, RESULTS, SIZES
from ridgeline.model.spec import from_config
from specs import CONFIGS, gguf_spec

SERVED = ["SmolLM2-135M", "Llama-3.1-8B", "Mistral-7B-v0.1", "Qwen2.5-7B-Instruct", "Qwen3-0.6B"]


def golden(name: str, **changes: Any) -> dict[str, Any]:
    return json.loads((CONFIGS / name / "config.json").read_text()) | changes


@pytest.mark.parametrize("name", sorted(path.name for path in CONFIGS.iterdir()))
def test_published_configs_hold_no_unknown_key(name):
    assert describe(golden(name), source=name).warnings == ()
    if name in SERVED:
        assert from_config(golden(name), source=name).warnings == ()


@pytest.mark.parametrize("value", [7, 0.5, True, "wide", [1], {"a": 1}], ids=repr)
@pytest.mark.parametrize("name", SERVED)
def test_an_unknown_key_is_told_and_passed_over(name, value):
    for read in (from_config, describe):
        plain, told = (read(golden(name, **extra), source="c.json") for extra in ({}, {"wombat_level": value}))
        (sentence,) = told.warnings
        assert sentence.startswith(f"c.json: wombat_level is {value!r}: this key is unknown")
        for field in ("num_parameters", "rope_scaling", "windows", "layers"):
            assert getattr(plain, field, None) == getattr(told, field, None)


@pytest.mark.parametrize("value", [None, False, 0, "", [], {}], ids=repr)
def test_a_key_that_is_off_is_neither_refused_nor_told(value):
    for key in ("wombat_level", "attn_logit_softcapping", "altup_num_inputs", "clip_everything"):
        for read in (from_config, describe):
            assert read(golden("SmolLM2-135M", **{key: value}), source="c").warnings == ()


MATTERS = {
    "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "query_pre_attn_scalar": 144, "clip_qkv": 8.0,
    "embedding_multiplier": 12.0, "residual_multiplier": 0.22, "logits_scaling": 8.0, "attention_multiplier": 0.0156,
    "scale_emb": 12, "use_parallel_residual": True, "alibi": True, "no_rope_layers": [1, 0], "rotary_pct": 0.25,
    "rope_interleave": True, "use_sliding_window": True, "attention_chunk_size": 8192, "is_causal": False,
    "use_mrope": True, "hidden_activation": "gelu", "norm_topk_prob": True, "num_nextn_predict_layers": 1,
    "attn_temperature_tuning": True, "quantization_config": {"bits": 4}, "layer_types": ["full_attention"],
}  # fmt: skip


@pytest.mark.parametrize("key", MATTERS)
def test_serving_refuses_what_changes_results_by_name(key):
    with pytest.raises(ConfigError, match=key):
        from_config(golden("SmolLM2-135M", **{key: MATTERS[key]}), source="c")


@pytest.mark.parametrize("key", ["num_experts", "altup_num_inputs", "kv_lora_rank", "use_qk_norm", "multi_query"])
def test_planning_and_serving_refuse_what_changes_sizes_by_name(key):
    for read in (from_config, describe):
        with pytest.raises(ConfigError, match=f"{key} is 4: this feature is not supported"):
            read(golden("SmolLM2-135M", **{key: 4}), source="c")


@pytest.mark.parametrize("key", ["rope_wobble", "attention_tilt", "moe_flavour", "q_norm_kind", "ffn_scale"])
def test_an_unknown_key_that_speaks_of_results_is_refused_when_serving_and_told_when_planning(key):
    config = golden("SmolLM2-135M", **{key: 2.0})
    with pytest.raises(ConfigError, match=f"{key} is 2.0: this key is unknown and may change results") as caught:
        from_config(config, source="c")
    assert "set it to null" in str(caught.value.hint)
    assert key in describe(config, source="c").warnings[0]


@pytest.mark.parametrize("key", ["attention_probs_dropout_prob", "router_entropy_loss", "init_scale_of_layers"])
def test_what_only_training_reads_is_not_suspicious(key):
    assert key in from_config(golden("SmolLM2-135M", **{key: 0.1}), source="c").warnings[0]


def test_a_slip_of_the_pen_names_the_key_that_was_meant():
    config = golden("Llama-3.1-8B")
    config["num_key_value_head"] = config.pop("num_key_value_heads")
    with pytest.raises(ConfigError, match="num_key_value_head is 8") as caught:
        from_config(config, source="c")
    assert "num_key_value_heads" in str(caught.value.hint)


def test_a_key_is_in_one_table_only():
    assert not INERT & RESULTS
    assert not INERT & SIZES
    assert not RESULTS & SIZES


@pytest.mark.parametrize("command", ["plan", "inspect"])
def test_commands_warn_on_stderr_and_list_it_among_their_assumptions(command, tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(golden("SmolLM2-135M", wombat_level=3)))
    assert main([command, str(tmp_path / "config.json"), "--json"]) == 0
    out, err = capsys.readouterr()
    (warning,) = [line for line in err.splitlines() if line.startswith("warning: ")]
    assert "wombat_level is 3" in warning
    assert warning.removeprefix("warning: ") in json.loads(out)["assumptions"]


GGUF_MATTERS = {
    "rope.scaling.attn_factor": 0.5, "rope.scaling.yarn_log_multiplier": 0.1, "rope.dimension_sections": [1, 1],
    "rope.freq_base_swa": 1e4, "attention.scale": 0.5, "attention.causal": False, "attention.clamp_kqv": 8.0,
    "attention.max_alibi_bias": 8.0, "attention.sliding_window": 4096, "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0, "logit_scale": 0.5, "embedding_scale": 12.0, "residual_scale": 0.2,
    "expert_count": 8, "expert_shared_count": 1, "use_parallel_residual": True, "nextn_predict_layers": 1,
    "leading_dense_block_count": 1, "attention.key_length_swa": 16, "tensor_data_layout": "another",
}  # fmt: skip


@pytest.mark.parametrize("key", GGUF_MATTERS)
def test_a_gguf_key_that_changes_results_is_refused_by_name(key):
    with pytest.raises(ConfigError, match=rf"llama\.{key} is"):
        gguf_spec({"llama." + key: GGUF_MATTERS[key]})


def test_a_gguf_key_outside_its_architecture_does_not_rotate():
    with pytest.raises(ConfigError, match=r"rope\.scaling\.factor is 4"):
        gguf_spec({"rope.scaling.factor": 4.0})


def test_gguf_keys_that_are_off_or_unknown_and_harmless():
    off = {"rope.scaling.attn_factor": 1.0, "attention.causal": True, "logit_scale": 0.0, "expert_count": 0}
    assert gguf_spec({"llama." + key: value for key, value in off.items()}).warnings == ()
    (sentence,) = gguf_spec({"llama.wombat": 3}).warnings
    assert "llama.wombat is 3: this key is unknown" in sentence
    assert gguf_spec({"quantize.imatrix.entries_count": 7, "general.wombat": 1}).warnings == ()
