"""Logits equal transformers': tiny random checkpoints of every family and storage, through the whole loading path."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from checkpoints import VOCAB_SIZE, make_gguf, make_hf
from executors_under_test import EXECUTORS, open_executor
from ridgeline.model.resolve import resolve_model
from ridgeline.model.tokenizer import load_tokenizer
from step_plans import Stepper

PROMPTS = [np.random.default_rng(seed).integers(3, VOCAB_SIZE, size).tolist() for seed, size in ((0, 45), (1, 18))]
TOLERANCE = 1e-4  # logits are of order 4; fp32 sums of 64 to 128 products in another order differ by a few 1e-6

CHECKPOINTS: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama"},
    "llama-tied-sharded": {"family": "llama", "tied": True, "sharded": True},
    "llama-scaled-rope-biases": {"family": "llama3"},
    "llama-f16": {"family": "llama", "dtype": "float16"},
    "qwen2-tied": {"family": "qwen2", "tied": True},
    "qwen2-sharded": {"family": "qwen2", "sharded": True},
    "qwen3": {"family": "qwen3"},
    "qwen3-tied-sharded-bf16": {"family": "qwen3", "tied": True, "sharded": True, "dtype": "bfloat16"},
    "mistral": {"family": "mistral"},
    "mistral-sharded": {"family": "mistral", "sharded": True},
    "llama-gguf": {"family": "llama", "gguf": "F32"},
    "llama-scaled-rope-biases-gguf": {"family": "llama3", "gguf": "F32"},
    "llama-tied-gguf-f16": {"family": "llama", "tied": True, "gguf": "F16", "dtype": "float16"},
    "qwen2-gguf": {"family": "qwen2", "gguf": "F32"},
    "qwen3-tied-gguf": {"family": "qwen3", "tied": True, "gguf": "F32"},
    "qwen3-gguf-bf16": {"family": "qwen3", "gguf": "BF16", "dtype": "bfloat16"},
}  # a 16-bit GGUF is made of a checkpoint in the same format, so that nothing is lost between the two


@dataclass(frozen=True)
class Reference:
    path: Path  # what Ridgeline loads
    logits: list[np.ndarray]  # per prompt, from transformers in fp32: [tokens, vocab]


@pytest.fixture(scope="module", params=CHECKPOINTS)
def reference(request, tmp_path_factory) -> Reference:
    options = dict(CHECKPOINTS[request.param])
    quantization = options.pop("gguf", None)
    directory = make_hf(tmp_path_factory.mktemp(request.param), **options)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    path = directory if quantization is None else make_gguf(directory, directory / "tiny.gguf", quantization)
    return Reference(path, transformers_logits(model, PROMPTS))


def transformers_logits(model: torch.nn.Module, prompts: list[list[int]]) -> list[np.ndarray]:
    with torch.inference_mode():
        return [model(torch.tensor([prompt])).logits[0].numpy() for prompt in prompts]


def max_difference(ours: list[np.ndarray], theirs: list[np.ndarray]) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("kind", EXECUTORS)
def test_logits_equal_transformers_in_every_chunking(kind, reference):
    """Two sequences in one step; chunks of 1 are decode steps, and chunks of 16 and 7 meet and miss the page edges."""
    with open_executor(kind, str(reference.path)) as executor:
        stepper = Stepper(executor)
        for chunk in (None, 16, 7, 1):
            assert max_difference(stepper.logits(PROMPTS, chunk), reference.logits) < TOLERANCE, f"chunk {chunk}"


@pytest.mark.parametrize("kind", EXECUTORS)
def test_a_prefill_joins_running_decodes(kind, reference):
    """Rows of one step may be of different sequences at different stages."""
    long, short = PROMPTS
    of_long, of_short = reference.logits
    with open_executor(kind, str(reference.path)) as executor:
        stepper = Stepper(executor)
        decoding, joining = stepper.open(len(long)), stepper.open(len(short))
        stepper.run([(decoding, long[:30])])
        first = stepper.run([(decoding, long[30:31]), (joining, short[:11])]).logits
        second = stepper.run([(joining, short[11:]), (decoding, long[31:33])]).logits
    assert max_difference([first], [np.concatenate([of_long[30:31], of_short[:11]])]) < TOLERANCE
    assert max_difference([second], [np.concatenate([of_short[11:], of_long[31:33]])]) < TOLERANCE


@pytest.fixture(scope="module")
def smollm2():
    """The bundled model as transformers reads it, with a prompt: loading takes seconds, so it is done once."""
    files = resolve_model("smollm2-135m")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        files.path.parent, gguf_file=files.path.name, dtype=torch.float32
    )
    text = "<|im_start|>user\nWhy is the sky blue? 삼겹살 costs 12,000 won.<|im_end|>\n<|im_start|>assistant\nThe sky"
    prompt = load_tokenizer(files).encode(text, control=True)
    return prompt, transformers_logits(model, [prompt])[0]


@pytest.mark.parametrize("kind", EXECUTORS)
def test_smollm2_from_its_gguf_equals_the_same_weights_in_transformers(kind, smollm2):
    """The tolerance is wider than for tiny models: logits reach 30, where one fp32 ulp is 2e-6, and 30 layers of sums
    of up to 1,536 products add up to some 1e-4 in either implementation."""
    prompt, expected = smollm2
    with open_executor(kind, "smollm2-135m") as executor:
        (logits,) = Stepper(executor).logits([prompt], chunk=16)
    assert max_difference([logits], [expected]) < 1e-3
    assert (logits.argmax(-1) == expected.argmax(-1)).all()
