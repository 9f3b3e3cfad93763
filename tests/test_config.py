import pytest

from ridgeline.config import EngineConfig, ModelConfig, resolve, split
from ridgeline.errors import ConfigError


def test_an_unknown_option_names_the_nearest():
    with pytest.raises(ConfigError, match="unknown option 'max_request'") as caught:
        resolve(EngineConfig, {"max_request": 3})
    assert "'max_requests'" in caught.value.hint


def test_a_choice_is_checked():
    with pytest.raises(ConfigError, match="scheduler cannot be 'statik'"):
        resolve(EngineConfig, {"scheduler": "statik"})


def test_split_gives_each_kind_its_own():
    model, engine = split((ModelConfig, EngineConfig), {"dtype": "fp32", "max_requests": 3})
    assert model == ModelConfig(dtype="fp32")
    assert engine == EngineConfig(max_requests=3)


def test_split_searches_all_kinds_for_the_nearest():
    with pytest.raises(ConfigError) as caught:
        split((ModelConfig, EngineConfig), {"kv_memori": 1})
    assert "'kv_memory'" in caught.value.hint
