"""What a device sustains under an SLO: the batch is the largest that meets it, and prices follow from the times."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_8b import DenseFacts
from ridgeline.cost.hardware import Hardware
from ridgeline.cost.question import Question
from ridgeline.cost.roofline import Roofline
from ridgeline.cost.service import Service, Slo, parse_slo, plan_service
from ridgeline.errors import ConfigError

GPU = Hardware("gpu", 48 * 10**9, 1000e9, {"bf16": 100e12})
SERVICE = Service(Roofline(DenseFacts(), GPU, "bf16", "bf16"), Question())


def test_a_round_of_the_batch_takes_its_prefills_and_its_steps():
    batch, output = 32, 500
    round_s = batch * SERVICE.prefill_s() + output * SERVICE.step_s(batch)
    assert SERVICE.requests_per_s(batch) == pytest.approx(batch / round_s)
    assert SERVICE.tpot_s(batch) * output == pytest.approx(round_s)


@given(st.floats(0.017, 0.2), st.floats(0.31, 2.0))
def test_the_batch_is_the_largest_within_all_limits(tpot_s, ttft_s):
    found = plan_service(SERVICE, Slo(ttft_s, tpot_s), rate=None, price_per_hour=None)
    batch, binds = found["batch"], found["binds"]
    assert batch == min(found["batch_by"].values()) == found["batch_by"][binds]
    assert SERVICE.tpot_s(max(batch, 1)) <= tpot_s or batch == 0
    if binds == "tpot":
        assert SERVICE.tpot_s(batch + 1) > tpot_s
    if binds == "ttft":
        assert SERVICE.ttft_s(batch + 1) > ttft_s


def test_memory_binds_when_the_limits_are_loose():
    found = plan_service(SERVICE, Slo(tpot_s=1.0), rate=None, price_per_hour=None)
    assert (found["binds"], found["batch"]) == ("memory", 77)


def test_an_slo_that_nothing_meets():
    found = plan_service(SERVICE, Slo(ttft_s=0.1), rate=3, price_per_hour=1)
    assert (found["batch"], found["binds"], found["requests_per_s"], found["replicas"]) == (0, "ttft", None, None)


def test_a_rate_needs_so_many_devices():
    one = plan_service(SERVICE, Slo(tpot_s=0.05), rate=None, price_per_hour=None)["requests_per_s"]
    for rate, replicas in ((0.5 * one, 1), (1.5 * one, 2), (2.9 * one, 3)):
        assert plan_service(SERVICE, Slo(tpot_s=0.05), rate=rate, price_per_hour=None)["replicas"] == replicas


def test_prices_pay_for_the_device():
    prices = SERVICE.prices(32, price_per_hour=3.6)  # a thousandth of a dollar per second
    per_request = (2000 * prices["input_per_million"] + 500 * prices["output_per_million"]) / 1e6
    assert per_request * SERVICE.requests_per_s(32) == pytest.approx(1e-3)
    assert prices["output_to_input_ratio"] == pytest.approx(prices["output_per_million"] / prices["input_per_million"])
    assert prices["cached_input_per_million"] is None


def test_cached_input_is_cheap():
    cached = dataclasses.replace(SERVICE, question=Question(cached=1500)).prices(32, 3.6)
    assert 0 < cached["cached_input_per_million"] < 0.1 * cached["input_per_million"]


def test_nothing_limits():
    unbounded = dataclasses.replace(SERVICE.roofline, hardware=dataclasses.replace(GPU, memory_bytes=None))
    with pytest.raises(ConfigError, match="nothing limits"):
        plan_service(Service(unbounded, Question()), Slo(), rate=None, price_per_hour=None)


def test_an_unknown_speed_is_an_error():
    with pytest.raises(ConfigError, match="speed of x is unknown"):
        Service(dataclasses.replace(SERVICE.roofline, hardware=Hardware("x")), Question()).step_s(1)


def test_slo():
    assert parse_slo("tpot=50ms, ttft=1s") == Slo(ttft_s=1.0, tpot_s=0.05)
    assert parse_slo("ttft=1.5s") == Slo(ttft_s=1.5)


@pytest.mark.parametrize("text", ["", "tpot", "tpot=50", "e2e=1s", "tpot=0ms", "ttft=-1s", "tpot=1s,tpot=2s"])
def test_bad_slo(text):
    with pytest.raises(ConfigError):
        parse_slo(text)
