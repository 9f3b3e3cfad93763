"""What is stored counts against what the description says, and is told; nothing is passed over by its name alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from checkpoints import make_gguf, make_hf
from executors_under_test import open_executor
from ridgeline.cli import main
from ridgeline.config import ModelConfig
from ridgeline.cost.facts import load_facts
from ridgeline.errors import CheckpointError
from ridgeline.model.resolve import load_spec, resolve_model
from ridgeline.model.rope import inverse_frequencies
from ridgeline.model.runtime import load_runtime
from ridgeline.model.weights import open_weights
from step_plans import Stepper

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def store(directory: Path, **changes: torch.Tensor) -> None:
    """Adds or replaces tensors; `__` stands for a dot."""
    path = directory / "model.safetensors"
    save_file(load_file(path) | {name.replace("__", "."): t for name, t in changes.items()}, path, {"format": "pt"})


def edit(directory: Path, **changes: Any) -> None:
    """None removes a key."""
    path = directory / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def spec_at(path: Path) -> Any:
    return load_spec(resolve_model(str(path)))


@pytest.fixture
def tied(tmp_path: Path) -> Path:
    return make_hf(tmp_path / "m", "qwen3", tied=True)


def test_another_output_matrix_than_the_tied_one_is_used_as_in_transformers(tied):
    table = load_file(tied / "model.safetensors")[EMBEDDING]
    store(tied, lm_head__weight=table.flip(0) * 0.5)
    model = transformers.AutoModelForCausalLM.from_pretrained(tied, dtype=torch.float32)
    with torch.inference_mode():
        expected = model(torch.tensor([[5, 6, 7]])).logits[0].numpy()
    with open_executor("torch", str(tied)) as executor:
        (logits,) = Stepper(executor).logits([[5, 6, 7]])
    np.testing.assert_allclose(logits, expected, atol=1e-4)
    spec = spec_at(tied)
    assert not spec.tie_embeddings
    assert [w for w in spec.warnings if "lm_head.weight is stored and differs from the embedding table" in w]
    facts = load_facts(str(tied))
    assert (facts.tied, facts.parameters) == (False, spec.num_parameters)
    assert facts.weight_bytes("stored") == facts.weight_bytes("fp32") == 4 * spec.num_parameters
    assert [w for w in facts.assumptions if "differs from the embedding table" in w]


def test_one_value_that_differs_is_enough(tied):
    table = load_file(tied / "model.safetensors")[EMBEDDING].clone()
    table[-1, -1] += 1
    store(tied, lm_head__weight=table)
    assert not spec_at(tied).tie_embeddings


def test_the_command_that_answers_tells_it_on_stderr(tied, capsys):
    store(tied, lm_head__weight=torch.ones(320, 64))
    assert main(["generate", str(tied), "the", "--raw", "--max-tokens", "1", "--json", "--no-packed-file"]) == 0
    assert "warning: " in (err := capsys.readouterr().err)
    assert "differs from the embedding table" in err


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_copy_of_the_tied_matrix_stays_tied_in_whatever_type(tied, dtype):
    table = load_file(tied / "model.safetensors")[EMBEDDING].bfloat16().float()
    store(tied, model__embed_tokens__weight=table, lm_head__weight=table.to(dtype).clone())
    spec = spec_at(tied)
    assert spec.tie_embeddings
    assert not [w for w in spec.warnings if HEAD in w]
    assert "head" not in open_weights(resolve_model(str(tied)), spec).shapes
    assert load_facts(str(tied)).tied


def test_an_output_matrix_of_another_shape_is_an_error_not_a_copy(tied):
    store(tied, lm_head__weight=torch.ones(7, 64))
    with pytest.raises(CheckpointError, match=r"'lm_head.weight' has shape \[7, 64\]"):
        open_weights(resolve_model(str(tied)), spec_at(tied))


def test_weights_refuse_a_spec_that_ties_in_spite_of_another_matrix(tied):
    spec = spec_at(tied)
    store(tied, lm_head__weight=torch.ones(320, 64))
    with pytest.raises(CheckpointError, match=r"'lm_head\.weight' has no place"):
        open_weights(resolve_model(str(tied)), spec)


@pytest.mark.parametrize("name", ["vision__lm_head__weight", "model__rope_freqs__weight", "rope_freqs__weight"])
def test_a_tensor_whose_name_only_ends_like_a_known_one_is_not_passed_over(tied, name):
    store(tied, **{name: torch.ones(8)})
    with pytest.raises(CheckpointError, match="has no place"):
        open_weights(resolve_model(str(tied)), spec_at(tied))


@pytest.mark.parametrize(("factor", "told"), [(1.0, False), (0.25, True)])
def test_rotary_tables_are_compared(tied, factor, told):
    table = torch.tensor(inverse_frequencies(spec_at(tied)) * factor, dtype=torch.float16)
    store(tied, **{f"model__layers__{i}__self_attn__rotary_emb__inv_freq": table.clone() for i in (0, 1)})
    warnings = [w for w in spec_at(tied).warnings if "inv_freq" in w]
    assert len(warnings) == told


def test_files_beside_the_checkpoint_are_told(tied):
    save_file({"lora_A": torch.ones(2)}, tied / "adapter_model.safetensors")
    assert [w for w in spec_at(tied).warnings if "adapter_model.safetensors" in w]


def test_a_shard_may_hold_what_the_index_leaves_out_but_it_is_not_passed_over(tmp_path):
    directory = make_hf(tmp_path / "m", "llama", sharded=True)
    path = directory / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    del index["weight_map"]["model.norm.weight"]
    path.write_text(json.dumps(index))
    assert "final_norm" in open_weights(resolve_model(str(directory)), spec_at(directory)).shapes
    shard = directory / sorted(index["weight_map"].values())[0]
    save_file(load_file(shard) | {"model.sinks": torch.ones(2)}, shard)
    with pytest.raises(CheckpointError, match=r"'model\.sinks' has no place"):
        open_weights(resolve_model(str(directory)), spec_at(directory))


@pytest.mark.parametrize(
    ("stored", "says", "runs_as", "told"),
    [
        ("float32", None, "fp32", False),
        ("bfloat16", None, "bf16", False),
        ("float16", None, "bf16", True),
        ("float32", "bfloat16", "fp32", True),
        ("bfloat16", "float32", "bf16", True),
    ],
)
def test_the_number_type_is_that_of_the_tensors(stored, says, runs_as, told, tmp_path):
    directory = make_hf(tmp_path / "m", "qwen2", dtype=stored)
    edit(directory, dtype=says, torch_dtype=None)
    runtime = load_runtime(str(directory), ModelConfig(executor="torch"))
    assert runtime.dtype == runs_as
    assert bool([*runtime.notices, *runtime.spec.warnings]) == told
    facts = load_facts(str(directory))
    assert facts.stored_format == {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}[stored]
    assert bool(facts.warnings) == (says is not None)
    assert not [line for line in facts.assumptions if "is assumed" in line]
    runtime.close()


def test_a_matrix_with_more_bits_than_the_rest_is_told(tmp_path):
    directory = make_hf(tmp_path / "m", "llama", dtype="bfloat16")
    head = load_file(directory / "model.safetensors")[HEAD]
    store(directory, lm_head__weight=head.float())
    spec = spec_at(directory)
    assert spec.stored_dtype == "bf16"
    assert [w for w in spec.warnings if "lm_head.weight hold more bits than bf16" in w]


def test_a_gguf_whose_file_type_is_wrong_or_missing_runs_as_its_tensors(tmp_path):
    directory = make_hf(tmp_path / "m", "llama")
    whole = make_gguf(directory, tmp_path / "tiny.gguf").read_bytes()
    assert spec_at(tmp_path / "tiny.gguf").warnings == ()
    for key, told in ((b"general.file_tyqe", False), (b"general.file_type", True)):
        data = whole.replace(b"general.file_type", key)
        at = data.index(key) + len(key) + 4
        (tmp_path / "tiny.gguf").write_bytes(data[:at] + (1 * told).to_bytes(4, "little") + data[at + 4 :])
        spec = spec_at(tmp_path / "tiny.gguf")
        assert spec.stored_dtype == "fp32"
        assert bool(spec.warnings) == told
