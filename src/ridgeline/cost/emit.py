"""`--emit ENGINE`: the command that realises a plan, in the engine's own flags.

Flags as the engines documented them in 2026. A format that an engine has no flag for is said in a comment line; the
checkpoint must hold it already.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ridgeline.config import nearest
from ridgeline.cost.memory import BYTES_PER_VALUE, kv_budget
from ridgeline.cost.plan import Plan
from ridgeline.errors import ConfigError
from ridgeline.quant.formats import SERVED_KV

_GGML_KV = {"bf16": "bf16", "fp16": "f16", "fp32": "f32", "q8_0": "q8_0", "int8": "q8_0", "q4_0": "q4_0"}
_OLLAMA_KV = {"bf16": "f16", "fp16": "f16", "q8_0": "q8_0", "int8": "q8_0", "q4_0": "q4_0"}
_TORCH_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


@dataclass(frozen=True)
class Setup:
    """What is to be run: `requests` at once, of up to `context` tokens each."""

    plan: Plan
    context: int
    requests: int
    memory_bytes: int | None  # of all devices; None: unknown


def emit(engine: str, setup: Setup) -> str:
    """The command line, with a comment line for what no flag can do. Raises ConfigError for an unknown engine."""
    if engine not in _ENGINES:
        raise ConfigError(f"--emit {engine!r}", hint=nearest(engine, list(_ENGINES)))
    return "\n".join(_ENGINES[engine](setup))


def _vllm(setup: Setup) -> list[str]:
    plan = setup.plan
    flags = [
        f"--max-model-len {setup.context}",
        f"--max-num-seqs {setup.requests}",
        "--gpu-memory-utilization 0.9",
        *([f"--tensor-parallel-size {plan.devices}"] if plan.devices > 1 else []),
        *_torch_format(plan),
        *(["--kv-cache-dtype fp8"] if plan.kv_dtype == "fp8" else []),
    ]
    return [*_remarks(plan, {*_TORCH_DTYPES, "fp8"}, {"bf16", "fp16", "fp8"}), _join(f"vllm serve {plan.model}", flags)]


def _sglang(setup: Setup) -> list[str]:
    plan = setup.plan
    flags = [
        f"--context-length {setup.context}",
        f"--max-running-requests {setup.requests}",
        "--mem-fraction-static 0.88",
        *([f"--tp-size {plan.devices}"] if plan.devices > 1 else []),
        *_torch_format(plan),
        *(["--kv-cache-dtype fp8_e4m3"] if plan.kv_dtype == "fp8" else []),
    ]
    remarks = _remarks(plan, {*_TORCH_DTYPES, "fp8"}, {"bf16", "fp16", "fp8"})
    return [*remarks, _join(f"python -m sglang.launch_server --model-path {plan.model}", flags)]


def _torch_format(plan: Plan) -> list[str]:
    if plan.dtype in _TORCH_DTYPES:
        return [f"--dtype {_TORCH_DTYPES[plan.dtype]}"]
    return ["--quantization fp8"] if plan.dtype == "fp8" else []


def _llama_cpp(setup: Setup) -> list[str]:
    plan = setup.plan
    flags = [
        f"--ctx-size {setup.context * setup.requests}",
        f"--parallel {setup.requests}",
        "--n-gpu-layers 999",
        "--flash-attn on",
    ]
    if plan.kv_dtype in _GGML_KV:
        flags += [f"--cache-type-k {_GGML_KV[plan.kv_dtype]}", f"--cache-type-v {_GGML_KV[plan.kv_dtype]}"]
    head = f"# the .gguf file must hold {plan.dtype}; --ctx-size is shared by all {setup.requests} slots"
    return [head, *_remarks(plan, {plan.dtype}, set(_GGML_KV)), _join(f"llama-server --model {plan.model}.gguf", flags)]


def _ollama(setup: Setup) -> list[str]:
    plan = setup.plan
    settings = [
        f"OLLAMA_CONTEXT_LENGTH={setup.context}",
        f"OLLAMA_NUM_PARALLEL={setup.requests}",
        "OLLAMA_FLASH_ATTENTION=1",
        f"OLLAMA_KV_CACHE_TYPE={_OLLAMA_KV.get(plan.kv_dtype, 'f16')}",
    ]
    remarks = _remarks(plan, {plan.dtype}, set(_OLLAMA_KV))
    return [f"# pull {plan.model} in {plan.dtype}", *remarks, " ".join([*settings, "ollama serve"])]


def _ridgeline(setup: Setup) -> list[str]:
    plan = setup.plan
    flags = [f"--context {setup.context}", f"--max-requests {setup.requests}"]
    if plan.dtype in BYTES_PER_VALUE:
        flags.append(f"--dtype {plan.dtype}")
    if plan.kv_dtype in SERVED_KV:
        flags.append(f"--kv-dtype {plan.kv_dtype}")
    if setup.memory_bytes is not None:
        flags.append(f"--kv-memory {kv_budget(setup.memory_bytes, plan.weight_bytes)}")
    return [*_remarks(plan, set(BYTES_PER_VALUE), set(SERVED_KV)), _join(f"ridgeline serve {plan.model}", flags)]


def _remarks(plan: Plan, dtypes: set[str], kv_dtypes: set[str]) -> list[str]:
    lines = []
    if plan.dtype not in dtypes:
        lines.append(f"# weights in {plan.dtype}: no flag makes them, give a checkpoint that holds them")
    if plan.kv_dtype not in kv_dtypes:
        lines.append(f"# a KV cache in {plan.kv_dtype} has no flag here: the engine's default is used")
    return lines


def _join(command: str, flags: list[str]) -> str:
    return " \\\n  ".join([command, *flags])


_ENGINES: dict[str, Callable[[Setup], list[str]]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "llama.cpp": _llama_cpp,
    "ollama": _ollama,
    "ridgeline": _ridgeline,
}
ENGINES = tuple(_ENGINES)
