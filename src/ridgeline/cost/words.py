"""A plan in words: what binds, why the exact figures differ from the textbook's, and what was assumed."""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.cost.question import Question
from ridgeline.cost.roofline import Roofline, matmul_input
from ridgeline.units import format_bytes, format_duration


def reasons(roofline: Roofline, question: Question) -> list[str]:
    """Sentences that say why the figures are what they are, most telling first."""
    return [*_what_binds(roofline, question), *_against_textbook(roofline, question)]


def _what_binds(roofline: Roofline, question: Question) -> Iterator[str]:
    ridge, compute = roofline.ridge, roofline.compute
    if ridge is None or compute is None:
        return
    decode = roofline.decode(question.final_len, batch=question.batch)
    prefill = roofline.prefill(question.input_len, question.cached)
    if roofline.binds(decode) == "memory":
        share = decode.intensity / ridge
        yield (
            f"Decode is bound by memory: {decode.intensity:,.1f} FLOP per byte, the ridge is at {ridge:,.0f}, "
            f"so it uses {share:.1%} of the compute. Fewer bytes (format, KV format) or a larger batch help."
        )
    else:
        yield f"Decode is bound by compute at this batch: {decode.intensity:,.0f} FLOP per byte, ridge {ridge:,.0f}."
    if roofline.binds(prefill) == "compute":
        yield (
            f"Prefill is bound by compute: {question.uncached:,} tokens share one reading of the weights, "
            f"{prefill.intensity:,.0f} FLOP per byte."
        )
    else:
        yield f"Prefill is bound by memory: {question.uncached:,} tokens are too few to keep the compute busy."
    prefill_s = roofline.prefill_time(question.input_len, question.cached)
    step_s = roofline.time(roofline.decode(0))
    if prefill_s and step_s:
        input_token_s = prefill_s / question.uncached
        yield (
            f"So an output token takes as long as {step_s / input_token_s:,.0f} input tokens: "
            f"{format_duration(step_s)} against {format_duration(input_token_s)}."
        )


def _against_textbook(roofline: Roofline, question: Question) -> Iterator[str]:
    yield "Textbook and exact differ: " + "; ".join(_differences(roofline, question)) + "."


def _differences(roofline: Roofline, question: Question) -> Iterator[str]:
    facts, dtype = roofline.facts, roofline.dtype
    if facts.nominal_parameters:
        yield f"it rounds {facts.parameters:,} parameters to {facts.nominal_parameters / 1e9:g} billion"
    unread = facts.weight_bytes(dtype) - facts.decode_read_bytes(dtype)
    if facts.active_parameters < facts.parameters:
        yield "a token reads the experts that it chooses, and a batch more of them"
    elif unread > 0:
        yield f"a step reads one row of the embedding table, not {format_bytes(round(unread))}"
    tokens = question.uncached
    saved = facts.linear_flops(tokens, tokens) - facts.linear_flops(tokens, 1)
    yield f"a prompt needs the output matrix once, which saves {saved / 1e12:,.2f} TFLOP"
    attention = facts.attention_flops(question.cached, question.input_len)
    yield f"attention adds {attention / 1e12:,.2f} TFLOP"


def assumptions(roofline: Roofline, question: Question) -> list[str]:
    hardware = roofline.hardware
    lines = [
        "Activations, writes and launches are left out: measured times are never below the floors.",
        f"KV is read at {question.final_len:,} tokens per sequence (input + output); over a whole request it grows.",
    ]
    if hardware.bandwidth is None and not roofline.hardware.is_measured:
        lines.append("The read bandwidth is unknown.")
    if roofline.compute is None:
        lines.append("The compute is unknown: so is the prefill, and the floor of a decode step counts reading alone.")
    elif (
        kind := matmul_input(roofline.format_name, hardware)
    ) not in hardware.compute and "any" not in hardware.compute:
        lines.append(f"No {kind} rate is known for {hardware.name}: its bf16 rate is taken.")
    if hardware.memory_bytes is None:
        lines.append("The memory is unknown (a CPU has what is installed): give --memory.")
    if hardware.devices > 1:
        lines.append(
            f"{hardware.devices} devices split weights, KV and work evenly and talk for free; "
            "where a device would hold less than one KV head, heads are copied and less fits."
        )
    if hardware.confidence not in ("given", "datasheet"):
        lines.append(f"Figures of {hardware.name}: {hardware.confidence} ({hardware.source}).")
    lines += roofline.facts.assumptions
    if roofline.facts.note:
        lines.append(roofline.facts.note)
    if question.final_len > roofline.facts.max_context > 0:
        lines.append(f"{question.final_len:,} tokens are beyond the model's context of {roofline.facts.max_context:,}.")
    return lines
