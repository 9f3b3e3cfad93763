from __future__ import annotations

from typing import Any

import pytest

from engine_runs import Client, make_engine, make_request, submit
from fakes import FakeExecutor
from ridgeline.config import EngineConfig
from ridgeline.engine.admission import Limits, check_request
from ridgeline.engine.loop import Engine
from ridgeline.errors import CapacityError, ConfigError, OverloadedError, RequestError

LIMITS = Limits(context_len=100, pool_tokens=60, vocab_size=50, has_tokenizer=True)


def check(num_prompt: int, limits: Limits = LIMITS, **params: Any) -> int:
    return check_request(make_request([1] * num_prompt, Client(), **params), limits)


def test_max_tokens_left_out_is_what_context_and_pool_leave() -> None:
    assert check(10) == 50
    assert check(10, Limits(40, 60, 50, True)) == 30
    assert check(59) == 1
    assert check(10, max_tokens=50) == 50


@pytest.mark.parametrize(
    ("num_prompt", "params", "param", "words"),
    [
        (60, {}, "prompt", "maximum context length is 60 tokens .*own: 100.*the prompt has 60"),
        (10, {"max_tokens": 51}, "max_tokens", "10 prompt tokens and max_tokens 51 make 61"),
    ],
)
def test_what_can_never_fit_is_refused_with_the_numbers(
    num_prompt: int, params: dict[str, int], param: str, words: str
) -> None:
    with pytest.raises(CapacityError, match=words) as caught:
        check(num_prompt, **params)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == param
    assert caught.value.details["context_len"] == 100
    assert caught.value.details["kv_pool_tokens"] == 60
    assert caught.value.details["num_prompt_tokens"] == num_prompt


def test_the_smaller_of_context_and_pool_is_named() -> None:
    with pytest.raises(CapacityError, match="this model's maximum context length is 40 tokens, one of which"):
        check(40, Limits(40, 60, 50, True))


@pytest.mark.parametrize("token_id", [-1, 50])
def test_token_ids_outside_the_vocabulary_are_refused(token_id: int) -> None:
    request = make_request([1, token_id], Client())
    with pytest.raises(RequestError, match=f"token id {token_id}") as caught:
        check_request(request, LIMITS)
    assert caught.value.param == "prompt"


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(RequestError, match="empty") as caught:
        check(0)
    assert caught.value.param == "prompt"


def test_stop_strings_need_a_tokenizer() -> None:
    engine = Engine(FakeExecutor(), None, EngineConfig(), context_len=64)
    with pytest.raises(RequestError, match="tokenizer") as caught:
        submit(engine, [1], stop=("x",))
    assert caught.value.param == "stop"


def test_a_refused_request_leaves_no_trace() -> None:
    engine = make_engine(FakeExecutor())
    for bad in ({"stop_token_ids": (999,)}, {"logit_bias": ((999, 1.0),)}, {"temperature": float("nan")}):
        with pytest.raises(RequestError) as caught:
            submit(engine, [1], **bad)
        assert caught.value.param in bad
    assert engine.stats().num_waiting == 0
    assert not engine.step()


def test_a_full_queue_is_refused_with_a_time_to_come_back() -> None:
    engine = make_engine(FakeExecutor(), max_requests=1, max_waiting=2)
    submit(engine, [1], max_tokens=5)
    assert engine.step()
    submit(engine, [2], max_tokens=5)
    submit(engine, [3], max_tokens=5)
    with pytest.raises(OverloadedError, match="2 requests wait") as caught:
        submit(engine, [4], max_tokens=5)
    assert caught.value.retry_after_s >= 1
    engine.run_until_idle()
    submit(engine, [4], max_tokens=5)
    engine.run_until_idle()
    assert engine.stats().finished["length"] == 4


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"max_batch_tokens": 65}, "max_batch_tokens is 65, this executor was built for 1 to 64"),
        ({"max_batch_tokens": 0}, "max_batch_tokens is 0"),
        ({"max_requests": 9}, "max_requests is 9, this executor was built for 1 to 8"),
        ({"max_waiting": 0}, "max_waiting is 0"),
        ({"target_gap_s": float("nan")}, "target_gap_s is nan"),
        ({"static_wait_s": -1.0}, "static_wait_s is -1.0"),
    ],
)
def test_settings_that_cannot_work_are_refused(config: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_engine(FakeExecutor(num_sampler_slots=8, max_step_tokens=64), **config)
