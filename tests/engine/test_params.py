import math

import pytest

from ridgeline.engine.params import checked
from ridgeline.engine.request import SamplingParams
from ridgeline.errors import RequestError


def test_friendly_spellings_become_plain():
    params = checked(SamplingParams(stop="END", stop_token_ids=[1, 2], logit_bias={"3": 1.5, 4: -2}, seed=-1))
    assert params.stop == ("END",)
    assert params.stop_token_ids == (1, 2)
    assert params.logit_bias == ((3, 1.5), (4, -2))
    assert params.seed == 2**64 - 1


def test_neutral_defaults_pass_unchanged():
    assert checked(SamplingParams()) == SamplingParams()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", math.nan),
        ("temperature", -0.1),
        ("temperature", "hot"),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", math.inf),
        ("top_k", -1),
        ("top_k", 2.5),
        ("max_tokens", 0),
        ("max_tokens", True),
        ("repetition_penalty", 0),
        ("presence_penalty", -2.5),
        ("frequency_penalty", math.nan),
        ("logprobs", 21),
        ("stop", [""]),
        ("stop", {"a": 1}),
        ("stop_token_ids", [10]),
        ("logit_bias", {10: 1.0}),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", {"one": 1}),
        ("logit_bias", 7),
        ("seed", 2**64),
        ("min_tokens", -1),
        ("repetition_penalty", None),
    ],
)
def test_out_of_range_is_refused_by_name(field, value):
    with pytest.raises(RequestError) as caught:
        checked(SamplingParams(**{field: value}), vocab_size=10)
    assert caught.value.param == field
    assert field in caught.value.message


def test_min_tokens_above_max_tokens():
    with pytest.raises(RequestError, match="min_tokens is 5, above max_tokens = 4"):
        checked(SamplingParams(min_tokens=5, max_tokens=4))
