"""From numbers to sentences: the numbers in them are those of the cost model, and causes are named only when there."""

from datetime import UTC, datetime

import pytest

from ridgeline.cost.facts import load_facts
from ridgeline.cost.hardware import Hardware, find_device
from ridgeline.cost.roofline import Roofline
from ridgeline.measure import explain
from ridgeline.measure.causes import find_causes
from ridgeline.measure.deployment import Device, Loaded, find_model, loaded_model
from ridgeline.measure.deployment import find_device as find_deployed
from ridgeline.measure.events import Record
from ridgeline.measure.findings import Findings, Point
from scripted_latency import endpoint

LAB = Hardware("lab", bandwidth=1e12, compute={"any": 1e14}, bandwidth_by_working_set=((0, 1e12),))
POINT = Point(200, 0, 5, 0, 128.0, 0.1, 0.2, 0.02, 0.03, None, None)


@pytest.fixture(scope="module")
def roofline():
    return Roofline(load_facts("example-8b"), LAB, "bf16", "bf16")


def findings(**changes):
    fields = {
        "repeats": POINT, "points": [], "header_tokens": 0, "cache": "cold", "token_source": "usage",
        "cold_start_s": None, "rtt_s": None, "loop_lag_s": None, "reasoning_share": None, "reloads": 0,
        "invalid_reasons": [], "notes": [],
    }  # fmt: skip
    return Findings(**(fields | changes))


def test_the_gap_is_split_into_its_parts(roofline):
    limit, weights = roofline.time(roofline.decode(1000)), roofline.time(roofline.decode(0))
    sentence = explain.why_gap(roofline, 1000, 2 * limit, 1.5 * limit)
    assert sentence.startswith("30.3 ms per token is 2.00x the limit of 15.1 ms")
    assert weights == pytest.approx(0.01501, rel=0.001)
    assert "reading the weights takes 15.0 ms of it at 1,000 GB/s and the KV cache of 1,000 tokens 131 us" in sentence
    assert "the other 15.1 ms are the way from the server's step to the client, 7.57 ms" in sentence
    assert "launching, synchronising, sampling)" in sentence
    assert "unpacking" not in sentence


def test_a_format_of_few_bits_has_to_be_unpacked():
    roofline = Roofline(load_facts("example-8b"), LAB, "q4_0", "bf16")
    limit = roofline.time(roofline.decode(1000))
    assert "unpacking 4.5-bit weights" in explain.why_gap(roofline, 1000, 2 * limit, None)


def test_of_a_vendors_bandwidth_engines_reach_a_share():
    roofline = Roofline(load_facts("example-8b"), find_device("h100-sxm"), "bf16", "bf16")
    limit = roofline.time(roofline.decode(1000))
    sentence = explain.why_gap(roofline, 1000, 2 * limit, None)
    assert "bandwidth that the specification promises and engines do not reach, 797 us to 1.51 ms" in sentence


def test_faster_than_the_limit_is_called_impossible(roofline):
    limit = roofline.time(roofline.decode(1000))
    assert "impossible" in explain.why_gap(roofline, 1000, 0.5 * limit, None)
    assert "nothing is left to gain" in explain.why_gap(roofline, 1000, limit, None)


def test_ttft_slope_recovers_the_formula(roofline):
    points = [(n, 0.01 + 0.001 * n + 1e-7 * n * n) for n in (100, 256, 1024, 4096)]
    assert explain.fit_ttft(points) == pytest.approx((0.01, 0.001, 1e-7))
    sentence = explain.why_ttft(roofline, points)
    assert "TTFT grows by 1.41 ms per prompt token (709 tokens/s), 29% of it at 4,096 tokens from attention" in sentence
    assert "after 10.0 ms that do not depend on the length" in sentence
    limit = roofline.time(roofline.prefill(4096)) / 4096
    assert f"prefill runs at {limit / 0.0014096:.0%} of what lab can do" in sentence
    assert explain.why_ttft(None, points).endswith("not depend on the length.")


def test_a_prefill_faster_than_the_device_is_called_so(roofline):
    assert "something else runs" in explain.why_ttft(roofline, [(n, 1e-6 * n) for n in (100, 1024)])


def test_tpot_slope_is_compared_with_reading_the_kv_cache(roofline):
    points = [(c, 0.02 + 1e-6 * c) for c in (128.0, 1024.0, 4096.0)]
    sentence = explain.why_tpot(roofline, points)
    assert "TPOT grows by 1.02 ms per 1,024 tokens from 128 to 4,096 tokens of context" in sentence
    assert "reading the KV cache of 4,096 tokens, 537 MB (512 MiB), adds at least 134 us per 1,024" in sentence
    assert "more than that" in sentence
    near_limit = [(c, 0.02 + 131072 / 1e12 * c) for c in (128.0, 4096.0)]
    assert "more than that" not in explain.why_tpot(roofline, near_limit)
    assert "does not grow" in explain.why_tpot(roofline, [(128.0, 0.02), (4096.0, 0.02)])


def test_one_length_has_no_slope(roofline):
    assert "no slope" in explain.why_ttft(roofline, [(100, 0.1)])
    assert "no slope" in explain.why_tpot(roofline, [(100.0, 0.1)])


def test_counterfactuals_keep_the_bandwidth_that_is_reached(roofline):
    lines = explain.counterfactuals(roofline, 1000, 0.030)
    now = roofline.decode(1000).bytes_read
    q4 = Roofline(roofline.facts, LAB, "q4_0", "bf16").decode(1000).bytes_read
    assert lines[0].startswith("q8 instead of bf16: ")
    assert f"q4 instead of bf16: {now / q4 / 0.030:,.0f} tokens/s" in lines
    assert any(line.startswith("131,072 tokens of context instead of 1,000: ") for line in lines)


def test_fewer_bits_than_the_model_has_are_the_only_ones_offered():
    roofline = Roofline(load_facts("example-8b"), LAB, "q8_0", "bf16")
    assert explain.counterfactuals(roofline, 10, 0.03)[0].startswith("q4 instead of q8_0: ")
    q4 = Roofline(load_facts("example-8b"), LAB, "q4_0", "bf16")
    assert not any("instead of q4_0" in line for line in explain.counterfactuals(q4, 10, 0.03))


# Causes


def test_a_quiet_server_has_no_causes(roofline):
    assert find_causes(endpoint(), findings(), None, roofline) == []


def test_a_part_outside_the_gpu():
    loaded = Loaded(size_bytes=8 * 10**9, vram_bytes=6 * 10**9)
    [cause] = find_causes(endpoint("ollama"), findings(), loaded, None)
    assert cause.startswith("25% of the model (2.00 GB")
    for whole in (Loaded(8, 8), Loaded(8, 0)):
        assert find_causes(endpoint("ollama"), findings(), whole, None) == []


def test_keep_alive_and_reloads():
    loaded = Loaded(8, 8, expires_at="2026-11-30T12:05:00Z")
    now = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
    [cause] = find_causes(endpoint("ollama"), findings(cold_start_s=4.0), loaded, None, now=now)
    assert "4.00 s" in cause
    assert "unloaded 300 s after" in cause
    forever = Loaded(8, 8, expires_at="2318-01-01T00:00:00Z")
    [cause] = find_causes(endpoint("ollama"), findings(cold_start_s=4.0), forever, None, now=now)
    assert "keep_alive" not in cause
    [cause] = find_causes(endpoint("ollama"), findings(reloads=3), None, None)
    assert "3 times" in cause


def test_one_slot_is_seen_from_two_requests_together():
    first = Record(0.0, 0.0, t_1=0.1, t_last=1.0)
    queued, parallel = (Record(0.0, 0.0, t_1=t, t_last=2.0) for t in (1.1, 0.2))
    [cause] = find_causes(endpoint("ollama"), findings(), None, None, [first, queued])
    assert "the second waited 1.10 s" in cause
    assert "OLLAMA_NUM_PARALLEL" in cause
    assert find_causes(endpoint("ollama"), findings(), None, None, [first, parallel]) == []
    [cause] = find_causes(endpoint("llamacpp", facts={"props": {"total_slots": 1}}), findings(), None, None)
    assert "--parallel" in cause


def test_thinking_and_a_large_num_ctx(roofline):
    [cause] = find_causes(endpoint(), findings(reasoning_share=0.8), None, None)
    assert cause.startswith("80% of the tokens are thinking")
    [cause] = find_causes(endpoint("ollama"), findings(), Loaded(8, 8, context_len=131_072), roofline)
    assert cause.startswith("num_ctx is 131,072: its KV cache takes 17.2 GB")
    assert find_causes(endpoint("ollama"), findings(), Loaded(8, 8, context_len=4096), roofline) == []


# What runs, and where


@pytest.mark.parametrize(
    ("server", "loaded", "has_gpu", "name"),
    [
        ({"url": "http://gpu.example:8000"}, None, False, None),
        ({"server": "ridgeline"}, None, True, "this"),
        ({"server": "ollama"}, Loaded(8, 0), True, "this"),
        ({"server": "ollama"}, Loaded(8, 8), True, "this-gpu"),
        ({"server": "ollama"}, Loaded(8, 6), True, "this-gpu"),
        ({"server": "vllm"}, None, True, None),
        ({"server": "llama.cpp"}, None, False, "this"),
    ],
)
def test_the_device_is_the_one_that_runs_the_model(server, loaded, has_gpu, name):
    device = find_deployed(endpoint(**server), loaded, None, has_gpu=has_gpu)
    assert device.name == name
    assert name or "--hardware" in device.reason
    given = find_deployed(endpoint(**server), loaded, "h100-sxm", has_gpu=has_gpu)
    assert given == Device("h100-sxm", "named by --hardware")


def test_ollamas_running_models():
    running = {"models": [{"name": "a:latest", "size": 10, "size_vram": 4, "context_length": 8192}]}
    assert loaded_model(running, "a:latest") == Loaded(10, 4, 8192)
    assert loaded_model(running, "b") is loaded_model(None, "a") is None
    assert Loaded(10, 4).share_outside_gpu == pytest.approx(0.6)


def test_the_model_and_its_formats():
    card = {"card": {"root": "smollm2-135m", "dtype": "bf16", "kv_dtype": "fp32"}}
    model = find_model(endpoint(facts=card), None, None, None)
    assert (model.facts.name, model.dtype, model.kv_dtype) == ("smollm2-135m", "bf16", "fp32")
    assert find_model(endpoint(facts=card), "example-8b", "q4_0", None).dtype == "q4_0"
    assert find_model(endpoint(model="example-8b"), None, None, None).dtype == "stored"
    unknown = find_model(endpoint(model="nobody-knows-me"), None, None, None)
    assert "'nobody-knows-me'" in unknown
    assert "--spec" in unknown


def test_bits_are_those_that_a_step_reads():
    """A rotated model holds its table twice and reads it once."""
    rotated = Roofline(load_facts("smollm2-135m"), LAB, "int8", "bf16")
    assert explain.bits_per_weight(rotated) == pytest.approx(8.1, abs=0.1)
