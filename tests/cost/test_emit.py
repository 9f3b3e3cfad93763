import shlex

import pytest

from ridgeline.cli.options import ENGINE_OPTIONS, MODEL_OPTIONS
from ridgeline.cost.emit import Setup, emit
from ridgeline.cost.facts import load_facts
from ridgeline.cost.hardware import find_device
from ridgeline.cost.plan import make_plan
from ridgeline.cost.question import Question
from ridgeline.errors import ConfigError


def command(engine, *, devices=1, requests=10, **formats):
    hardware = find_device("example-gpu").times(devices)
    plan = make_plan(load_facts("example-8b"), hardware, Question(devices=devices), **formats)
    return emit(engine, Setup(plan, 4096, requests, hardware.memory_bytes))


def flags(text):
    lines = [line for line in text.replace("\\\n", " ").splitlines() if not line.startswith("#")]
    words = shlex.split(" ".join(lines))
    return {word: words[i + 1] if i + 1 < len(words) else "" for i, word in enumerate(words) if word.startswith("--")}


def test_vllm():
    given = flags(command("vllm", devices=2, kv_dtype="fp8"))
    assert given["--max-model-len"] == "4096"
    assert given["--max-num-seqs"] == "10"
    assert given["--tensor-parallel-size"] == "2"
    assert given["--dtype"] == "bfloat16"
    assert given["--kv-cache-dtype"] == "fp8"


def test_sglang():
    given = flags(command("sglang", dtype="fp8"))
    assert (given["--context-length"], given["--max-running-requests"]) == ("4096", "10")
    assert given["--quantization"] == "fp8"
    assert "--tp-size" not in given


def test_llama_cpp_shares_its_context_among_the_slots():
    given = flags(command("llama.cpp", kv_dtype="q8_0"))
    assert (given["--ctx-size"], given["--parallel"], given["--cache-type-k"]) == ("40960", "10", "q8_0")


def test_ollama():
    text = command("ollama", kv_dtype="q8_0")
    assert "OLLAMA_CONTEXT_LENGTH=4096 OLLAMA_NUM_PARALLEL=10" in text
    assert "OLLAMA_KV_CACHE_TYPE=q8_0" in text


def test_ridgelines_own_flags_exist():
    options = [annotation.__metadata__[0] for annotation, _ in [*ENGINE_OPTIONS.values(), *MODEL_OPTIONS.values()]]
    known = {flag for option in options for flag in (option.default, *option.param_decls)}
    given = flags(command("ridgeline"))
    assert set(given) <= known
    assert given["--kv-memory"] == str(int(0.8 * (48 * 10**9 - 16_056_328_192)))


def test_what_no_flag_can_do_is_said():
    assert "# weights in int4" in command("vllm", dtype="int4")
    assert "# a KV cache in int8" in command("sglang", kv_dtype="int8")
    assert "# weights in int4" in command("ridgeline", dtype="int4")


def test_an_unknown_engine():
    with pytest.raises(ConfigError, match="--emit 'vlm'") as caught:
        command("vlm")
    assert "vllm" in caught.value.hint
