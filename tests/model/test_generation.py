"""What a checkpoint says about sampling: read, or told."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import transformers

from ridgeline.errors import CheckpointError
from ridgeline.model.generation import generation_defaults, unread_notices, unread_settings
from ridgeline.model.resolve import ModelFiles


def directory(path: Path, config: dict[str, Any]) -> ModelFiles:
    (path / "generation_config.json").write_text(json.dumps(config))
    return ModelFiles("tiny", "directory", path)


def gguf(**sampling: Any) -> Any:
    metadata = {f"general.sampling.{key}": value for key, value in sampling.items()} | {"general.name": "x"}
    return SimpleNamespace(kind="gguf", path=Path("m.gguf"), gguf=SimpleNamespace(metadata=metadata))


@pytest.mark.parametrize(
    ("config", "defaults"),
    [
        ({"do_sample": False, "repetition_penalty": 1.3}, {"temperature": 0.0, "repetition_penalty": 1.3}),
        ({"do_sample": False, "temperature": 0.6, "top_k": 20, "top_p": 0.9}, {"temperature": 0.0}),
        ({"do_sample": True, "temperature": 1, "top_k": 20.0}, {"temperature": 1, "top_k": 20}),
        ({"do_sample": None, "min_p": 0.1, "top_p": None}, {"min_p": 0.1}),
        ({}, {}),
    ],
)
def test_what_is_recommended(tmp_path, config, defaults):
    assert generation_defaults(directory(tmp_path, config)) == defaults


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"top_k": 1.5}, "top_k is 1.5, not a whole number"),
        ({"top_p": True}, "top_p is True, not a number"),
        ({"repetition_penalty": [1.1]}, r"repetition_penalty is \[1.1\], not a number"),
        ({"temperature": float("nan")}, "temperature is nan, not a number"),
        ({"do_sample": "no"}, "do_sample is 'no', not true or false"),
    ],
)
def test_what_is_no_value_is_refused(tmp_path, config, problem):
    with pytest.raises(CheckpointError, match=rf"generation_config\.json: {problem}"):
        generation_defaults(directory(tmp_path, config))


def test_settings_that_are_not_read_are_told_with_their_values(tmp_path):
    config = {"no_repeat_ngram_size": 3, "bad_words_ids": [[5]], "typical_p": 0.9, "max_new_tokens": 2048, "new": "x"}
    files = directory(tmp_path, config)
    assert unread_settings(files) == [
        "no_repeat_ngram_size = 3", "bad_words_ids = [[5]]", "typical_p = 0.9", "max_new_tokens = 2048", "new = 'x'",
    ]  # fmt: skip
    assert unread_notices(files)[0] == (
        "generation_config.json sets no_repeat_ngram_size = 3: not read here, generation goes without it"
    )


def test_neutral_values_and_what_chooses_no_token_are_not_worth_a_word(tmp_path):
    neutral = {
        "no_repeat_ngram_size": 0, "num_beams": 1, "typical_p": 1.0, "encoder_repetition_penalty": 1.0,
        "max_length": 20, "guidance_scale": 1, "suppress_tokens": [], "forced_eos_token_id": None,
        "renormalize_logits": False, "penalty_alpha": 0.0, "length_penalty": 1.0, "early_stopping": False,
        "exponential_decay_length_penalty": None,
    }  # fmt: skip
    harmless = {"eos_token_id": [2], "bos_token_id": 1, "pad_token_id": 2, "use_cache": True, "do_sample": True}
    assert unread_settings(directory(tmp_path, neutral | harmless | {"temperature": 0.5})) == []
    written_by_transformers = json.loads(
        transformers.GenerationConfig(temperature=0.5, eos_token_id=2).to_json_string()
    )
    assert unread_settings(directory(tmp_path, written_by_transformers)) == []
    assert unread_settings(ModelFiles("none", "directory", tmp_path / "nowhere")) == []


def test_gguf_settings():
    assert generation_defaults(gguf(temp=0.5, top_k=3, penalty_repeat=1.25)) == {
        "temperature": 0.5, "top_k": 3, "repetition_penalty": 1.25,
    }  # fmt: skip
    with pytest.raises(CheckpointError, match=r"m\.gguf: general\.sampling\.temp is 'hot', not a number"):
        generation_defaults(gguf(temp="hot"))
    told = ["general.sampling.penalty_last_n = 64", "general.sampling.xtc_probability = 0.5"]
    told += ["general.sampling.xtc_threshold = 0.1"]
    assert unread_settings(gguf(penalty_repeat=1.1, penalty_last_n=64, xtc_probability=0.5, xtc_threshold=0.1)) == told
    assert unread_settings(gguf(penalty_last_n=64, xtc_threshold=0.1, mirostat=0, mirostat_tau=5.0, temp=1.0)) == []
    assert unread_settings(gguf(penalty_repeat=1.1, penalty_last_n=-1)) == []
    assert unread_notices(gguf(mirostat=2))[0].startswith("the GGUF file sets general.sampling.mirostat = 2")
