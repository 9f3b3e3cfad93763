"""From numbers to sentences: why a token takes as long as it does, what the slopes mean, what would be faster.

A decode step at context c reads the weights and the KV cache of c tokens: its limit is that over the bandwidth
(`cost/roofline.py`). What is measured beyond it is split as far as it can be told: between server and client, where the
server tells its own decode time; the share of a vendor's bandwidth that engines reach; the rest is the step's overhead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ridgeline.cost.hardware import THIS
from ridgeline.cost.plan import make_plan
from ridgeline.cost.question import Question
from ridgeline.cost.roofline import Roofline
from ridgeline.quant.formats import FORMATS
from ridgeline.units import format_bytes, format_duration

_BELOW_FLOOR = 1.03  # noise and the ceiling's own error; beyond it the limit is another model's or device's
_FEW_BITS = 12  # per weight: fewer need unpacking
_ALTERNATIVES = ("bf16", "q8_0", "q4_0")
_NAMES = {"q8_0": "q8", "q4_0": "q4"}
_KILO = 1024


def tokens_per_s(seconds: float) -> str:
    rate = 1 / seconds
    return f"{rate:,.0f} tokens/s" if rate >= 10 else f"{rate:,.1f} tokens/s"


def gb_per_s(bandwidth: float) -> str:
    return f"{bandwidth / 1e9:,.{0 if bandwidth >= 1e10 else 1}f} GB/s"


def bits_per_weight(roofline: Roofline) -> float:
    """Of those that a decode step reads."""
    return 8 * roofline.facts.decode_read_bytes(roofline.dtype) / roofline.facts.read_parameters


def format_label(roofline: Roofline) -> str:
    """`bf16`; what a GGUF file mixes is told by its bits."""
    name = roofline.format_name
    return f"this file's {bits_per_weight(roofline):.2g} bits" if name == "gguf" else name


def device_label(roofline: Roofline) -> str:
    return "this machine" if roofline.hardware.name == THIS else roofline.hardware.name


def why_gap(roofline: Roofline, context: int, tpot_s: float, server_tpot_s: float | None) -> str:
    """One sentence: limit, its parts, and where the rest goes. Needs a roofline with a known bandwidth."""
    step = roofline.decode(context)
    limit, weights = roofline.time(step), roofline.time(roofline.decode(0))
    assert limit is not None
    assert weights is not None
    head = f"{format_duration(tpot_s)} per token is {tpot_s / limit:.2f}x the limit of {format_duration(limit)}"
    if tpot_s * _BELOW_FLOOR < limit:
        return (
            f"{head}, which is impossible: the server runs something else than {roofline.facts.name} in "
            f"{format_label(roofline)} on {device_label(roofline)}, or makes several tokens per step (speculation)."
        )
    if roofline.binds(step) == "compute":
        parts = f"computing {step.flops / 1e9:,.2g} GFLOP per token takes all of the limit"
    else:
        bandwidth = step.bytes_read / limit
        parts = (
            f"reading the weights takes {format_duration(weights)} of it at {gb_per_s(bandwidth)} and the KV "
            f"cache of {context:,} tokens {format_duration(limit - weights)}"
        )
    if tpot_s <= limit:
        return f"{head}: {parts}; nothing is left to gain on this device in this format."
    rest = ", then ".join(_overheads(roofline, context, tpot_s, server_tpot_s))
    return f"{head}: {parts}; the other {format_duration(tpot_s - limit)} are {rest}."


def _overheads(roofline: Roofline, context: int, tpot_s: float, server_tpot_s: float | None) -> Iterator[str]:
    """What lies between the limit and the measured time, named."""
    outside = 0.0 if server_tpot_s is None else max(0.0, tpot_s - server_tpot_s)
    if outside > 0.02 * tpot_s:
        yield f"the way from the server's step to the client, {format_duration(outside)}"
    plan = make_plan(
        roofline.facts,
        roofline.hardware,
        Question(input_len=context, output_len=1),
        dtype=roofline.dtype,
        kv_dtype=roofline.kv_dtype,
    )
    if plan.tpot_expected_s is not None and plan.tpot_floor_with_kv_s is not None:
        low, high = (expected - plan.tpot_floor_with_kv_s for expected in plan.tpot_expected_s)
        yield (
            f"bandwidth that the specification promises and engines do not reach, {format_duration(low)} to "
            f"{format_duration(high)}"
        )
    bits = bits_per_weight(roofline)
    unpacking = f", unpacking {bits:.2g}-bit weights" if bits < _FEW_BITS else ""
    yield f"the work of each step beside reading (launching, synchronising, sampling{unpacking})"


def why_ttft(roofline: Roofline | None, points: Sequence[tuple[int, float]]) -> str:
    """One sentence on TTFT against the number of computed prompt tokens."""
    if len({tokens for tokens, _ in points}) < 2:
        return "TTFT was measured at fewer than two prompt lengths: no slope."
    longest = max(tokens for tokens, _ in points)
    fixed, linear, quadratic = fit_ttft(points)
    slope = linear + quadratic * longest
    if slope <= 0:
        return "TTFT does not grow with the prompt beyond the noise."
    text = f"TTFT grows by {format_duration(slope)} per prompt token ({1 / slope:,.0f} tokens/s)"
    if quadratic > 0:
        share = quadratic * longest**2 / (linear * longest + quadratic * longest**2)
        text += f", {share:.0%} of it at {longest:,} tokens from attention, which is quadratic"
    if fixed > 0:
        text += f", after {format_duration(fixed)} that do not depend on the length"
    predicted = None if roofline is None else roofline.time(roofline.prefill(longest))
    if roofline is None or predicted is None:
        return text + "."
    work = roofline.prefill(longest)
    attention = roofline.facts.attention_flops(0, longest) / work.flops
    bound = {"compute": "computing", "memory": "reading"}.get(roofline.binds(work) or "", "the known ceiling")
    share = predicted / longest / slope
    text += f"; the limit is {format_duration(predicted / longest)} ({bound}), {attention:.0%} of the work is attention"
    if share > _BELOW_FLOOR:
        return f"{text}: faster than {device_label(roofline)} can compute it, so something else runs."
    return f"{text}, so prefill runs at {share:.0%} of what {device_label(roofline)} can do."


def why_tpot(roofline: Roofline | None, points: Sequence[tuple[float, float]]) -> str:
    """One sentence on TPOT against context."""
    contexts = [context for context, _ in points]
    if len(set(contexts)) < 2:
        return "TPOT was measured at fewer than two contexts: no slope."
    slope = float(np.polyfit(contexts, [tpot for _, tpot in points], 1)[0]) * _KILO
    low, high = min(contexts), max(contexts)
    span = f"from {low:,.0f} to {high:,.0f} tokens of context"
    if slope > 0:
        text = f"TPOT grows by {format_duration(slope)} per {_KILO:,} tokens {span}"
    else:
        text = f"TPOT does not grow {span} beyond the noise"
    if roofline is None:
        return text + "."
    near, far = roofline.time(roofline.decode(round(low))), roofline.time(roofline.decode(round(high)))
    if near is None or far is None:
        return text + "."
    kv = (far - near) / (high - low) * _KILO
    read = format_bytes(round(roofline.facts.kv_read_bytes(round(high), roofline.kv_dtype)))
    text += f"; reading the KV cache of {high:,.0f} tokens, {read}, adds at least {format_duration(kv)} per {_KILO:,}"
    if slope > 2 * kv > 0:
        return text + ": attention in this engine reads or computes more than that, and long contexts pay for it."
    return text + "."


def fit_ttft(points: Sequence[tuple[int, float]]) -> tuple[float, float, float]:
    """Seconds (fixed, per token, per token squared) by least squares; a quadratic part only from four lengths on, and
    only where it is positive."""
    tokens, seconds = zip(*points, strict=True)
    if len(set(tokens)) >= 4:
        quadratic, linear, fixed = (float(c) for c in np.polyfit(tokens, seconds, 2))
        if quadratic > 0 and linear > 0:
            return fixed, linear, quadratic
    linear, fixed = (float(c) for c in np.polyfit(tokens, seconds, 1))
    return fixed, linear, 0.0


def counterfactuals(roofline: Roofline, context: int, tpot_s: float) -> list[str]:
    """What else would give, with numbers. A step that is bound by memory takes as long as its bytes: the rate at which
    this engine reads now is kept."""
    if roofline.binds(roofline.decode(context)) == "compute":
        return []
    return [*_formats(roofline, context, tpot_s), *_contexts(roofline, context, tpot_s)]


def _formats(roofline: Roofline, context: int, tpot_s: float) -> Iterator[str]:
    bits, now = bits_per_weight(roofline), roofline.decode(context).bytes_read
    for name in _ALTERNATIVES:
        if FORMATS[name].bits < bits - 1:
            then = replace(roofline, dtype=name).decode(context).bytes_read
            label = _NAMES.get(name, name)
            yield f"{label} instead of {format_label(roofline)}: {tokens_per_s(tpot_s * then / now)}"


def _contexts(roofline: Roofline, context: int, tpot_s: float) -> Iterator[str]:
    """A full context, where its KV is felt."""
    full, now = roofline.facts.max_context, roofline.decode(context).bytes_read
    then = roofline.decode(max(full, context)).bytes_read
    if then > 1.1 * now:
        yield f"{full:,} tokens of context instead of {context:,}: {tokens_per_s(tpot_s * then / now)}"


def binds(roofline: Roofline, context: int) -> str:
    """A sentence on what a decode step at batch 1 waits for."""
    step = roofline.decode(context)
    if roofline.binds(step) == "compute":
        return (
            f"Arithmetic binds: a token needs {step.flops / 1e9:,.3g} GFLOP, and {device_label(roofline)} reads its "
            f"{step.bytes_read / 1e9:,.3g} GB faster than it computes them."
        )
    bandwidth = roofline.hardware.bandwidth_for(step.bytes_read) or 0.0
    return (
        f"Memory bandwidth binds: every token reads {step.bytes_read / 1e9:,.3g} GB, and {device_label(roofline)} "
        f"reads {gb_per_s(bandwidth)}."
    )
