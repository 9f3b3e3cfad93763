"""Which rotation is read from config.json and GGUF metadata, against transformers; what contradicts is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from checkpoints import make_gguf, make_hf
from executors_under_test import open_executor
from ridgeline.errors import ConfigError
from ridgeline.model.rope_scaling import RopeScaling
from ridgeline.model.spec import from_config
from specs import gguf_spec, golden, spec_of
from step_plans import Stepper

PROMPT = list(range(3, 123))
LINEAR = {"rope_type": "linear", "factor": 4.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}  # fmt: skip


def theirs(directory: Path) -> torch.Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.inference_mode():
        return model(torch.tensor([PROMPT])).logits[0]


def ours(path: Path) -> torch.Tensor:
    with open_executor("torch", str(path)) as executor:
        (logits,) = Stepper(executor).logits([PROMPT])
    return torch.from_numpy(logits)


def edit(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("scaling", [LINEAR, LLAMA3], ids=lambda scaling: scaling["rope_type"])
def test_scaling_added_beside_default_rope_parameters_counts_as_in_transformers(scaling, tmp_path):
    directory = make_hf(tmp_path, "llama")
    plain = theirs(directory)
    assert json.loads((directory / "config.json").read_text())["rope_parameters"]["rope_type"] == "default"
    edit(directory, rope_scaling=scaling)
    expected = theirs(directory)
    assert not torch.allclose(expected, plain, atol=0.1)
    torch.testing.assert_close(ours(directory), expected, atol=1e-4, rtol=0)


def test_a_gguf_factor_without_a_type_is_linear_as_in_llama_cpp(tmp_path):
    directory = make_hf(tmp_path, "llama", rope_parameters=LINEAR | {"rope_theta": 10_000.0})
    path = make_gguf(directory, tmp_path / "tiny.gguf", metadata={"llama.rope.scaling.factor": 4.0})
    torch.testing.assert_close(ours(path), theirs(directory), atol=1e-4, rtol=0)


PARAMETERS = {"rope_type": "default", "rope_theta": 10_000.0}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rope_parameters": PARAMETERS, "rope_scaling": LINEAR}, (10_000.0, RopeScaling("linear", 4.0))),
        ({"rope_parameters": PARAMETERS, "rope_scaling": None}, (10_000.0, None)),
        ({"rope_parameters": PARAMETERS | LINEAR, "rope_scaling": LINEAR}, (10_000.0, RopeScaling("linear", 4.0))),
        ({"rope_parameters": PARAMETERS | {"rope_theta": 5e5}, "rope_scaling": LINEAR | {"rope_theta": 5e5}},
         (5e5, RopeScaling("linear", 4.0))),
        ({"rope_scaling": LINEAR, "rope_theta": 5e5}, (5e5, RopeScaling("linear", 4.0))),
        ({"rope_scaling": {"type": "linear", "factor": 4}}, (10_000.0, RopeScaling("linear", 4.0))),
        ({"rope_scaling": LINEAR | {"original_max_position_embeddings": 99}}, (10_000.0, RopeScaling("linear", 4.0))),
        ({"rope_scaling": {"rope_type": "default", "factor": 1.0}}, (10_000.0, None)),
    ],
)  # fmt: skip
def test_readings(changes, expected):
    config = golden("SmolLM2-135M", rope_theta=None, rope_scaling=None)
    spec = from_config(config | changes, source="c")
    assert (spec.rope_theta, spec.rope_scaling) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"rope_parameters": PARAMETERS, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
            "'yarn': not supported",
        ),
        ({"rope_parameters": PARAMETERS | LINEAR, "rope_scaling": LINEAR | {"factor": 8.0}}, "says otherwise"),
        ({"rope_parameters": PARAMETERS | LINEAR, "rope_scaling": {"rope_type": "default"}}, "says otherwise"),
        ({"rope_parameters": PARAMETERS | {"rope_theta": 1e6}, "rope_scaling": LINEAR}, "rope_theta is 1e"),
        ({"rope_parameters": PARAMETERS, "rope_theta": 1e6}, "rope_theta is 10000 .* and 1e"),
        (
            {"rope_scaling": {"rope_type": "default", "factor": 4.0}},
            "factor is 4.0: not supported for rope_type default",
        ),
        ({"rope_scaling": {"factor": 4.0}}, "factor is 4.0: not supported for rope_type default"),
        ({"rope_scaling": LINEAR | {"type": "llama3"}}, "type is 'llama3', rope_type is 'linear'"),
        ({"rope_scaling": LINEAR | {"attention_factor": 0.5}}, "attention_factor is 0.5"),
        ({"rope_parameters": {"full_attention": PARAMETERS}}, "full_attention is"),
    ],
)
def test_contradictions_and_what_is_not_computed_are_refused(changes, message):
    config = golden("SmolLM2-135M", rope_theta=None, rope_scaling=None)
    with pytest.raises(ConfigError, match=message):
        from_config(config | changes, source="c")


@pytest.mark.parametrize(
    ("metadata", "factor"),
    [
        ({"rope.scaling.factor": 4.0}, 4.0),
        ({"rope.scale_linear": 4.0}, 4.0),
        ({"rope.scaling.factor": 0.0, "rope.scale_linear": 4.0}, 4.0),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 1.0}, None),
        ({"rope.scaling.factor": 0.0, "rope.scaling.finetuned": True}, None),
    ],
)
def test_gguf_factors(metadata, factor):
    spec = gguf_spec({"llama." + key: value for key, value in metadata.items()})
    assert spec.rope_scaling == (RopeScaling("linear", factor) if factor else None)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, "is none, and the factor is 4"),
        ({"rope.scaling.factor": 4.0, "rope.scale_linear": 2.0}, "are 4 and 2: one quantity"),
        ({"rope.scaling.type": "linear"}, "rope.scaling.factor is missing"),
        ({"rope.scaling.factor": -1.0}, "below 0"),
    ],
)
def test_gguf_factors_that_contradict(metadata, message):
    with pytest.raises(ConfigError, match=message):
        gguf_spec({"llama." + key: value for key, value in metadata.items()})


def test_a_gguf_does_not_scale_twice():
    with pytest.raises(ConfigError, match=r"the file holds rope_freqs\.weight too"):
        gguf_spec({"llama.rope.scaling.factor": 4.0}, ("rope_freqs.weight",), rope_factors=[1.0] * 8)


def test_the_published_scalings_are_read():
    assert spec_of("Llama-3.1-8B").rope_scaling == RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)
