"""Invariant 6 on the bundled model: what `plan` says of memory is what `serve` allocates, in every format."""

import pytest

from checkpoints import make_gguf, make_hf
from executors_under_test import open_executor
from ridgeline.config import ModelConfig
from ridgeline.cost.facts import load_facts
from ridgeline.cost.hardware import Hardware
from ridgeline.cost.memory import PAGE_SIZE, kv_budget
from ridgeline.cost.plan import make_plan
from ridgeline.cost.question import Question
from ridgeline.model import runtime as runtime_module
from ridgeline.model.quantized import held_bytes, in_format
from ridgeline.model.resolve import load_spec, resolve_model
from ridgeline.model.runtime import load_runtime
from ridgeline.model.weights import open_weights
from ridgeline.quant.formats import SERVED, joined

FREE_BYTES = 600 * 10**6


@pytest.mark.parametrize(
    ("dtype", "kv_dtype"), [("bf16", "bf16"), ("fp32", "fp32"), ("int4-g128", "bf16"), ("bf16", "int8")]
)
def test_the_predicted_memory_is_allocated(dtype, kv_dtype, monkeypatch):
    monkeypatch.setattr(runtime_module, "available_memory", lambda: 2 * FREE_BYTES if dtype == "fp32" else FREE_BYTES)
    free_bytes = runtime_module.available_memory()
    facts = load_facts("smollm2-135m")
    machine = Hardware("this", memory_bytes=free_bytes)
    final_len = 2048
    predicted = make_plan(facts, machine, Question(2000, 48), dtype=dtype, kv_dtype=kv_dtype)
    runtime = load_runtime("smollm2-135m", ModelConfig(dtype=dtype, kv_dtype=kv_dtype), num_sampler_slots=4096)
    try:
        executor = runtime.executor
        assert executor.weight_bytes == pytest.approx(predicted.weight_bytes, rel=0.01)
        assert executor.kv_bytes == pytest.approx(kv_budget(free_bytes, predicted.weight_bytes), rel=0.01)
        assert executor.kv_bytes / (executor.num_pages * PAGE_SIZE) == predicted.kv_bytes_per_token
        assert (executor.num_pages - 1) // (final_len // PAGE_SIZE) == predicted.admissible_requests
    finally:
        runtime.close()


@pytest.mark.parametrize(
    ("dtype", "head_dtype"),
    [
        *((dtype, None) for dtype in SERVED),
        ("int8", "int4-g32"),
        ("int4-g32", "bf16"),
        ("int4-g32", "int8"),
        ("bf16", "int8"),
    ],
)
def test_a_plan_counts_what_admission_counts(dtype, head_dtype):
    """Of the bundled model, without reading its weights."""
    files = resolve_model("smollm2-135m")
    spec = load_spec(files)
    held = held_bytes(in_format(open_weights(files, spec), spec, dtype, head_dtype), dtype)
    assert load_facts("smollm2-135m", dtype).weight_bytes(joined(dtype, head_dtype)) == pytest.approx(held, rel=0.01)


@pytest.mark.parametrize("dtype", SERVED)
def test_admission_counts_what_the_executor_allocates(dtype, tmp_path):
    """Of a model whose widths are no whole tiles."""
    directory = make_hf(tmp_path, "qwen2", hidden_size=96, num_attention_heads=6, num_key_value_heads=1)
    path = make_gguf(directory, tmp_path / "tiny.gguf", "Q4_0") if dtype == "gguf" else directory
    files = resolve_model(str(path))
    spec = load_spec(files)
    held = held_bytes(in_format(open_weights(files, spec), spec, dtype), dtype)
    with open_executor("native", str(path), dtype=dtype, kv_dtype=None) as executor:
        assert executor.weight_bytes == pytest.approx(held, rel=0.01)
