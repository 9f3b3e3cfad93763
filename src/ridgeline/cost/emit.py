"""`--emit ENGINE`: the command that realises a plan, in the engine's own flags.

Flags as the engines documented them in 2026. A format that an engine has no flag for is said in a comment line; the
checkpoint must hold it already.
"""

from __future__ import annotations

from collections.abc import Callable

from ridgeline.config import nearest
from ridgeline.cost.memory import kv_budget
from ridgeline.cost.plan import Plan
from ridgeline.errors import ConfigError

_VLLM_KV = {"fp8": "fp8"}
_GGML_KV = {"bf16": "bf16", "fp16": "f16", "fp32": "f32", "q8_0": "q8_0", "int8": "q8_0", "q4_0": "q4_0"}
_TORCH_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def emit(engine: str, plan: Plan, *, context: int, requests: int, memory_bytes: int | None) -> str:
    """The command line for `requests` at once of up to `context` tokens. Raises ConfigError for an unknown engine."""
    if engine not in _ENGINES:
        raise ConfigError(f"--emit {engine!r}", hint=nearest(engine, list(_ENGINES)))
    return "\n".join(_ENGINES[engine](plan, context, max(1, requests), memory_bytes))


def _vllm(plan: Plan, context: int, requests: int, memory_bytes: int | None) -> list[str]:
    flags = [f"--max-model-len {context}", f"--max-num-seqs {requests}", "--gpu-memory-utilization 0.9"]
    if plan.devices > 1:
        flags.append(f"--tensor-parallel-size {plan.devices}")
    if plan.dtype in _TORCH_DTYPES:
        flags.append(f"--dtype {_TORCH_DTYPES[plan.dtype]}")
    elif plan.dtype == "fp8":
        flags.append("--quantization fp8")
    if plan.kv_dtype in _VLLM_KV:
        flags.append(f"--kv-cache-dtype {_VLLM_KV[plan.kv_dtype]}")
    return [
        *_remarks(plan, {*_TORCH_DTYPES, "fp8"}, {"bf16", "fp16", *_VLLM_KV}),
        _join(f"vllm serve {plan.model}", flags),
    ]


def _sglang(plan: Plan, context: int, requests: int, memory_bytes: int | None) -> list[str]:
    flags = [f"--context-length {context}", f"--max-running-requests {requests}", "--mem-fraction-static 0.88"]
    if plan.devices > 1:
        flags.append(f"--tp-size {plan.devices}")
    if plan.dtype in _TORCH_DTYPES:
        flags.append(f"--dtype {_TORCH_DTYPES[plan.dtype]}")
    elif plan.dtype == "fp8":
        flags.append("--quantization fp8")
    if plan.kv_dtype == "fp8":
        flags.append("--kv-cache-dtype fp8_e4m3")
    remarks = _remarks(plan, {*_TORCH_DTYPES, "fp8"}, {"bf16", "fp16", "fp8"})
    return [*remarks, _join(f"python -m sglang.launch_server --model-path {plan.model}", flags)]


def _llama_cpp(plan: Plan, context: int, requests: int, memory_bytes: int | None) -> list[str]:
    flags = [f"--ctx-size {context * requests}", f"--parallel {requests}", "--n-gpu-layers 999", "--flash-attn on"]
    if plan.kv_dtype in _GGML_KV:
        flags += [f"--cache-type-k {_GGML_KV[plan.kv_dtype]}", f"--cache-type-v {_GGML_KV[plan.kv_dtype]}"]
    head = f"# the .gguf file must hold {plan.dtype}; --ctx-size is shared by all {requests} slots"
    return [head, *_remarks(plan, {plan.dtype}, set(_GGML_KV)), _join(f"llama-server --model {plan.model}.gguf", flags)]


def _ollama(plan: Plan, context: int, requests: int, memory_bytes: int | None) -> list[str]:
    kv = {"q8_0": "q8_0", "int8": "q8_0", "q4_0": "q4_0"}.get(plan.kv_dtype, "f16")
    settings = [
        f"OLLAMA_CONTEXT_LENGTH={context}", f"OLLAMA_NUM_PARALLEL={requests}", "OLLAMA_FLASH_ATTENTION=1",
        f"OLLAMA_KV_CACHE_TYPE={kv}",
    ]  # fmt: skip
    head = f"# pull {plan.model} in {plan.dtype}"
    return [
        head,
        *_remarks(plan, {plan.dtype}, {"bf16", "fp16", *_GGML_KV} - {"fp32"}),
        " ".join([*settings, "ollama serve"]),
    ]


def _ridgeline(plan: Plan, context: int, requests: int, memory_bytes: int | None) -> list[str]:
    flags = [f"--context {context}", f"--max-requests {requests}"]
    if plan.dtype in ("fp32", "bf16"):
        flags.append(f"--dtype {plan.dtype}")
    if plan.kv_dtype in ("fp32", "bf16"):
        flags.append(f"--kv-dtype {plan.kv_dtype}")
    if memory_bytes is not None and (budget := kv_budget(memory_bytes, plan.weight_bytes)):
        flags.append(f"--kv-memory {budget}")
    return [*_remarks(plan, {"fp32", "bf16"}, {"fp32", "bf16"}), _join(f"ridgeline serve {plan.model}", flags)]


def _remarks(plan: Plan, dtypes: set[str], kv_dtypes: set[str]) -> list[str]:
    lines = []
    if plan.dtype not in dtypes:
        lines.append(f"# weights in {plan.dtype}: no flag makes them, give a checkpoint that holds them")
    if plan.kv_dtype not in kv_dtypes:
        lines.append(f"# a KV cache in {plan.kv_dtype} has no flag here: the engine's default is used")
    return lines


def _join(command: str, flags: list[str]) -> str:
    return " \\\n  ".join([command, *flags])


_Engine = Callable[[Plan, int, int, "int | None"], list[str]]
_ENGINES: dict[str, _Engine] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "llama.cpp": _llama_cpp,
    "ollama": _ollama,
    "ridgeline": _ridgeline,
}
ENGINES = tuple(_ENGINES)
