"""What `ridgeline plan` says about a load, made before it runs and stored with it: nobody can fit it afterwards."""

from __future__ import annotations

from typing import Any

from ridgeline.cost.hardware import Hardware
from ridgeline.cost.plan import make_plan
from ridgeline.cost.question import Question
from ridgeline.measure.deployment import ServedModel


def predict(model: ServedModel, hardware: Hardware, *, input_len: int, output_len: int, batch: int) -> dict[str, Any]:
    """Floors in seconds, and the most tokens per second, with `batch` requests that decode together. `ttft_floor_s` is
    that of a request alone, `tpot_floor_s` has the KV cache at input + output tokens in it."""
    question = Question(input_len=input_len, output_len=output_len, batch=batch)
    plan = make_plan(model.facts, hardware, question, dtype=model.dtype, kv_dtype=model.kv_dtype)
    return {
        "model": plan.model,
        "hardware": plan.hardware,
        "dtype": plan.dtype,
        "kv_dtype": plan.kv_dtype,
        "input_tokens": input_len,
        "output_tokens": output_len,
        "batch": batch,
        "ttft_floor_s": plan.ttft_floor_s,
        "tpot_floor_s": plan.batch_step_floor_s,
        "output_tokens_per_s": plan.batch_throughput_tokens_per_s,
        "binds": plan.decode_binds,
    }


def unpredicted(reason: str) -> dict[str, Any]:
    """Why there is no prediction."""
    return {"ttft_floor_s": None, "tpot_floor_s": None, "output_tokens_per_s": None, "reason": reason}
