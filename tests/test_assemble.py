"""What `LLM` and `serve` start with: the settings of the disk cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from checkpoints import make_hf
from quick import QUICK_OPTIONS
from ridgeline import LLM, SamplingParams
from ridgeline.cost.memory import PAGE_SIZE
from ridgeline.errors import CheckpointError, ConfigError

PROMPT = list(range(3, 80))
GREEDY = SamplingParams(temperature=0, max_tokens=6, logprobs=0)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_hf(tmp_path_factory.mktemp("checkpoint"), "llama"))


def load(checkpoint: str, **options: Any) -> LLM:
    return LLM(checkpoint, kv_memory=1_000_000, **(QUICK_OPTIONS | options))


def test_the_python_api_keeps_prefixes_too(checkpoint: str, tmp_path: Path) -> None:
    answers = []
    for _ in range(2):
        with load(checkpoint, cache_dir=str(tmp_path / "kv")) as llm:
            answers += llm.generate(PROMPT, GREEDY)
    cold, warm = answers
    assert (warm.token_ids, warm.logprobs) == (cold.token_ids, cold.logprobs)
    assert (cold.metrics.num_loaded_tokens, warm.metrics.num_loaded_tokens) == (0, 2 * PAGE_SIZE)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"cache_disk": 10**9}, "cache_dir, which is not given"),
        ({"prefix_cache": False}, "the prefix cache is off"),
        ({"kv_cache": False}, "the prefix cache is off"),
        ({"executor": "torch"}, "KV pages can be copied"),
        ({"cache_disk": 10}, "holds no two KV pages"),
    ],
)
def test_what_cannot_work_is_refused(checkpoint: str, tmp_path: Path, options: dict[str, Any], problem: str) -> None:
    if problem != "cache_dir, which is not given":
        options = {"cache_dir": str(tmp_path)} | options
    with pytest.raises(ConfigError, match=problem):
        load(checkpoint, **options)


def test_a_recommended_sampling_that_cannot_be_is_the_checkpoints_fault(tmp_path: Path) -> None:
    checkpoint = make_hf(tmp_path, "llama")
    (checkpoint / "generation_config.json").write_text(json.dumps({"temperature": "hot"}))
    with pytest.raises(CheckpointError, match=r"generation_config\.json: temperature is 'hot', not a number"):
        load(str(checkpoint))
    (checkpoint / "generation_config.json").write_text(json.dumps({"temperature": -1}))
    with pytest.raises(CheckpointError, match=f"{checkpoint}: its recommended sampling: temperature"):
        load(str(checkpoint))
