import gguf
import pytest

from ridgeline.errors import ConfigError
from ridgeline.quant.formats import FORMATS, kv_format, weight_format
from ridgeline.quant.group_form import GroupForm
from ridgeline.quant.released import release


def test_block_formats_take_what_ggml_says():
    known = {kind.name.lower(): sizes for kind, sizes in gguf.GGML_QUANT_SIZES.items()} | {"fp32": (1, 4)}
    blocked = [fmt for fmt in FORMATS.values() if fmt.fallback or fmt.name in ("bf16", "f16", "fp32")]
    assert len(blocked) > 20
    for fmt in blocked:
        block_len, block_bytes = known[fmt.name]
        assert fmt.size(3, 512) == 3 * 512 // block_len * block_bytes, fmt.name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fp32", 4 * 300 * 1024),
        ("bf16", 2 * 300 * 1024),
        ("int8", 300 * 1024 + 300 * 4),
        ("int4-g128", 300 * 1024 // 2 + 300 * 8 * 2),
        ("int8-g32", 300 * 1024 + 300 * 32 * 2),
        ("int4", 300 * 1024 // 2 + 300 * 32 * 2),
        ("int4-g128-zp", 300 * 1024 // 2 + 300 * 8 * 4),
        ("fp8", 300 * 1024 + 300 * 4),
        ("fp8-128x128", 300 * 1024 + 3 * 8 * 4),  # 300 rows: two whole blocks and a partial one
        ("mxfp4", 300 * 1024 * 17 // 32),
        ("nvfp4", 300 * 1024 // 2 + 300 * 64 + 4),
    ],
)
def test_scales_and_zero_points_count(name, expected):
    assert weight_format(name).size(300, 1024) == expected


def test_rows_that_are_no_whole_blocks_take_the_next_format_as_in_llama_cpp():
    assert weight_format("q4_k").size(2, 576) == FORMATS["q5_0"].size(2, 576) == 2 * 18 * 22
    assert weight_format("q6_k").size(1, 100) == FORMATS["f16"].size(1, 100) == 200


@pytest.mark.parametrize(
    ("name", "inner", "expected"),
    [("int8", 1000, 1024 + 4), ("int8-g32", 1000, 1024 + 32 * 2), ("int4-g128", 576, 640 // 2 + 5 * 2),
     ("int4-g128-zp", 96, 128 // 2 + 4)],
)  # fmt: skip
def test_rows_of_our_own_formats_are_padded_to_whole_tiles_and_groups(name, inner, expected):
    assert weight_format(name).size(3, inner) == 3 * expected


def test_forms_of_our_own_formats():
    assert weight_format("int8").form(576) == GroupForm(8, 128, 576, False, False)
    assert weight_format("int4").form(576) == GroupForm(4, 8, 32, False, True)
    assert weight_format("int4-g128-zp").form(96) == GroupForm(4, 0, 96, True, True)


def test_k_and_v_are_vectors_with_a_scale_each():
    assert kv_format("int8").size(8, 100) == 8 * (100 + 4)
    assert kv_format("fp8").size(8, 100) == 8 * 100


def test_an_empty_matrix_takes_nothing():
    assert [fmt.size(0, 64) + fmt.size(64, 0) for fmt in FORMATS.values()] == [0] * len(FORMATS)


def test_unknown_formats_are_refused():
    with pytest.raises(ConfigError) as caught:
        weight_format("int4-g127")
    assert "'int4-g128'" in (caught.value.hint or "")
    with pytest.raises(ConfigError, match="mix of formats"):
        weight_format("Q4_K_M")
    with pytest.raises(ConfigError, match="KV format 'mxfp4' is unknown"):
        kv_format("mxfp4")


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False}
GROUP = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
COMPRESSED = {"quant_method": "compressed-tensors", "format": "pack-quantized"}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (GPTQ, 256 * 512 // 2 + 256 * 4 * 2 + 256 * 4 // 2 + 512 * 4),
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, 256 * 512 // 2 + 256 * 8 * 2 + 256 * 8 // 2),
        ({"quant_method": "fp8", "weight_block_size": [64, 128]}, 256 * 512 + 4 * 4 * 4),
        ({"quant_method": "fp8"}, 256 * 512 + 4),
        ({"quant_method": "mxfp4"}, 256 * 512 * 17 // 32),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 256 * 512 // 2 + 256 * 32 + 8),
        (COMPRESSED | {"config_groups": {"group_0": {"weights": GROUP}}}, 256 * 512 // 2 + 256 * 16 * 2 + 16),
    ],
)
def test_released_formats(config, expected):
    assert release(config, "c").fmt.size(256, 512) == expected


def test_modules_left_alone():
    names = ["lm_head", "re:.*self_attn.*", "model.layers.1", "model.layers.*.mlp.shared_experts"]
    released = release(COMPRESSED | {"config_groups": {"group_0": {"weights": GROUP}}, "ignore": names}, "c")
    module = "model.layers.{}.mlp.{}"
    assert released.converts(module.format(0, "gate_proj"))
    assert released.converts(module.format(10, "gate_proj"))  # not layer 1
    assert not released.converts(module.format(1, "gate_proj"))
    assert not released.converts(module.format(0, "shared_experts.up_proj"))
    assert not released.converts("model.layers.0.self_attn.q_proj")


def test_mxfp4_converts_experts_only():
    released = release({"quant_method": "mxfp4"}, "c")
    assert released.converts("model.layers.0.mlp.experts.up_proj")
    assert not released.converts("model.layers.0.self_attn.q_proj")


def test_a_pattern_that_names_nothing_is_refused():
    released = release(
        GPTQ | {"modules_to_not_convert": ["model.layers.0.mixer.in_proj", "model.visual", "lm_head"]}, "c"
    )
    with pytest.raises(
        ConfigError, match=r"leaves 'model\.layers\.0\.mixer\.in_proj' alone, which names no known module"
    ):
        released.refuse_unknown(["model.layers.0.self_attn.q_proj"], 1, "c")
    released.refuse_unknown(["model.layers.0.mixer.in_proj"], 1, "c")
    release(GPTQ | {"ignore": ["model.layers.61.self_attn"]}, "c").refuse_unknown([], 61, "c")  # a prediction layer


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"quant_method": "bitsandbytes"}, "quant_method 'bitsandbytes' is unknown"),
        ({}, "quant_method '' is unknown"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8"}, "quant_algo 'W4A8' is unknown"),
        (GPTQ | {"bits": 5}, "gptq with bits 5 and group_size 128"),
        (GPTQ | {"group_size": None}, "gptq with bits 4 and group_size None"),
        ({"quant_method": "fp8", "weight_block_size": 128}, "weight_block_size is 128, not two sizes"),
        (COMPRESSED, "has 0 config_groups"),
        (COMPRESSED | {"config_groups": {"a": {"weights": GROUP | {"strategy": "token"}}}}, "'token' are unknown"),
        (COMPRESSED | {"config_groups": [GROUP]}, "has 0 config_groups"),
        (COMPRESSED | {"config_groups": {"a": 1}}, "config group are missing"),
        (GPTQ | {"ignore": "lm_head"}, "ignore is 'lm_head', not a list of names"),
        (GPTQ | {"ignore": ["re:["]}, "'re:\\['"),
    ],
)
def test_unknown_quantization_is_refused_by_name(config, problem):
    with pytest.raises(ConfigError, match=problem):
        release(config, "c")
