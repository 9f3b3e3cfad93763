"""`make_plan`: every figure of `ridgeline plan`, from a model's facts, a device and a workload.

The fields are the JSON keys. Floors are exact: bytes and FLOPs that are really needed. `textbook` holds the figures
that people know, and `cost/words.py` says in sentences why they differ and what binds. Without hardware, or where the
device's figures are unknown, what follows from them is None.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from ridgeline.cost.capacity import capacity
from ridgeline.cost.facts import ModelFacts
from ridgeline.cost.hardware import Hardware
from ridgeline.cost.question import Question
from ridgeline.cost.roofline import Roofline
from ridgeline.cost.service import Service
from ridgeline.cost.speculation import Speculation
from ridgeline.cost.textbook import textbook
from ridgeline.cost.words import assumptions, reasons

# What is commonly reached of a vendor's bandwidth while decoding, by bits per weight (at least: low, high): from public
# measurements on GPUs. Few-bit kernels spend time on unpacking.
_REACHED = ((12.0, 0.75, 0.85), (7.0, 0.65, 0.80), (0.0, 0.45, 0.75))


@dataclass(frozen=True)
class Plan:
    """Sizes in bytes, times in seconds, intensities in FLOP per byte. Batch keys are at `--batch`, the others at 1."""

    model: str
    architecture: str
    hardware: str | None
    devices: int
    question: Question
    dtype: str
    kv_dtype: str
    parameters: int
    active_parameters: int
    weight_bytes: int
    decode_read_bytes: int
    kv_bytes_per_token: int
    kv_bytes_total: int
    memory_free_after_weights_bytes: int | None
    max_concurrent_requests: int | None
    admissible_requests: int | None
    largest_context: int | None
    ridge_intensity: float | None
    decode_intensity: float
    prefill_intensity: float
    compute_used_in_decode: float | None
    output_to_input_ratio: float | None
    decode_steps_per_prefill: float | None
    decode_binds: str | None
    prefill_binds: str | None
    ttft_floor_s: float | None
    tpot_floor_s: float | None
    tpot_floor_with_kv_s: float | None
    tpot_expected_s: tuple[float, float] | None
    decode_limit_tokens_per_s: float | None
    decode_floor_s: float | None
    request_latency_floor_s: float | None
    batch_step_floor_s: float | None
    batch_throughput_tokens_per_s: float | None
    speedup: float | None
    compute_bound_batch: int | None
    textbook: dict[str, Any]
    speculation: dict[str, Any] | None
    prices: dict[str, Any] | None
    why: list[str]
    assumptions: list[str]

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def make_plan(
    facts: ModelFacts,
    hardware: Hardware | None,
    question: Question,
    *,
    dtype: str = "bf16",
    kv_dtype: str = "bf16",
    speculation: Speculation | None = None,
    price_per_hour: float | None = None,
) -> Plan:
    """`price_per_hour` in dollars, of all devices together. Raises ConfigError for a format that is unknown.

    Long because it is a list: a line per key.
    """
    roofline = Roofline(facts, hardware or Hardware("unknown"), dtype, kv_dtype)
    weights_only, step = roofline.decode(0), roofline.decode(question.final_len)
    batch_step = roofline.decode(question.final_len, batch=question.batch)
    prefill = roofline.prefill(question.input_len, question.cached)
    tpot, tpot_with_kv = roofline.time(weights_only), roofline.time(step)
    ttft, batch_step_s = roofline.prefill_time(question.input_len, question.cached), roofline.time(batch_step)
    decoding = decode_time(roofline, question)
    fits = capacity(roofline, question.final_len)
    return Plan(
        model=facts.name,
        architecture=facts.architecture,
        hardware=None if hardware is None else hardware.name,
        devices=question.devices,
        question=question,
        dtype=roofline.format_name,
        kv_dtype=kv_dtype,
        parameters=facts.parameters,
        active_parameters=facts.active_parameters,
        weight_bytes=facts.weight_bytes(dtype),
        decode_read_bytes=round(weights_only.bytes_read),
        kv_bytes_per_token=facts.kv_bytes_per_token(kv_dtype),
        kv_bytes_total=facts.kv_bytes(question.context_len, kv_dtype),
        memory_free_after_weights_bytes=fits.memory_free_bytes if fits else None,
        max_concurrent_requests=fits.max_concurrent_requests if fits else None,
        admissible_requests=fits.admissible_requests if fits else None,
        largest_context=fits.largest_context if fits else None,
        ridge_intensity=roofline.ridge,
        decode_intensity=batch_step.intensity,
        prefill_intensity=prefill.intensity,
        compute_used_in_decode=min(1.0, batch_step.intensity / roofline.ridge) if roofline.ridge else None,
        output_to_input_ratio=tpot * question.uncached / ttft if tpot and ttft else None,
        decode_steps_per_prefill=ttft / tpot if tpot and ttft else None,
        decode_binds=roofline.binds(batch_step),
        prefill_binds=roofline.binds(prefill),
        ttft_floor_s=ttft,
        tpot_floor_s=tpot,
        tpot_floor_with_kv_s=tpot_with_kv,
        tpot_expected_s=_expected(roofline, tpot_with_kv),
        decode_limit_tokens_per_s=1 / tpot if tpot else None,
        decode_floor_s=decoding,
        request_latency_floor_s=None if ttft is None or decoding is None else ttft + decoding,
        batch_step_floor_s=batch_step_s,
        batch_throughput_tokens_per_s=question.batch / batch_step_s if batch_step_s else None,
        speedup=question.batch * tpot / batch_step_s if tpot and batch_step_s else None,
        compute_bound_batch=roofline.compute_bound_batch(question.final_len),
        textbook=textbook(roofline, question),
        speculation=None if speculation is None else _speculation(speculation, roofline, question),
        prices=None if price_per_hour is None else Service(roofline, question).prices(question.batch, price_per_hour),
        why=reasons(roofline, question),
        assumptions=assumptions(roofline, question),
    )


def decode_time(roofline: Roofline, question: Question) -> float | None:
    """Seconds for the output tokens after the first, which comes from the prefill, while the context grows.

    Trapezoids over at most 16 stretches: exact for a cache that grows evenly, and below the truth for one that a window
    bounds.
    """
    num_steps = question.output_len - 1
    if num_steps == 0:
        return 0.0
    stretches = min(16, num_steps)
    ends = [question.input_len + 1 + (num_steps - 1) * i // stretches for i in range(stretches + 1)]
    times = [roofline.time(roofline.decode(end, batch=question.batch)) for end in ends]
    if any(time is None for time in times):
        return None
    known = [time for time in times if time is not None]
    area = sum(
        (b - a) * (left + right) / 2 for a, b, left, right in zip(ends, ends[1:], known, known[1:], strict=False)
    )
    return area + (known[0] + known[-1]) / 2  # num_steps points span num_steps - 1 intervals


def _expected(roofline: Roofline, floor: float | None) -> tuple[float, float] | None:
    """The interval that a well-made engine lands in; None on a machine that was measured, where the floor says it."""
    if floor is None or roofline.hardware.is_measured:
        return None
    bits = 8 * roofline.facts.weight_bytes(roofline.dtype) / roofline.facts.parameters
    low, high = next((low, high) for least, low, high in _REACHED if bits >= least)
    return floor / high, floor / low


def _speculation(speculation: Speculation, roofline: Roofline, question: Question) -> dict[str, Any]:
    step = speculation.step_time(roofline, question.final_len, question.batch)
    return {
        "num_drafts": speculation.num_drafts,
        "acceptance": speculation.acceptance,
        "draft": speculation.draft and speculation.draft.name,
        "tokens_per_step": speculation.tokens_per_step,
        "step_floor_s": step,
        "tpot_floor_s": step and step / speculation.tokens_per_step,
        "speedup": speculation.speedup(roofline, question.final_len, question.batch),
        "break_even_batch": speculation.break_even_batch(roofline, question.final_len),
    }
