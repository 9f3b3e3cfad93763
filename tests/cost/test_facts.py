import json
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from ridgeline.cost.facts import ModelFacts, facts_from_config, load_facts
from ridgeline.cost.memory import kv_bytes_per_token
from ridgeline.errors import CheckpointError, ConfigError
from ridgeline.model.catalog import catalog_names
from ridgeline.model.resolve import load_spec, resolve_model
from ridgeline.model.spec import from_config

GOLDEN = Path(__file__).parents[1] / "golden"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())


def golden(name: str) -> dict:
    return json.loads((GOLDEN / "configs" / name / "config.json").read_text())


@pytest.fixture(scope="module")
def facts() -> dict[str, ModelFacts]:
    return {name: facts_from_config(golden(name), name=name) for name in EXPECTED}


@pytest.mark.parametrize("name", EXPECTED)
def test_parameters_are_exact_to_the_integer(facts, name):
    truth, model = EXPECTED[name], facts[name]
    assert model.parameters == truth["params_total"]
    assert model.active_parameters == truth["params_active"]
    assert model.embedding_parameters == truth["params_embedding"]
    assert model.expert_parameters == truth["params_expert"]
    assert model.read_parameters == truth["params_read_per_decode_token_b1"]
    assert model.tied == truth["tied_embeddings"]


@pytest.mark.parametrize("name", EXPECTED)
def test_kv_bytes_are_exact_at_every_context(facts, name):
    truth, model = EXPECTED[name], facts[name]
    for context, size in truth["kv_bytes_at_ctx"].items():
        assert model.kv_bytes(int(context)) == size
    growing = truth["kv_bytes_per_token_bf16_growing"] + truth["indexer_bytes_per_token_bf16"]
    assert model.kv_bytes_per_token() == growing
    groups = model.cache_groups()
    assert sum(group.bytes_per_token for group in groups if group.window) == truth["kv_bytes_per_token_bf16_windowed"]
    assert sum(group.state_bytes for group in groups) == truth["recurrent_state_bytes_per_seq"]
    kinds: dict[str, int] = {}
    for group in groups:
        kinds[group.kind] = kinds.get(group.kind, 0) + group.num_layers
    assert kinds == truth["layer_cache_kinds"]


@pytest.mark.parametrize(
    "name", ["SmolLM2-135M", "Llama-3.1-8B", "Mistral-7B-v0.1", "Qwen2.5-7B-Instruct", "Qwen3-0.6B"]
)
def test_planner_and_engine_agree_on_models_that_can_be_served(facts, name):
    spec, model = from_config(golden(name), source=name), facts[name]
    assert spec.num_parameters == model.parameters
    groups = model.cache_groups()
    assert kv_bytes_per_token(spec, "bf16") == sum(group.bytes_per_token for group in groups)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_catalog_holds_every_configuration(facts, name):
    assert load_facts(name.lower()).anatomy == facts[name].anatomy


def test_formats_of_our_own_executor():
    tied, untied = load_facts("qwen3-0.6b"), load_facts("example-8b")
    table = tied.anatomy.vocab_size * tied.anatomy.hidden_size
    assert tied.weight_bytes("int8") > tied.parameters + table  # rotated: embedding and output matrix are two
    assert tied.weight_bytes("int8-g64") < tied.parameters * 1.05
    assert tied.decode_read_bytes("int8") == pytest.approx(tied.parameters, rel=0.01)  # of the embedding, a row
    halved = tied.weight_bytes("int8-g32") - tied.weight_bytes("int8-g32+int4-g32")
    assert halved == table // 2
    more = untied.weight_bytes("int4-g32+int8-g32") - untied.weight_bytes("int4-g32")
    assert more == untied.embedding_parameters // 2  # the output matrix alone
    with pytest.raises(ConfigError, match=r"is no \.gguf file"):
        tied.weight_bytes("gguf")
    with pytest.raises(ConfigError, match=r"no output matrix of another format: 'gguf\+int8'"):
        tied.weight_bytes("gguf+int8")
    two = tied.weight_bytes("int4-g32+int8") - tied.weight_bytes("int4-g32+int8-g128")
    assert two == pytest.approx(table, rel=0.05)  # a rotated output matrix beside the embedding
    assert tied.decode_read_bytes("int4-g32+int8") < tied.decode_read_bytes("int4-g32+int8-g128")


def test_example_8b():
    model = load_facts("example-8b")
    assert model.nominal_parameters == 8e9
    assert model.parameters == 8_028_164_096
    assert model.kv_bytes_per_token() == 131_072
    assert round(model.weight_bytes("bf16") / 1e9, 2) == 16.06
    assert round(model.weight_bytes("int8") / 1e9, 2) == 8.03
    assert round(model.kv_bytes(32_768) / 1e9, 2) == 4.29


def test_qwen3_in_bf16():
    model = load_facts("qwen3-0.6b")
    assert (model.parameters, model.kv_bytes_per_token()) == (596_049_920, 114_688)
    assert model.weight_bytes("bf16") == model.decode_read_bytes("bf16") == 2 * 596_049_920


def test_stored_bytes_follow_the_quantization_config(facts):
    assert facts["gpt-oss-20b"].weight_bytes("stored") == EXPECTED["gpt-oss-20b"]["mxfp4_weight_bytes"]
    assert facts["gpt-oss-20b"].stored_format == "mxfp4"
    assert facts["SmolLM2-135M"].weight_bytes("stored") == facts["SmolLM2-135M"].weight_bytes("bf16")
    v3 = facts["DeepSeek-V3"]
    unconverted = 2 * v3.embedding_parameters + 58 * 256 * 7168
    vectors = v3.parameters - unconverted - sum(
        m.num_values * (layer.experts.total if m in getattr(layer.experts, "matrices", ()) else 1)
        for layer in v3.anatomy.layers
        for m in layer.matrices + (layer.experts.matrices if layer.experts else ())
        if not m.is_router
    )  # fmt: skip
    converted = v3.parameters - unconverted - vectors
    scales = v3.weight_bytes("stored") - converted - 2 * (unconverted + vectors)
    assert converted / 128**2 * 4 <= scales < converted / 128**2 * 4 * 1.001  # the edges are partial blocks


def test_decode_reads_of_an_untied_model_leave_out_the_rows_not_looked_up(facts):
    model = facts["Llama-3.1-8B"]
    table = 2 * model.embedding_parameters
    assert model.weight_bytes("bf16") - model.decode_read_bytes("bf16") == table - 2 * 4096
    assert model.weight_bytes("bf16") - model.decode_read_bytes("bf16", 8) == table - 8 * 2 * 4096
    gpt2 = facts["gpt2"]  # positions are looked up too, the tied table is read as the output matrix
    assert gpt2.weight_bytes("bf16") - gpt2.decode_read_bytes("bf16") == 2 * 1023 * 768


def test_expert_reads_grow_with_the_batch_as_distinct_experts_do(facts):
    """Qwen3-30B-A3B: 8, 52, 82, 126 of 128 experts at batch 1, 8, 16, 64."""
    model = facts["Qwen3-30B-A3B"]
    expert_bytes = 2 * model.expert_parameters / 128

    def experts(batch: int) -> float:
        everything_else = model.weight_bytes("bf16") - 128 * expert_bytes - 2 * model.embedding_parameters
        return (model.decode_read_bytes("bf16", batch) - everything_else - batch * 4096) / expert_bytes

    assert [round(experts(batch)) for batch in (1, 8, 16, 64)] == [8, 52, 82, 126]


def test_kv_formats_change_the_cache_and_not_the_state(facts):
    dense = facts["Llama-3.1-8B"]
    assert dense.kv_bytes(1000, "fp8") == dense.kv_bytes(1000) // 2
    assert dense.kv_bytes(1000, "int8") == dense.kv_bytes(1000) // 2 + 1000 * 32 * 16 * 4  # a scale per head
    assert dense.kv_bytes_per_token("q8_0") == 65_536 * 34 // 32
    hybrid = facts["Qwen3-Next-80B-A3B"]
    assert hybrid.kv_bytes(0, "fp8") == EXPECTED["Qwen3-Next-80B-A3B"]["recurrent_state_bytes_per_seq"]
    with pytest.raises(ConfigError, match="KV format 'int5' is unknown"):
        dense.kv_bytes(1, "int5")


def test_cache_reads_per_step(facts):
    assert facts["Llama-3.1-8B"].kv_read_bytes(1000) == facts["Llama-3.1-8B"].kv_bytes(1000)
    sparse = facts["DeepSeek-V3.2"]  # all indexer keys, 2,048 latents
    assert sparse.kv_read_bytes(100_000) == 61 * 2 * (128 * 100_000 + 576 * 2048)
    state = EXPECTED["Qwen3-Next-80B-A3B"]["recurrent_state_bytes_per_seq"]
    assert facts["Qwen3-Next-80B-A3B"].kv_read_bytes(10) == 2 * state + 24_576 * 10
    chunked = facts["Llama-4-Scout-17B-16E"]  # the first token of a chunk sees itself alone
    assert chunked.kv_read_bytes(8193) == 49_152 * 8193 + 147_456


def test_linear_flops_count_the_output_matrix_once_per_logit_row():
    model = load_facts("example-8b")
    layers = 32 * 4096 * (2 * 4096 + 2 * 1024 + 3 * 14_336)
    assert model.linear_flops(2000, 1) == 2 * (2000 * layers + 128_000 * 4096)
    assert model.linear_flops(1, 0) == 2 * layers


def visible(kind: str, position: int, window: int | None) -> int:
    """By definition, key by key."""
    if kind == "chunked" and window:
        return sum(key // window == position // window for key in range(position + 1))
    return sum(window is None or position - key < window for key in range(position + 1))


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "gpt-oss-20b", "MiMo-V2-Flash", "Phi-3-mini-4k"])
@pytest.mark.parametrize(("start", "end"), [(0, 300), (100, 300), (299, 300), (300, 300)])
def test_attention_flops_count_visible_keys_one_by_one(facts, name, start, end):
    model = facts[name]
    expected = sum(
        2 * a.num_heads * (a.key_dim + a.value_dim) * visible(a.kind, position, a.window)
        for a in (layer.mixer for layer in model.anatomy.layers)
        for position in range(start, end)
    )
    assert model.attention_flops(start, end) == expected


def test_attention_flops_of_chunks():
    config = golden("Llama-4-Scout-17B-16E")
    config["text_config"] |= {"attention_chunk_size": 32}
    model = facts_from_config(config, name="chunks")
    per_key = 2 * 40 * 256
    keys = [12 * visible("full", p, None) + 36 * visible("chunked", p, 32) for p in range(20, 150)]
    assert model.attention_flops(20, 150) == per_key * sum(keys)


def test_mla_takes_the_cheaper_form(facts):
    """Decode maps queries into the latent; prefill expands keys and values, which are then part of linear FLOPs."""
    model = facts["DeepSeek-V3"]
    assert model.attention_flops(9999, 10_000) == 61 * 2 * 128 * (2 * 512 + 64) * 10_000
    assert model.attention_flops(0, 1000) == 61 * 2 * 128 * (64 + 128 + 128) * 500_500


def test_recurrent_layers_cost_the_same_at_every_position(facts):
    model = facts["granite-4.0-h-tiny"]
    attention = 4 * 2 * 12 * 256
    steps = [model.attention_flops(p, p + 1) - attention * (p + 1) for p in (0, 5000)]
    assert steps[0] == steps[1] == 36 * 5 * 48 * 64 * 128


def test_what_is_assumed_or_left_out_is_said(facts):
    assert facts["Llama-3.1-8B"].assumptions == ()
    assert "bf16 is assumed" in facts["gpt2"].assumptions[0]
    assert "MTP" in facts["DeepSeek-V3"].assumptions[0]
    assert "text model alone" in facts["gemma-4-26B-A4B"].assumptions[0]


# Files


def test_the_bundled_gguf_agrees_with_its_config_and_the_engine():
    files = resolve_model("smollm2-135m")
    model, config = load_facts(str(files.path)), load_facts("smollm2-135m")
    assert (model.parameters, model.kv_bytes(8192)) == (config.parameters, config.kv_bytes(8192))
    assert model.kv_bytes_per_token() == kv_bytes_per_token(load_spec(files), "bf16")
    stored = model.weight_bytes("stored")
    assert stored < files.path.stat().st_size < stored * 1.1  # the rest is vocabulary
    assert model.decode_read_bytes("stored") == stored  # tied: the table is the output matrix
    assert model.stored_format == "gguf"


def checkpoint(tmp_path: Path, *, copy_head: bool) -> Path:
    config = golden("Qwen3-0.6B") | {"hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 8}
    config |= {"vocab_size": 10, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    layer = "model.layers.0."
    shapes = {
        "model.embed_tokens.weight": (10, 16), "model.norm.weight": (16,),
        layer + "self_attn.q_proj.weight": (8, 16), layer + "self_attn.k_proj.weight": (4, 16),
        layer + "self_attn.v_proj.weight": (4, 16), layer + "self_attn.o_proj.weight": (16, 8),
        layer + "self_attn.q_norm.weight": (4,), layer + "self_attn.k_norm.weight": (4,),
        layer + "mlp.gate_proj.weight": (8, 16), layer + "mlp.up_proj.weight": (8, 16),
        layer + "mlp.down_proj.weight": (16, 8),
        layer + "input_layernorm.weight": (16,), layer + "post_attention_layernorm.weight": (16,),
    }  # fmt: skip
    if copy_head:
        shapes["lm_head.weight"] = (10, 16)
    save_file({name: np.zeros(shape, np.float16) for name, shape in shapes.items()}, tmp_path / "model.safetensors")
    return tmp_path


def test_an_untied_copy_of_a_tied_head_is_explained_and_not_counted(tmp_path):
    model = load_facts(str(checkpoint(tmp_path, copy_head=True)))
    assert model.files is not None
    assert model.files.num_parameters == model.parameters + 160
    assert model.note == "1,144 parameters are stored, 984 are unique: lm_head.weight repeats the embedding table (160)"
    assert model.weight_bytes("stored") == 2 * model.parameters


def test_a_checkpoint_without_a_copy_needs_no_explanation(tmp_path):
    model = load_facts(str(checkpoint(tmp_path, copy_head=False)))
    assert model.note is None
    assert model.weight_bytes("stored") == 2 * model.parameters


def test_a_checkpoint_that_does_not_fit_its_config_is_told(tmp_path):
    directory = checkpoint(tmp_path, copy_head=False)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"intermediate_size": 9}))
    assert load_facts(str(directory)).note == "984 values are stored, the config's model has 1,032 parameters"


@pytest.mark.parametrize("damage", [b"", struct.pack("<Q", 1 << 60), struct.pack("<Q", 2) + b"[]"])
def test_a_damaged_checkpoint_is_one_clear_error(tmp_path, damage):
    directory = checkpoint(tmp_path, copy_head=False)
    (directory / "model.safetensors").write_bytes(damage)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: not a safetensors file"):
        load_facts(str(directory))


# Names


def test_unknown_names_and_missing_paths():
    with pytest.raises(ConfigError) as caught:
        load_facts("qwen3-0.7b")
    assert "'qwen3-0.6b'" in (caught.value.hint or "")
    with pytest.raises(ConfigError, match="no such file or directory"):
        load_facts("./nowhere/config.json")


def test_a_hub_id_needs_its_config_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE forbids a download"):
        load_facts("Qwen/Qwen3-0.6B")
    snapshot = tmp_path / "models--Qwen--Qwen3-0.6B" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(golden("Qwen3-0.6B")))
    assert load_facts("Qwen/Qwen3-0.6B").parameters == 596_049_920


def test_every_catalog_entry_can_be_described():
    names = catalog_names()
    assert {"example-8b", "qwen3-0.6b", "llama-3.1-8b"} <= set(names)
    for name in names:
        assert load_facts(name).parameters > 0


def test_planning_by_name_imports_no_tensor_library():
    code = (
        "import sys; from ridgeline.cost.facts import load_facts; load_facts('qwen3-0.6b').decode_read_bytes('bf16');"
        "print(sorted({'numpy', 'torch', 'transformers', 'safetensors'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"
