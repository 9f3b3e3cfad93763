import contextlib

import numpy as np
import pytest
import transformers

from ridgeline.errors import ConfigError
from ridgeline.model.rope import inverse_frequencies
from ridgeline.model.rope_scaling import RopeScaling
from ridgeline.model.spec import from_config
from specs import GGUF, gguf_spec, golden, spec_of

LLAMA3_SCALING = RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("SmolLM2-135M", 134_515_008),
        ("Llama-2-7b", 6_738_415_616),
        ("Llama-3.1-8B", 8_030_261_248),
        ("Llama-3.2-1B", 1_235_814_400),
        ("Mistral-7B-v0.1", 7_241_732_096),
        ("Qwen2.5-7B-Instruct", 7_615_616_512),
        ("Qwen3-0.6B", 596_049_920),
    ],
)
def test_parameter_counts_of_published_models(name, parameters):
    assert spec_of(name).num_parameters == parameters


def test_llama3_fields():
    spec = spec_of("Llama-3.1-8B")
    assert (spec.architecture, spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (
        "llama", 32, 32, 8, 128,
    )  # fmt: skip
    assert (spec.rope_theta, spec.rope_scaling) == (500_000.0, LLAMA3_SCALING)
    assert (spec.max_context_len, spec.norm_eps, spec.stored_dtype) == (131_072, 1e-5, "bf16")
    assert (spec.tie_embeddings, spec.qkv_bias, spec.o_bias, spec.mlp_bias, spec.qk_norm) == (False,) * 5
    assert spec.windows == (None,) * 32
    assert (spec.bos_token_id, spec.eos_token_ids) == (128_000, (128_001,))


def test_new_rope_parameters_mean_the_same_as_the_old_keys():
    old = golden("Llama-3.1-8B")
    rope = old.pop("rope_scaling") | {"rope_theta": old.pop("rope_theta")}
    new = from_config(old | {"rope_parameters": rope}, source="new")
    assert new == spec_of("Llama-3.1-8B")


def test_configs_that_transformers_5_writes():
    rope = {"rope_type": "linear", "rope_theta": 5e5, "factor": 4.0}
    config = transformers.LlamaConfig(attention_bias=True, mlp_bias=True, rope_parameters=rope).to_dict()
    spec = from_config(config | {"architectures": ["LlamaForCausalLM"]}, source="v5")
    assert (spec.qkv_bias, spec.o_bias, spec.mlp_bias) == (True, True, True)
    assert (spec.rope_theta, spec.rope_scaling) == (5e5, RopeScaling("linear", 4.0))


def test_qwen2_has_biases_on_q_k_v_only():
    spec = spec_of("Qwen2.5-7B-Instruct")
    assert (spec.qkv_bias, spec.o_bias, spec.mlp_bias, spec.qk_norm) == (True, False, False, False)
    assert spec.windows == (None,) * 28  # use_sliding_window is false


def test_qwen3_has_head_norms_and_its_own_head_size():
    spec = spec_of("Qwen3-0.6B")
    assert (spec.qk_norm, spec.qkv_bias, spec.tie_embeddings) == (True, False, True)
    assert (spec.head_dim, spec.hidden_size // spec.num_heads) == (128, 64)
    assert spec_of("Qwen3-0.6B", attention_bias=True).o_bias


def test_mistral_windows():
    assert spec_of("Mistral-7B-v0.1").windows == (4096,) * 32
    config = golden("Mistral-7B-v0.1")
    assert from_config(config | {"sliding_window": None}, source="v0.3").windows == (None,) * 32
    del config["sliding_window"]
    assert from_config(config, source="unset").windows == (transformers.MistralConfig().sliding_window,) * 32


def test_qwen_windows_from_layer_number_or_layer_types():
    on = {"use_sliding_window": True, "sliding_window": 1024}
    assert spec_of("Qwen3-0.6B", **on, max_window_layers=27).windows == (None,) * 27 + (1024,)
    assert spec_of("Qwen3-0.6B", **on, max_window_layers=0).windows == (1024,) * 28
    kinds = ["sliding_attention", "full_attention"] * 14
    assert spec_of("Qwen3-0.6B", **on, layer_types=kinds).windows == (1024, None) * 14
    assert spec_of("Qwen3-0.6B", layer_types=["full_attention"] * 28).windows == (None,) * 28


def test_end_tokens_are_the_union_of_both_files():
    generation = {"eos_token_id": [128_009, 128_001]}
    spec = from_config(golden("Llama-3.1-8B"), source="c", generation_config=generation)
    assert spec.eos_token_ids == (128_001, 128_009)


REFUSED = {
    "model_type is 'mixtral': it can be planned, not served yet": golden("Mixtral-8x7B-v0.1"),
    "model_type is 'llama4': it can be planned, not served yet": golden("Llama-4-Scout-17B-16E"),
    "model_type is 'mistrall': unknown architecture": golden("Mistral-7B-v0.1", model_type="mistrall"),
    "model_type is ''": golden("SmolLM2-135M", model_type=None),
    "must be LlamaForCausalLM": golden("SmolLM2-135M", architectures=["LlamaForSequenceClassification"]),
    "hidden_act is 'gelu'": golden("SmolLM2-135M", hidden_act="gelu"),
    "rope_type is 'yarn'": golden("Qwen3-0.6B", rope_scaling={"rope_type": "yarn", "factor": 4.0, "beta_fast": 32}),
    "rope_type is 'dynamic'": golden("Qwen3-0.6B", rope_scaling={"type": "dynamic", "factor": 4.0}),
    "mrope_section is [1]: not supported": golden("Qwen3-0.6B", rope_scaling={"type": "default", "mrope_section": [1]}),
    "high_freq_factor is 1, not above low_freq_factor 1": golden(
        "Llama-3.1-8B", rope_scaling=golden("Llama-3.1-8B")["rope_scaling"] | {"high_freq_factor": 1.0}
    ),
    "rope_scaling: factor is missing": golden("Qwen3-0.6B", rope_scaling={"type": "linear"}),
    "partial_rotary_factor other than 1": golden("SmolLM2-135M", partial_rotary_factor=0.5),
    "quantization_config is {": golden("SmolLM2-135M", quantization_config={"quant_method": "gptq"}),
    "num_experts is 8": golden("Qwen3-0.6B", num_experts=8),
    "attention_bias is True": golden("Mistral-7B-v0.1", attention_bias=True),
    "sliding_window is 4096": golden("SmolLM2-135M", sliding_window=4096),
    "hidden_size is missing": golden("SmolLM2-135M", hidden_size=None),
    "hidden_size is '576', not a number": golden("SmolLM2-135M", hidden_size="576"),
    "hidden_size is 0, not above 0": golden("SmolLM2-135M", hidden_size=0),
    "hidden_size is 576.5, not a whole number": golden("SmolLM2-135M", hidden_size=576.5),
    "9 heads do not divide the hidden size 577": golden("SmolLM2-135M", hidden_size=577),
    "rms_norm_eps is nan, not a number": golden("SmolLM2-135M", rms_norm_eps=float("nan")),
    "num_key_value_heads is missing": golden("Qwen3-0.6B", num_key_value_heads=None),
    "head_dim is missing": golden("Qwen3-0.6B", head_dim=None),
    "tie_word_embeddings is 'yes'": golden("SmolLM2-135M", tie_word_embeddings="yes"),
    "torch_dtype is 'float8_e4m3fn'": golden("SmolLM2-135M", torch_dtype="float8_e4m3fn"),
    "eos_token_id holds 'x'": golden("SmolLM2-135M", eos_token_id=["x"]),
    "layer_types must be 28 of": golden("Qwen3-0.6B", layer_types=["linear_attention"] * 28),
    "the sliding window is off": golden("Qwen3-0.6B", layer_types=["sliding_attention"] * 28),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_not_supported_is_refused_by_name(message):
    with pytest.raises(ConfigError) as caught:
        from_config(REFUSED[message], source="some/config.json")
    assert "some/config.json: " in caught.value.message
    assert message in caught.value.message


def test_an_unknown_architecture_names_the_nearest():
    with pytest.raises(ConfigError) as caught:
        from_config(golden("Mistral-7B-v0.1", model_type="mistrall"), source="c")
    assert "'mistral'" in (caught.value.hint or "")


def test_gguf_fields():
    spec = gguf_spec()
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.vocab_size) == (4, 2, 16, 300)
    assert (spec.tie_embeddings, spec.stored_dtype, spec.rope_theta) == (True, "Q4_K_M", 5e5)
    assert (spec.bos_token_id, spec.eos_token_ids) == (1, (2, 7))
    assert not gguf_spec(tensors=("output.weight",)).tie_embeddings
    biased = gguf_spec(tensors=("blk.0.attn_q.bias", "blk.0.attn_output.bias", "blk.0.ffn_down.bias"))
    assert (biased.qkv_bias, biased.o_bias, biased.mlp_bias) == (True, True, True)


def test_gguf_vocabulary_size_from_the_tokens():
    assert gguf_spec({"llama.vocab_size": None, "tokenizer.ggml.tokens": ["a"] * 17}).vocab_size == 17


def test_gguf_rope_factors_equal_llama3_scaling():
    """The table that llama.cpp's converter writes for a Llama 3 model stands for the same frequencies."""
    llama3 = spec_of("Llama-3.1-8B")
    plain = spec_of("Llama-3.1-8B", rope_scaling=None)
    factors = (inverse_frequencies(plain) / inverse_frequencies(llama3)).tolist()
    shape = {"llama.embedding_length": 512, "llama.rope.dimension_count": 128}
    spec = gguf_spec(shape, ("rope_freqs.weight",), rope_factors=factors)
    np.testing.assert_allclose(inverse_frequencies(spec), inverse_frequencies(llama3), rtol=1e-12)
    assert min(factors) == 1.0
    assert max(factors) == 8.0


def test_gguf_linear_rope_scaling():
    spec = gguf_spec({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0})
    assert spec.rope_scaling == RopeScaling("linear", 4.0)


GGUF_REFUSED = {
    "general.architecture is 'gemma3'": {"general.architecture": "gemma3"},
    "llama.expert_count is 8": {"llama.expert_count": 8},
    "llama.attention.sliding_window is 4096": {"llama.attention.sliding_window": 4096},
    "llama.rope.scaling.type is 'yarn'": {"llama.rope.scaling.type": "yarn"},
    "llama.attention.head_count is [4, 4], not a number": {"llama.attention.head_count": [4, 4]},
    "llama.attention.value_length is 32, the key length is 16": {"llama.attention.value_length": 32},
    "llama.rope.dimension_count is 8, the key length is 16": {"llama.rope.dimension_count": 8},
    "llama.block_count is missing": {"llama.block_count": None},
    "llama.vocab_size is missing": {"llama.vocab_size": None},
}


@pytest.mark.parametrize("message", GGUF_REFUSED)
def test_what_a_gguf_may_not_have_is_refused_by_name(message):
    with pytest.raises(ConfigError) as caught:
        gguf_spec(GGUF_REFUSED[message])
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("factors", "problem"),
    [
        (None, "missing, head size 16 needs 8"),
        ([1.0] * 7, "7 values, head size 16 needs 8"),
        ([0.0] * 8, "not all above 0"),
    ],
)
def test_gguf_rope_factors_must_be_given_and_fit(factors, problem):
    with pytest.raises(ConfigError, match=problem):
        gguf_spec(tensors=("rope_freqs.weight",), rope_factors=factors)


JUNK = ["x", "", -1, 0, 1.5, float("inf"), True, [], ["x"], [[]], {}, {"factor": "x"}]
CONFIG_KEYS = [*golden("Qwen3-0.6B"), "rope_scaling", "rope_parameters", "layer_types", "dtype"]


@pytest.mark.parametrize("junk", JUNK, ids=repr)
def test_a_value_of_the_wrong_kind_is_never_a_crash(junk):
    """Whatever a key holds, it is understood or refused with a ConfigError; nothing else is raised."""
    refused = set()
    for key in CONFIG_KEYS:
        try:
            from_config(golden("Qwen3-0.6B") | {key: junk}, source="c")
        except ConfigError:
            refused.add(key)
    assert {"model_type", "num_hidden_layers"} <= refused
    for key in [*GGUF, "llama.rope.scaling.type", "llama.rope.scaling.factor", "tokenizer.ggml.tokens"]:
        with contextlib.suppress(ConfigError):
            gguf_spec({key: junk})
