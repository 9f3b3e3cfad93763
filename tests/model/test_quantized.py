"""Weights in the format that `--dtype` names: which matrices are quantized how; values are those of the file."""

import numpy as np
import pytest

from checkpoints import make_gguf, make_hf
from ridgeline.errors import CheckpointError, ConfigError
from ridgeline.model.quantized import arithmetic, held_bytes, in_format
from ridgeline.model.resolve import load_spec, resolve_model
from ridgeline.model.weights import RandomWeights, open_weights
from ridgeline.quant.formats import QUANTIZED, weight_format
from ridgeline.quant.group_form import GroupForm
from ridgeline.quant.round_to_nearest import round_to_nearest


def opened(path):
    files = resolve_model(str(path))
    spec = load_spec(files)
    return open_weights(files, spec), spec


def matrices(weights) -> list[str]:
    return [name for name, shape in weights.shapes.items() if len(shape) == 2]


@pytest.fixture(scope="module")
def tied(tmp_path_factory):
    return opened(make_hf(tmp_path_factory.mktemp("tied"), "qwen2", tied=True))


@pytest.fixture(scope="module")
def untied(tmp_path_factory):
    return opened(make_hf(tmp_path_factory.mktemp("untied"), "llama"))


@pytest.fixture(scope="module", params=["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K_M", "Q5_K_M"])
def gguf_file(request, tmp_path_factory):
    wide = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64} if "K" in request.param else {}
    directory = make_hf(tmp_path_factory.mktemp(request.param), "llama", **wide)
    return opened(make_gguf(directory, directory / "tiny.gguf", request.param)), request.param


@pytest.mark.parametrize("dtype", [name for name in QUANTIZED if name != "int8"])
def test_every_matrix_is_rounded_and_vectors_stay(dtype, untied):
    source, spec = untied
    weights = in_format(source, spec, dtype)
    assert weights.shapes == source.shapes
    for name, shape in weights.shapes.items():
        values = source.read(name)
        form = weights.group_form(name)
        if len(shape) == 1:
            assert form is None
            np.testing.assert_array_equal(weights.read(name), values)
            continue
        assert form == weight_format(dtype).form(shape[1])
        expected = round_to_nearest(values, form)
        groups = weights.read_groups(name)
        np.testing.assert_array_equal(groups.codes, expected.codes)
        np.testing.assert_array_equal(weights.read(name), expected.dequantize())
        assert groups.half_scales == form.half_scales
        assert not weights.takes_hadamard(name)
    assert arithmetic(weights, dtype) == ("w4a8" if dtype.startswith("int4") else "w8a8")


def test_int8_is_rotated_and_has_a_head_of_its_own(tied):
    source, spec = tied
    weights = in_format(source, spec, "int8")
    assert set(weights.shapes) == set(source.shapes) | {"head"}
    for name in matrices(weights):
        assert weights.group_form(name) == GroupForm(8, 128, weights.shapes[name][1], False, False)
        assert weights.takes_hadamard(name) == (name != "embed" and not name.endswith(".o"))
    assert (np.abs(weights.read("final_norm")) == 1).all()
    assert np.abs(weights.read("head") - source.read("embed")).max() > 0.1


@pytest.mark.parametrize("head", ["bf16", "int8-g32"])
def test_only_a_quantized_head_is_rotated(tied, head):
    weights = in_format(*tied, "int8", head)
    assert weights.takes_hadamard("head") == (head != "bf16")


@pytest.mark.parametrize("dtype", ["bf16", "int4-g32"])
@pytest.mark.parametrize("kind", ["tied", "untied"])
def test_an_int8_head_is_the_same_beside_every_dtype(kind, dtype, request):
    source, spec = request.getfixturevalue(kind)
    weights, expected = in_format(source, spec, dtype, "int8"), in_format(source, spec, "int8")
    assert weights.shapes == expected.shapes
    np.testing.assert_array_equal(weights.read_groups("head").codes, expected.read_groups("head").codes)
    np.testing.assert_array_equal(weights.read("final_norm"), expected.read("final_norm"))
    assert [name for name in matrices(weights) if weights.takes_hadamard(name)] == ["head"]
    assert weights.group_form("embed") == (expected if kind == "tied" else in_format(source, spec, dtype)).group_form(
        "embed"
    )
    np.testing.assert_array_equal(weights.read("layers.0.q"), in_format(source, spec, dtype).read("layers.0.q"))
    assert weights.stored_type("head") == expected.stored_type("head")


def test_plain_formats_are_the_checkpoint_itself(untied):
    source, spec = untied
    assert in_format(source, spec, "bf16") is source
    assert in_format(source, spec, "fp32", "fp32") is source


def test_the_head_has_the_format_asked_for(untied):
    source, spec = untied
    weights = in_format(source, spec, "int4-g32", "int8-g64")
    assert weights.group_form("head").bits == 8
    assert {weights.group_form(name).bits for name in matrices(weights) if name != "head"} == {4}
    assert arithmetic(weights, "int4-g32") == "w4a8 and w8a8"


def test_a_tied_embedding_goes_with_the_head(tied):
    source, spec = tied
    assert in_format(source, spec, "int4-g32", "int8-g32").group_form("embed").bits == 8
    rotated = in_format(source, spec, "int8", "int4-g32")  # but they are two once they are rotated
    assert (rotated.group_form("embed").bits, rotated.group_form("head").bits) == (8, 4)


@pytest.mark.parametrize("dtype", ["int8", "int4-g32"])
def test_a_head_may_stay_in_bf16(dtype, untied):
    source, spec = untied
    weights = in_format(source, spec, dtype, "bf16")
    assert (weights.group_form("head"), weights.stored_type("head")) == (None, "BF16")
    assert weights.group_form("embed") is not None


@pytest.mark.parametrize(
    ("dtype", "head_dtype"), [("int8", "fp32"), ("bf16", "fp32"), ("fp32", "bf16"), ("int8", "gguf"), ("bf16", "gguf")]
)
def test_formats_that_do_not_go_together(dtype, head_dtype, untied):
    source, spec = untied
    with pytest.raises(ConfigError, match=f"head_dtype '{head_dtype}' does not go with dtype '{dtype}'"):
        in_format(source, spec, dtype, head_dtype)


def test_a_gguf_files_own_groups_have_the_values_of_the_file(gguf_file):
    """Bit for bit, q and k too, whose rows lie in another rotary order there."""
    (source, spec), quantization = gguf_file
    weights = in_format(source, spec, "gguf")
    for name in matrices(weights):
        expected = source.read(name)
        assert weights.group_form(name) == weights.read_groups(name).form
        np.testing.assert_array_equal(weights.read(name).view(np.uint32), expected.view(np.uint32))
    expected_arithmetic = {"Q4_K_M": "w4a8 and w6a8", "Q5_K_M": "w5a8 and w6a8", "Q4_0": "w4a8", "Q4_1": "w4a8"}
    assert arithmetic(weights, "gguf") == expected_arithmetic.get(quantization, "w8a8")


def test_a_gguf_files_own_groups_stay_beside_a_rotated_head(gguf_file):
    (source, spec), _ = gguf_file
    weights = in_format(source, spec, "gguf", "int8")
    assert weights.group_form("layers.0.q") == source.stored_form("layers.0.q")
    np.testing.assert_array_equal(weights.read("layers.0.q"), source.read("layers.0.q"))
    np.testing.assert_array_equal(weights.read("head"), in_format(source, spec, "int8").read("head"))


def test_a_gguf_file_can_be_rounded_anew_and_its_head_too(gguf_file):
    (source, spec), _ = gguf_file
    weights = in_format(source, spec, "gguf", "int8-g32")
    np.testing.assert_array_equal(
        weights.read("head"), round_to_nearest(source.read("head"), GroupForm(8, 128, 32, False, True)).dequantize()
    )
    np.testing.assert_array_equal(weights.read("layers.0.q"), source.read("layers.0.q"))


def test_the_gguf_format_needs_a_quantized_file(untied, tmp_path):
    source, spec = untied
    plain = opened(make_gguf(make_hf(tmp_path, "llama"), tmp_path / "tiny.gguf", "F32"))
    for weights, own_spec in ((source, spec), plain, (RandomWeights(spec, 0), spec)):
        with pytest.raises(ConfigError, match="is for a GGUF file of quantized weights"):
            in_format(weights, own_spec, "gguf")


def test_weights_that_cannot_be_rounded_are_named(untied):
    _, spec = untied

    class Broken(RandomWeights):
        def read(self, name):
            factor = {"layers.1.up": np.nan, "layers.1.down": 1e10}.get(name, 1)
            return super().read(name) * np.float32(factor)

    weights = in_format(Broken(spec, 0), spec, "int4-g32")
    with pytest.raises(CheckpointError, match=r"layers\.1\.up cannot be rounded to int4-g32: there are NaN") as caught:
        weights.read_groups("layers.1.up")
    assert "damaged" in caught.value.hint
    with pytest.raises(CheckpointError, match=r"layers\.1\.down cannot be rounded .* scales outside") as caught:
        weights.read_groups("layers.1.down")
    assert "--dtype bf16" in caught.value.hint


def test_bytes_are_those_of_packed_matrices_and_fp32_vectors(untied):
    source, spec = untied
    vectors = sum(4 * shape[0] for shape in source.shapes.values() if len(shape) == 1)
    sizes = [source.shapes[name] for name in matrices(source)]
    assert held_bytes(source, "fp32") == vectors + sum(4 * a * b for a, b in sizes)
    assert held_bytes(in_format(source, spec, "int8"), "int8") == vectors + sum(
        a * (-(-b // 64) * 64 + 4) for a, b in sizes
    )
    head = 2 * np.prod(source.shapes["head"])
    rest = sum(a * (-(-b // 64) * 32 + -(-b // 64) * 4) for a, b in sizes) - 320 * 36
    assert held_bytes(in_format(source, spec, "int4-g32", "bf16"), "int4-g32") == vectors + rest + head
