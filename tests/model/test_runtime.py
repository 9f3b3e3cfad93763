"""What `load_runtime` decides: number format, KV pages, context; and what it refuses."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from checkpoints import EOS_TOKEN_ID, make_gguf, make_hf
from ridgeline.config import ModelConfig
from ridgeline.cost.memory import weight_bytes
from ridgeline.errors import ConfigError
from ridgeline.model import runtime as runtime_module
from ridgeline.model.runtime import PAGE_SIZE, load_runtime
from ridgeline.units import format_bytes
from step_plans import Stepper

KV_BYTES = 2 * 2 * 2 * 16 * 4  # K and V, layers, KV heads, head size, fp32


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return make_hf(tmp_path_factory.mktemp("runtime"), "llama")


def load(path, *, num_sampler_slots: int = 4, **config):
    return load_runtime(str(path), ModelConfig(**({"executor": "torch"} | config)), num_sampler_slots=num_sampler_slots)


@pytest.mark.parametrize("executor", ["torch", "native"])
def test_a_directory_becomes_a_runtime(directory, executor):
    stages = []
    config = ModelConfig(executor=executor, packed_file=False)
    runtime = load_runtime(str(directory), config, progress=lambda *stage: stages.append(stage))
    assert (runtime.name, runtime.dtype, runtime.kv_dtype) == (directory.name, "fp32", "fp32")
    assert (runtime.context_len, runtime.kv_bytes_per_token, runtime.notices) == (512, KV_BYTES, ())
    assert EOS_TOKEN_ID in runtime.tokenizer.eos_token_ids
    ids = runtime.chat_template.encode([{"role": "user", "content": "the quick fox"}])
    assert "the quick fox" in runtime.tokenizer.decode(ids)
    assert len(Stepper(runtime.executor).greedy(ids, 3)) == 3
    assert {"loading weights", "packing weights"} & {stage for stage, _ in stages}
    assert stages[-1] == ("ready", 1.0)
    runtime.close()


@pytest.mark.parametrize(
    ("stored", "given", "runs_as", "told"),
    [
        ("float32", "auto", "fp32", False),
        ("bfloat16", "auto", "bf16", False),
        ("float16", "auto", "bf16", True),
        ("float16", "fp32", "fp32", False),
        ("float32", "bf16", "bf16", False),
    ],
)
def test_dtype_follows_the_checkpoint_and_a_conversion_is_told(tmp_path, stored, given, runs_as, told):
    runtime = load(make_hf(tmp_path, "qwen2", dtype=stored), dtype=given)
    assert (runtime.dtype, runtime.kv_dtype) == (runs_as, runs_as)
    assert any("fp16" in notice for notice in runtime.notices) == told


def test_a_quantized_gguf_runs_as_bf16_and_says_so(tmp_path):
    runtime = load(make_gguf(make_hf(tmp_path, "qwen3"), tmp_path / "tiny.gguf", "Q8_0"))
    assert (runtime.dtype, runtime.name) == ("bf16", "tiny")
    assert any("Q8_0" in notice for notice in runtime.notices)
    assert runtime.chat_template is not None


@pytest.mark.parametrize(
    ("dtype", "head_dtype", "name", "products"),
    [
        ("int8", None, "int8", "w8a8"),
        ("INT4", None, "int4-g32", "w4a8"),
        ("int4-g64-zp", "int8-g32", "int4-g64-zp+int8-g32", "w4a8 and w8a8"),
        ("int8", "bf16", "int8+bf16", "w8a8"),
        ("gguf", None, "gguf", "w8a8"),
        ("bf16", "int8-g32", "bf16+int8-g32", "w8a8 and bf16"),
        ("bf16", "int8", "bf16+int8", "w8a8 and bf16"),
        ("gguf", "int8", "gguf+int8", "w8a8"),
    ],
)
def test_quantized_formats_run_and_are_told_as_approximate(dtype, head_dtype, name, products, tmp_path):
    """Tied, so that rotated weights get an output matrix of their own."""
    path = make_hf(tmp_path, "qwen2", tied=True)
    if dtype == "gguf":
        path = make_gguf(path, tmp_path / "tiny.gguf", "Q8_0")
    runtime = load(path, executor="native", dtype=dtype, head_dtype=head_dtype, packed_file=False)
    assert (runtime.dtype, runtime.arithmetic, runtime.kv_dtype) == (name, products, "bf16")
    (notice,) = [notice for notice in runtime.notices if "approximate" in notice]
    assert notice.startswith(f"{name} is {products}: activations in 8 bits")
    logits, expected = (
        Stepper(loaded.executor).logits([[5, 6, 7]])[0] for loaded in (runtime, load(path, dtype="fp32"))
    )
    assert np.abs(logits - expected).max() < 0.3 * np.abs(expected).max()
    runtime.close()


def test_a_quantized_file_that_is_rounded_anew_says_so(tmp_path):
    path = make_gguf(make_hf(tmp_path, "qwen2"), tmp_path / "tiny.gguf", "Q4_0")
    runtime = load(path, executor="native", dtype="int4", packed_file=False)
    assert any("rounded anew to int4-g32; --dtype gguf keeps them" in notice for notice in runtime.notices)
    runtime.close()


def test_pages_never_exceed_what_the_requests_could_use(directory):
    runtime = load(directory, num_sampler_slots=3)
    assert runtime.executor.num_pages == 3 * 512 // PAGE_SIZE + 1
    assert load(directory, num_sampler_slots=3, context=PAGE_SIZE + 1).executor.num_pages == 3 * 2 + 1


def test_given_kv_memory_is_used_and_bounds_the_context(directory):
    page_bytes = PAGE_SIZE * KV_BYTES
    runtime = load(directory, kv_memory=5 * page_bytes + 100)
    assert (runtime.executor.num_pages, runtime.context_len) == (5, 4 * PAGE_SIZE)
    assert any(str(4 * PAGE_SIZE) in notice and "512" in notice for notice in runtime.notices)
    halved = load(directory, kv_memory=5 * page_bytes, kv_dtype="bf16")
    assert (halved.executor.num_pages, halved.kv_bytes_per_token) == (10, KV_BYTES // 2)


def test_kv_memory_beyond_what_is_free_is_told_with_the_numbers(directory, monkeypatch):
    weights = weight_bytes(load(directory).spec, "fp32")
    pages = 4 * 512 // PAGE_SIZE + 1
    needed = weights + pages * PAGE_SIZE * KV_BYTES
    for free_bytes, told in ((needed, False), (needed - 1, True)):
        monkeypatch.setattr(runtime_module, "available_memory", lambda free=free_bytes: free)
        notices = load(directory, kv_memory=10**9).notices
        assert any(format_bytes(free_bytes) in notice and "kv_memory" in notice for notice in notices) == told


def test_kv_gets_a_share_of_what_the_weights_leave(directory, monkeypatch):
    weights = load(directory).spec.num_parameters * 4
    monkeypatch.setattr(runtime_module, "available_memory", lambda: weights + 20 * PAGE_SIZE * KV_BYTES)
    assert load(directory).executor.num_pages == 16


@pytest.mark.parametrize(("config", "free_bytes"), [({"kv_memory": 1000}, 1 << 40), ({}, 420_000), ({}, 0)])
def test_too_little_memory_is_refused_with_the_numbers(directory, monkeypatch, config, free_bytes):
    monkeypatch.setattr(runtime_module, "available_memory", lambda: free_bytes)
    with pytest.raises(ConfigError, match=f"two KV pages of {PAGE_SIZE} tokens need") as caught:
        load(directory, **config)
    assert caught.value.details["needed_bytes"] == 2 * PAGE_SIZE * KV_BYTES
    assert caught.value.hint


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"dtype": "bf61"}, "bf61.*bf16"),
        ({"dtype": "fp64", "executor": "native"}, "native executor has no dtype 'fp64'"),
        ({"kv_dtype": "int3"}, "int3.*bf16"),
        ({"executor": "nativ"}, "nativ.*native"),
        ({"weights": "rndom"}, "rndom.*random"),
        ({"threads": 0}, "threads = 0"),
        ({"priority": 20}, "priority = 20: -20"),
        ({"priority": 5, "executor": "torch"}, "no threads to give a priority"),
        ({"context": 513}, "513.*512"),
        ({"context": 0}, "context = 0"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(directory, config, message):
    with pytest.raises(ConfigError) as caught:
        load(directory, **config)
    assert caught.match(message)


def test_a_config_alone_runs_with_random_weights_only(directory, tmp_path):
    shutil.copy(directory / "config.json", tmp_path / "config.json")
    runtime = load(tmp_path / "config.json", weights="random")
    assert (runtime.tokenizer, runtime.chat_template) == (None, None)
    first = Stepper(runtime.executor).logits([[3, 4, 5]])[0]
    assert abs(first).max() > 0
    again = load(tmp_path / "config.json", weights="random")
    assert (Stepper(again.executor).logits([[3, 4, 5]])[0] == first).all()
    with pytest.raises(ConfigError, match="no weights"):
        load(tmp_path / "config.json")


@pytest.mark.parametrize(
    ("file", "defaults"),
    [
        ({"temperature": 0.6, "top_k": 20, "top_p": 0.95, "do_sample": True, "eos_token_id": 2},
         {"temperature": 0.6, "top_k": 20, "top_p": 0.95}),
        ({"eos_token_id": 2}, {}),
        ({"do_sample": False, "temperature": 0.6}, {"temperature": 0.0}),
        ({"repetition_penalty": 1.1, "top_p": None}, {"repetition_penalty": 1.1}),
        ({"do_sample": False, "repetition_penalty": 1.3}, {"temperature": 0.0, "repetition_penalty": 1.3}),
    ],
)  # fmt: skip
def test_generation_defaults_come_from_the_checkpoint(directory, tmp_path, file, defaults):
    shutil.copytree(directory, tmp_path, dirs_exist_ok=True)
    (tmp_path / "generation_config.json").write_text(json.dumps(file))
    assert load(tmp_path).generation_defaults == defaults


def test_sampling_that_is_not_read_is_told(directory, tmp_path):
    shutil.copytree(directory, tmp_path, dirs_exist_ok=True)
    (tmp_path / "generation_config.json").write_text(json.dumps({"no_repeat_ngram_size": 3, "num_beams": 1}))
    told = [notice for notice in load(tmp_path).notices if "generation_config.json" in notice]
    assert told == ["generation_config.json sets no_repeat_ngram_size = 3: not read here, generation goes without it"]
