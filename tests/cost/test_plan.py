"""The handbook's example, every figure: the textbook's after rounding, the exact ones beside it; and the JSON keys."""

import dataclasses

import pytest

from example_8b import DenseFacts
from ridgeline.cost.facts import load_facts
from ridgeline.cost.hardware import Hardware, find_device
from ridgeline.cost.plan import decode_time, make_plan
from ridgeline.cost.question import Question
from ridgeline.cost.roofline import Roofline
from ridgeline.cost.work import show_work
from ridgeline.errors import ConfigError

FACTS = load_facts("example-8b")
GPU = find_device("example-gpu")

CONTRACT = {
    "parameters", "active_parameters", "weight_bytes", "kv_bytes_per_token", "kv_bytes_total",
    "memory_free_after_weights_bytes", "max_concurrent_requests", "admissible_requests", "ridge_intensity",
    "decode_intensity", "prefill_intensity", "ttft_floor_s", "tpot_floor_s", "tpot_floor_with_kv_s",
    "decode_limit_tokens_per_s", "request_latency_floor_s", "batch_throughput_tokens_per_s", "compute_bound_batch",
    "textbook", "assumptions",
}  # fmt: skip
TEXTBOOK_CONTRACT = {
    "parameters", "weight_bytes", "ttft_s", "tpot_s", "decode_tokens_per_s", "batch_step_s", "batch_tokens_per_s",
    "speedup", "request_latency_s", "compute_bound_batch", "memory_free_bytes", "max_concurrent_requests",
}  # fmt: skip
NEEDS_HARDWARE = {
    "memory_free_after_weights_bytes", "max_concurrent_requests", "admissible_requests", "ridge_intensity",
    "ttft_floor_s", "tpot_floor_s", "tpot_floor_with_kv_s", "decode_limit_tokens_per_s", "request_latency_floor_s",
    "batch_throughput_tokens_per_s", "compute_bound_batch",
}  # fmt: skip


def plan(facts=FACTS, hardware=GPU, dtype="bf16", **question):
    return make_plan(facts, hardware, Question(**question), dtype=dtype)


def test_the_hand_computed_twin_of_the_catalog_entry_agrees():
    by_hand = plan(facts=DenseFacts(), batch=32, cached=1500)
    exact = plan(batch=32, cached=1500)
    for field in dataclasses.fields(exact):
        assert getattr(exact, field.name) == getattr(by_hand, field.name), field.name


def test_all_keys_of_the_contract_are_there():
    report = plan().as_json()
    assert set(report) >= CONTRACT
    assert set(report["textbook"]) >= TEXTBOOK_CONTRACT


def test_without_hardware_what_needs_it_is_null():
    report = plan(hardware=None).as_json()
    assert {key for key in CONTRACT if report[key] is None} == NEEDS_HARDWARE
    assert report["textbook"]["ttft_s"] is None
    assert report["kv_bytes_total"] == 2500 * 131_072


def test_without_compute_decode_has_a_floor_and_prefill_none():
    p = plan(hardware=find_device("apple-m5"))
    assert p.tpot_floor_s == pytest.approx(15_007_760_384 / 153.6e9)
    assert p.ttft_floor_s is p.request_latency_floor_s is p.output_to_input_ratio is p.ridge_intensity is None
    assert p.textbook["ttft_s"] is None
    with pytest.raises(ConfigError, match="speed of apple-m5 is unknown"):
        make_plan(FACTS, find_device("apple-m5"), Question(), price_per_hour=1.0)


def test_model():
    p = plan()
    assert (p.parameters, p.kv_bytes_per_token) == (8_028_164_096, 131_072)
    assert p.weight_bytes == 16_056_328_192
    assert p.textbook["weight_bytes"] == 16 * 10**9
    qwen = plan(facts=load_facts("qwen3-0.6b"))
    assert (qwen.parameters, qwen.kv_bytes_per_token) == (596_049_920, 114_688)


def test_one_request():
    p = plan()
    book = p.textbook
    assert (book["ttft_s"], book["tpot_s"], book["decode_s"]) == pytest.approx((0.32, 0.016, 8.0))
    assert book["request_latency_s"] == pytest.approx(8.32)
    assert p.ttft_floor_s == pytest.approx(0.2897, abs=1e-4)
    assert p.tpot_floor_s == pytest.approx(0.01501, abs=1e-5)
    assert p.tpot_floor_with_kv_s == pytest.approx(0.01534, abs=1e-5)
    assert p.decode_limit_tokens_per_s == pytest.approx(66.6, abs=0.1)


def test_intensities():
    p = plan()
    assert p.ridge_intensity == 100
    assert (p.textbook["prefill_intensity"], p.textbook["decode_intensity"]) == (2000, 1)
    assert p.prefill_intensity == pytest.approx(1928, abs=1)
    assert p.decode_intensity == pytest.approx(1.06, abs=0.01)
    assert p.textbook["compute_used_in_decode"] == pytest.approx(0.01)
    assert (p.prefill_binds, p.decode_binds) == ("compute", "memory")


def test_an_output_token_takes_as_long_as_100_input_tokens():
    p = plan()
    assert p.textbook["output_to_input_ratio"] == pytest.approx(100)
    assert p.textbook["decode_steps_per_prefill"] == pytest.approx(20)
    assert p.output_to_input_ratio == pytest.approx(103.6, abs=0.1)


def test_how_many_users():
    p = plan()
    assert p.max_concurrent_requests == p.textbook["max_concurrent_requests"] == 97
    long = plan(input_len=32_000, output_len=768)
    assert long.max_concurrent_requests == long.textbook["max_concurrent_requests"] == 7
    without_gqa = plan(facts=DenseFacts(kv_heads=32), input_len=32_000, output_len=768)
    assert without_gqa.textbook["max_concurrent_requests"] == 1
    assert p.admissible_requests < p.max_concurrent_requests  # a share is kept for activations, pages are whole


def test_batch_of_32():
    p = plan(batch=32)
    book = p.textbook
    assert book["batch_step_s"] == pytest.approx(0.0265, abs=5e-5)
    assert book["batch_tokens_per_s"] == pytest.approx(1208, abs=1)
    assert book["speedup"] == pytest.approx(19.3, abs=0.05)
    assert book["request_latency_s"] == pytest.approx(13.6, abs=0.05)
    assert p.batch_step_floor_s == pytest.approx(0.02549, abs=1e-5)
    assert p.batch_throughput_tokens_per_s == pytest.approx(1255, abs=1)


def test_cached_prompt():
    p = plan(cached=1500)
    assert p.textbook["ttft_s"] == pytest.approx(0.08)
    assert p.ttft_floor_s == pytest.approx(0.0744, abs=1e-4)


def test_quantized_weights_leave_the_kv_cache_alone():
    four, eight = plan(dtype="int4"), plan(dtype="int8", context=32_768)
    assert four.textbook["tpot_s"] == pytest.approx(0.004)
    assert four.weight_bytes > 0.5 * four.parameters  # scales
    assert eight.textbook["weight_bytes"] == 8 * 10**9
    assert eight.weight_bytes == pytest.approx(8.03e9, rel=1e-3)
    assert eight.kv_bytes_total == 4_294_967_296


@pytest.mark.parametrize(
    ("input_len", "output_len", "key", "seconds"),
    [(2000, 5000, "decode_s", 80), (4000, 200, "request_latency_s", 3.84), (200, 4000, "request_latency_s", 64.03)],
)
def test_long_and_short_answers(input_len, output_len, key, seconds):
    assert plan(input_len=input_len, output_len=output_len).textbook[key] == pytest.approx(seconds, abs=0.005)


def test_twice_the_compute_or_twice_the_bandwidth():
    first = plan(hardware=Hardware("a", 48 * 10**9, 1000e9, {"any": 200e12}))
    second = plan(hardware=Hardware("b", 48 * 10**9, 2000e9, {"any": 100e12}))
    assert first.tpot_floor_s / second.tpot_floor_s == pytest.approx(2)
    assert second.ttft_floor_s / first.ttft_floor_s == pytest.approx(2)


@pytest.mark.parametrize("output_len", [1, 2, 3, 17, 18, 500])
def test_decode_time_is_the_sum_of_the_steps(output_len):
    roofline = Roofline(FACTS, GPU, "bf16", "bf16")
    steps = [roofline.time(roofline.decode(2000 + n, batch=4)) for n in range(1, output_len)]
    assert decode_time(roofline, Question(output_len=output_len, batch=4)) == pytest.approx(sum(steps))


def test_a_window_never_lifts_the_decode_time_above_the_sum_of_the_steps():
    roofline = Roofline(load_facts("gemma-3-1b"), GPU, "bf16", "bf16")
    steps = [roofline.time(roofline.decode(200 + n)) for n in range(1, 1000)]
    assert decode_time(roofline, Question(200, 1000)) == pytest.approx(sum(steps), rel=1e-2)
    assert decode_time(roofline, Question(200, 1000)) <= sum(steps)


def test_the_expected_interval_lies_above_the_floor_and_is_left_out_for_measured_machines():
    p = plan()
    low, high = p.tpot_expected_s
    assert p.tpot_floor_with_kv_s < low < high
    measured = dataclasses.replace(GPU, bandwidth_by_working_set=((0, 1000e9),))
    assert plan(hardware=measured).tpot_expected_s is None


def test_reasons_and_assumptions_name_what_differs():
    text = " ".join(plan().why)
    for words in ("bound by memory", "bound by compute", "1.05 GB", "output matrix once", "attention adds 1.05 TFLOP"):
        assert words in text
    assert "its bf16 rate is taken" in " ".join(plan(dtype="fp8").assumptions)
    assert "unknown" in " ".join(plan(hardware=None).assumptions)
    assert "beyond the model's context" in " ".join(plan(input_len=200_000).assumptions)


def test_work_shows_the_arithmetic():
    question = Question()
    work = show_work(plan(), Roofline(FACTS, GPU, "bf16", "bf16"), question)
    assert work["kv_bytes_per_token"] == "2 x 32 x 8 x 128 x 2 = 131,072 bytes"
    assert work["memory_free_after_weights_bytes"] == "48,000,000,000 - 16,056,328,192 = 31,943,671,808 bytes"
    assert work["ridge_intensity"] == "100 TFLOP/s / 1,000 GB/s = 100 FLOP per byte"
    mla = load_facts("deepseek-v3")
    lines = show_work(plan(facts=mla), Roofline(mla, GPU, "bf16", "bf16"), question)
    assert lines["kv_bytes_per_token"] == "61 x (512 + 64) x 2 = 70,272 bytes"
    windowed = load_facts("gemma-3-1b")
    lines = show_work(plan(facts=windowed), Roofline(windowed, GPU, "bf16", "bf16"), question)
    assert "keep the last 512 tokens only" in lines["kv_bytes_per_token"]


@pytest.mark.parametrize(
    "bad",
    [{"batch": 0}, {"batch": -1}, {"input_len": 0}, {"cached": 2000}, {"cached": -1}, {"context": 0}, {"devices": 0},
     {"output_len": 1 << 40}],
)  # fmt: skip
def test_absurd_questions_are_refused(bad):
    with pytest.raises(ConfigError):
        Question(**bad)
