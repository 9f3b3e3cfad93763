"""Specs of published configurations and of a small GGUF file, with changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ridgeline.model.gguf_spec import from_gguf
from ridgeline.model.spec import ModelSpec, from_config

CONFIGS = Path(__file__).parent / "golden" / "configs"

GGUF = {
    "general.architecture": "llama", "general.file_type": 15, "llama.block_count": 2, "llama.context_length": 512,
    "llama.embedding_length": 64, "llama.feed_forward_length": 96, "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2, "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.dimension_count": 16, "llama.rope.freq_base": 5e5, "llama.vocab_size": 300,
    "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.eot_token_id": 7,
}  # fmt: skip


def gguf_spec(changes: dict[str, Any] | None = None, tensors: tuple[str, ...] = (), **options: Any) -> ModelSpec:
    metadata = {key: value for key, value in (GGUF | (changes or {})).items() if value is not None}
    return from_gguf(metadata, tensors, source="m.gguf", **options)


def golden(name: str, **changes: Any) -> dict[str, Any]:
    """A published config.json; a change to None removes the key."""
    config = json.loads((CONFIGS / name / "config.json").read_text()) | changes
    return {key: value for key, value in config.items() if value is not None}


def spec_of(name: str, **changes: Any) -> ModelSpec:
    return from_config(golden(name, **changes), source=name)
