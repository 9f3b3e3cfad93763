"""Invariant 6 on the bundled model: what `plan` says of memory is what `serve` allocates."""

import pytest

from ridgeline.config import ModelConfig
from ridgeline.cost.facts import load_facts
from ridgeline.cost.hardware import Hardware
from ridgeline.cost.memory import PAGE_SIZE, kv_budget
from ridgeline.cost.plan import make_plan
from ridgeline.cost.question import Question
from ridgeline.model import runtime as runtime_module
from ridgeline.model.runtime import load_runtime

FREE_BYTES = 600 * 10**6


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_the_predicted_memory_is_allocated(dtype, monkeypatch):
    monkeypatch.setattr(runtime_module, "available_memory", lambda: 2 * FREE_BYTES if dtype == "fp32" else FREE_BYTES)
    free_bytes = runtime_module.available_memory()
    facts = load_facts("smollm2-135m")
    machine = Hardware("this", memory_bytes=free_bytes)
    final_len = 2048
    predicted = make_plan(facts, machine, Question(2000, 48), dtype=dtype, kv_dtype=dtype)
    runtime = load_runtime("smollm2-135m", ModelConfig(dtype=dtype), num_sampler_slots=4096)
    try:
        executor = runtime.executor
        assert executor.weight_bytes == pytest.approx(predicted.weight_bytes, rel=0.01)
        assert executor.kv_bytes == pytest.approx(kv_budget(free_bytes, predicted.weight_bytes), rel=0.01)
        assert executor.kv_bytes / (executor.num_pages * PAGE_SIZE) == predicted.kv_bytes_per_token
        assert (executor.num_pages - 1) // (final_len // PAGE_SIZE) == predicted.admissible_requests
    finally:
        runtime.close()
