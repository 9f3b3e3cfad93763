"""Quantized matrices in the native executor: the logits of dequantized weights and 8-bit activations, the same bits
under every schedule and on every ISA path, whatever mix of formats a file holds."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from checkpoints import VOCAB_SIZE, make_gguf, make_hf
from executors_under_test import open_executor
from ridgeline._native import kernels
from ridgeline.cost.facts import load_facts
from ridgeline.errors import ConfigError
from ridgeline.model.program import weight_shapes
from ridgeline.model.quantized import in_format
from ridgeline.model.resolve import load_spec, resolve_model
from ridgeline.quant.formats import QUANTIZED
from ridgeline.quant.group_form import GroupForm
from ridgeline.quant.groups import GroupedWeights
from step_plans import Stepper

PROMPTS = [np.random.default_rng(seed).integers(3, VOCAB_SIZE, size).tolist() for seed, size in ((0, 70), (1, 33))]
SHORT_PROMPTS = [np.random.default_rng(seed).integers(3, VOCAB_SIZE, 4).tolist() for seed in range(15)]
WHOLE = 1 << 16  # longer than any row

INT8 = GroupForm(8, 128, WHOLE, False, False)
INT8_G32 = GroupForm(8, 128, 32, False, True)
INT4_G32 = GroupForm(4, 8, 32, False, True)
INT4_MINIMUM = GroupForm(4, 0, 32, True, False)
INT6_G16 = GroupForm(8, 32, 16, False, False)

# name of a case -> the form of a matrix, by the last part of its name; "" stands for all others, None for not quantized
CASES: dict[str, dict[str, GroupForm | None]] = {
    "int8": {"": INT8},
    "int8-g32": {"": INT8_G32},
    "int4": {"": INT4_G32},
    "int4-with-int8-head": {"": INT4_G32, "head": INT8},
    "gguf-mix": {"": INT4_MINIMUM, "v": INT6_G16, "down": INT6_G16, "embed": INT6_G16, "head": INT6_G16},
    "all-mixed": {"q": INT4_G32, "k": INT8, "v": None, "o": None, "gate": INT4_G32, "up": INT6_G16, "": INT8_G32},
    "head-alone": {"head": INT4_G32, "": None},
    "gate-alone": {"gate": INT4_G32, "up": None, "down": INT8, "": None},
}


class QuantizedWeights:
    """`source` rounded to the nearest codes; inputs of `down` in whole rows go through a Hadamard transform, which its
    columns do not undo: another model, but the same for every executor."""

    def __init__(self, source, forms):
        self._source, self._forms, self.shapes = source, forms, source.shapes

    def group_form(self, name):
        return self._form(name)

    def _form(self, name):
        part = name.rpartition(".")[2]
        form = self._forms.get(part, self._forms[""]) if len(self.shapes[name]) == 2 else None
        inner = self.shapes[name][-1]
        return form and GroupForm(form.bits, form.zero, min(form.group, inner), form.has_minima, form.half_scales)

    def takes_hadamard(self, name):
        form = self._form(name)
        return name.endswith("down") and form is not None and form.group == self.shapes[name][1]

    def read_groups(self, name):
        form, values = self._form(name), self._source.read(name)
        groups = values.reshape(len(values), -1, form.group)
        low, high = groups.min(-1), groups.max(-1)
        minima = low if form.has_minima else np.zeros_like(low)
        scales = (high - low) / 15 if form.has_minima else np.maximum(high, -low) / (form.zero - 1)
        if form.half_scales:
            scales = scales.astype(np.float16).astype(np.float32)
        codes = np.rint((groups - minima[..., None]) / scales[..., None]) + form.zero
        codes = codes.clip(0, (1 << form.bits) - 1).astype(np.uint8).reshape(values.shape)
        return GroupedWeights(codes, scales, minima if form.has_minima else None, form.bits, form.zero, form.group)

    def read(self, name):
        return self.read_groups(name).dequantize() if self._form(name) else self._source.read(name)

    def __getattr__(self, name):
        return getattr(self._source, name)


class AsOneMatrix(QuantizedWeights):
    """The same, but with the form that gate and value have in one matrix, as the native executor holds them."""

    def group_form(self, name):
        layer, _, part = name.rpartition(".")
        if part not in ("gate", "up"):
            return self._form(name)
        gate, up = (self._form(f"{layer}.{part}") for part in ("gate", "up"))
        return gate and up and replace(self._form(name), group=math.gcd(gate.group, up.group))


@pytest.fixture(scope="module", params=["qwen3", "llama3"])
def model(request, tmp_path_factory) -> str:
    """q/k norms with a head size of its own; biases everywhere."""
    return str(make_hf(tmp_path_factory.mktemp(request.param), request.param))


def open_quantized(kind, model, case, **options):
    defaults = {"dtype": case, "kv_dtype": "bf16", "view": lambda w, *_: QuantizedWeights(w, CASES[case])}
    return open_executor(kind, model, **(defaults | options))


def logits_of(executor, prompts=PROMPTS):
    """[prompts] of [tokens, vocabulary]."""
    return Stepper(executor).logits(prompts)


def assert_close(ours, oracle):
    """Logits of order 4 agree to some 1e-6, until a sum that differs in the last bit rounds to the next code, which is
    1/127 of a group's largest value away; the rest of that sequence carries it on. Few of the short ones have one."""
    differences = [np.abs(a - b).max() for a, b in zip(ours, oracle, strict=True)]
    assert np.median(differences) < 2e-5, differences
    assert max(differences) < 1, differences


@pytest.mark.parametrize("case", CASES)
def test_logits_follow_the_oracle(model, case):
    with open_quantized("native", model, case, kv_dtype="fp32") as executor:
        ours = logits_of(executor, SHORT_PROMPTS)
    as_one = {"view": lambda w, *_: AsOneMatrix(w, CASES[case])}
    with open_quantized("torch", model, case, kv_dtype="fp32", **as_one) as executor:
        assert_close(ours, logits_of(executor, SHORT_PROMPTS))


@pytest.mark.parametrize("case", CASES)
def test_bits_do_not_depend_on_the_schedule(model, case):
    with open_quantized("native", model, case, threads=1) as executor:
        alone = [Stepper(executor).logits([prompt])[0] for prompt in PROMPTS]
    with open_quantized("native", model, case, threads=2) as executor:
        for chunk in (None, 64, 16, 7, 1):
            together = Stepper(executor).logits(PROMPTS, chunk)
            for ours, expected in zip(together, alone, strict=True):
                np.testing.assert_array_equal(ours, expected, err_msg=f"chunk {chunk}")


@pytest.mark.parametrize("case", CASES)
def test_every_isa_path_gives_the_same_bits(model, case, monkeypatch):
    logits = {}
    for isa in kernels.isas():
        monkeypatch.setenv("RIDGELINE_ISA", isa)
        with open_quantized("native", model, case) as executor:
            logits[isa] = np.concatenate(logits_of(executor))
    for isa, rows in logits.items():
        np.testing.assert_array_equal(rows, logits["generic"], err_msg=isa)


def test_weights_take_the_bytes_of_their_form(model):
    with open_quantized("native", model, "int4") as quantized, open_executor("native", model) as plain:
        smaller = plain.weight_bytes - quantized.weight_bytes
    shapes = [shape for shape in weight_shapes(load_spec(resolve_model(model))).values() if len(shape) == 2]
    # all outputs here fill blocks of 16; rows of 96 are padded to 128 codes
    padded = {64: 64, 96: 128, 128: 128}
    expected = sum(rows * (4 * inner - padded[inner] // 2 - padded[inner] // 32 * 2) for rows, inner in shapes)
    assert smaller == expected


class PoisonedWeights(QuantizedWeights):
    """Token 7 has an embedding of NaN."""

    def read_groups(self, name):
        groups = super().read_groups(name)
        if name == "embed":
            groups.scales[7] = np.nan
        return groups


@pytest.mark.parametrize("case", ["int8", "int4"])
def test_a_row_of_nan_stays_alone(model, case):
    healthy = [token_id for token_id in PROMPTS[1] if token_id != 7]
    with open_quantized("native", model, case, view=lambda w, *_: PoisonedWeights(w, CASES[case])) as executor:
        (alone,) = Stepper(executor).logits([healthy])
        beside, sick = Stepper(executor).logits([healthy, [7] * 20])
        (after,) = Stepper(executor).logits([healthy])
    assert np.isnan(sick).all()
    np.testing.assert_array_equal(beside, alone)
    np.testing.assert_array_equal(after, alone)


def test_the_arithmetic_is_named_by_the_forms_of_all_matrices(model):
    names = set()
    for case in ("int4", "int4", "int4-with-int8-head"):
        with open_quantized("native", model, case, dtype="int4") as executor:
            assert "-int4." in executor.arithmetic_id
            names.add(executor.arithmetic_id)
    assert len(names) == 2
    for form in (INT4_G32, None):
        view = lambda w, *_, form=form: QuantizedWeights(w, {"": None, "head": form})  # noqa: E731
        with open_executor("native", model, view=view) as executor:
            assert ("-fp32-fp32" in executor.arithmetic_id) == (form is None)


@pytest.fixture(scope="module")
def tied(tmp_path_factory) -> Path:
    return make_hf(tmp_path_factory.mktemp("tied"), "qwen3", tied=True, hidden_size=96)


@pytest.mark.parametrize("dtype", QUANTIZED)
def test_every_served_format_follows_the_oracle(dtype, tied):
    """The whole loading path: rotation with its Hadamard transform at run time, then rounding."""
    assert_served(str(tied), dtype)


def test_a_plain_head_beside_rotated_matrices_is_not_rotated(tied):
    """A head and an input of which only one is rotated would have nothing to do with the model's logits."""

    def logits(dtype, head=None):
        view = lambda weights, spec, dtype: in_format(weights, spec, dtype, head)  # noqa: E731
        with open_executor("native", str(tied), dtype=dtype, view=view) as executor:
            return logits_of(executor, SHORT_PROMPTS)[0]

    expected = logits("fp32")
    assert np.abs(logits("int8", "bf16") - expected).mean() < 0.05 * np.abs(expected).mean()


@pytest.mark.parametrize("quantization", ["Q4_1", "Q5_0", "Q8_0", "Q4_K_M", "Q5_K_M"])
def test_a_gguf_files_own_groups_follow_the_oracle(quantization, tmp_path):
    assert_served(make_gguf_file(tmp_path, quantization), "gguf")


def make_gguf_file(directory, quantization) -> str:
    make_hf(directory, "llama", hidden_size=256, intermediate_size=512, head_dim=64)
    return str(make_gguf(directory, directory / "tiny.gguf", quantization))


@pytest.fixture(scope="module", params=["Q4_K_M", "Q5_K_M"])
def k_mix(request, tmp_path_factory) -> str:
    return make_gguf_file(tmp_path_factory.mktemp(request.param), request.param)


def test_bits_of_k_formats_do_not_depend_on_schedule_threads_or_isa_path(k_mix, monkeypatch):
    with open_executor("native", k_mix, dtype="gguf", threads=1) as executor:
        alone = [Stepper(executor).logits([prompt])[0] for prompt in PROMPTS]
    for isa in kernels.isas():
        monkeypatch.setenv("RIDGELINE_ISA", isa)
        with open_executor("native", k_mix, dtype="gguf", threads=2) as executor:
            for chunk in (None, 16, 7, 1):
                for ours, expected in zip(Stepper(executor).logits(PROMPTS, chunk), alone, strict=True):
                    np.testing.assert_array_equal(ours, expected, err_msg=f"{isa}, chunk {chunk}")


def test_k_formats_take_the_bytes_of_the_file(k_mix):
    """Codes, subscales, scales: as many bits a weight, in rows of whole blocks; a plan knows it."""
    facts = load_facts(k_mix)
    stored = sum(size for _, size in facts.files.tensors.values())
    with open_executor("native", k_mix, dtype="gguf") as executor:
        assert executor.weight_bytes == facts.weight_bytes("gguf") == stored


def assert_served(model, dtype):
    logits = {}
    for kind in ("native", "torch"):
        with open_executor(kind, model, dtype=dtype) as executor:
            logits[kind] = logits_of(executor, SHORT_PROMPTS)
    assert np.abs(logits["torch"][0]).mean() > 0.1
    assert_close(logits["native"], logits["torch"])


def test_a_dtype_that_the_weights_do_not_have_is_refused(model):
    with (
        pytest.raises(ConfigError, match="do not come as 'int4'"),
        open_executor("native", model, dtype="int4", view=lambda weights, *_: weights),
    ):
        pass
