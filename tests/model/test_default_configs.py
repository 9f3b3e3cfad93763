"""The config that transformers writes for each architecture that `plan` knows is planned, whatever version wrote it.

Only configuration modules are imported. What is refused is listed, with the key at fault: there the default config of
the class describes no model.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ridgeline.cost.parameters import total_parameters
from ridgeline.errors import ConfigError
from ridgeline.model.families import FAMILIES, describe
from ridgeline.model.program import ARCHITECTURES
from ridgeline.model.spec import from_config

REFUSED = {
    "qwen3_moe": "head_dim is missing",  # the class falls back to a size that no published model has
    "glm4_moe": "head_dim is missing",
    "deepseek_v2": "num_experts_per_tok is missing",  # null: transformers cannot run it either
}
NOT_IN_TRANSFORMERS = {"kimi_k2"}  # has its own code, and DeepSeek V3's keys


def written_config(name: str, directory: Any) -> dict[str, Any]:
    CONFIG_MAPPING[name]().save_pretrained(directory)
    return json.loads((directory / "config.json").read_text())


@pytest.mark.parametrize("name", sorted(FAMILIES.keys() - NOT_IN_TRANSFORMERS))
def test_the_default_config_of_transformers_is_planned(name, tmp_path):
    config = written_config(name, tmp_path)
    if name in REFUSED:
        with pytest.raises(ConfigError, match=REFUSED[name]):
            describe(config, source=name)
    else:
        anatomy = describe(config, source=name)
        assert total_parameters(anatomy) > anatomy.vocab_size * anatomy.hidden_size


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_default_config_of_what_is_served_is_served_without_a_word(name, tmp_path):
    assert from_config(written_config(name, tmp_path), source=name).warnings == ()


@pytest.mark.parametrize("name", sorted(FAMILIES.keys() - REFUSED.keys() - NOT_IN_TRANSFORMERS))
def test_a_key_of_tomorrow_is_told_and_changes_nothing(name, tmp_path):
    config = written_config(name, tmp_path)
    today, tomorrow = (describe(c, source=name) for c in (config, config | {"wombat_level": 3}))
    assert total_parameters(today) == total_parameters(tomorrow)
    assert [sentence for sentence in tomorrow.warnings if "wombat_level is 3" in sentence]
    assert set(tomorrow.warnings) > set(today.warnings)
