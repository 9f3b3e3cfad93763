"""The textbook's figures: what people know by heart, kept beside the exact ones.

Every parameter is read once per step and costs 2 FLOPs per token, and nothing else counts; only a batch of sequences
has its KV read too. A single stream's KV is neglected, as textbooks do. The parameter count is the round one where a
catalog entry gives it (8e9 for `example-8b`), and formats are plain bits per parameter, scales left out.
"""

from __future__ import annotations

import math
from typing import Any

from ridgeline.cost.question import Question
from ridgeline.cost.roofline import Roofline, Work
from ridgeline.errors import ConfigError
from ridgeline.quant.formats import weight_format


def textbook(roofline: Roofline, question: Question) -> dict[str, Any]:
    """The `textbook` object of `plan --json`. Figures that need an unknown ceiling are None."""
    facts, hardware = roofline.facts, roofline.hardware
    parameters = facts.nominal_parameters or float(facts.parameters)
    active = facts.nominal_parameters or float(facts.active_parameters)
    bytes_per_parameter = _bytes_per_parameter(roofline)
    weight_bytes, read_bytes = parameters * bytes_per_parameter, active * bytes_per_parameter
    kv_bytes = facts.kv_bytes(question.final_len, roofline.kv_dtype)
    batch = question.batch
    flops = 2 * active

    ttft = _over(flops * question.uncached, roofline.compute)
    tpot = roofline.time(Work(read_bytes, flops))
    step = roofline.time(Work(read_bytes + batch * kv_bytes, flops * batch))
    rate = _over(batch, step)
    decode_rate = _over(1, tpot)
    per_token = tpot if batch == 1 else step
    memory_free = None if hardware.memory_bytes is None else round(hardware.memory_bytes - weight_bytes)
    decode = None if per_token is None else question.output_len * per_token
    return {
        "parameters": parameters,
        "weight_bytes": round(weight_bytes),
        "ttft_s": ttft,
        "tpot_s": tpot,
        "decode_s": decode,
        "decode_tokens_per_s": decode_rate,
        "batch_step_s": step,
        "batch_tokens_per_s": rate,
        "speedup": None if rate is None or decode_rate is None else rate / decode_rate,
        "request_latency_s": None if ttft is None or decode is None else ttft + decode,
        "output_to_input_ratio": None if ttft is None or tpot is None else tpot * question.uncached / ttft,
        "decode_steps_per_prefill": None if ttft is None or tpot is None else ttft / tpot,
        "compute_used_in_decode": None
        if roofline.ridge is None
        else min(1.0, batch * flops / read_bytes / roofline.ridge),
        "prefill_intensity": flops * question.uncached / read_bytes,
        "decode_intensity": batch * flops / read_bytes,
        "compute_bound_batch": _compute_bound_batch(roofline, read_bytes, flops),
        "memory_free_bytes": memory_free,
        "max_concurrent_requests": None if memory_free is None else max(0, memory_free // kv_bytes),
    }


def _bytes_per_parameter(roofline: Roofline) -> float:
    try:
        return weight_format(roofline.format_name).bits / 8
    except ConfigError:  # the formats of a file, which differ by tensor
        return roofline.facts.weight_bytes(roofline.dtype) / roofline.facts.parameters


def _compute_bound_batch(roofline: Roofline, read_bytes: float, flops: float) -> int | None:
    """Where 2 FLOPs per parameter and sequence take as long as reading the parameters once."""
    ridge = roofline.ridge
    return None if ridge is None else math.ceil(ridge * read_bytes / flops - 1e-9)  # 100.0000000001 is 100


def _over(amount: float, rate: float | None) -> float | None:
    return amount / rate if rate else None
