"""`--show-work`: the arithmetic behind every number, so that a reader can redo it on paper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ridgeline.cost.facts import ModelFacts
from ridgeline.cost.memory import KV_SHARE, PAGE_SIZE
from ridgeline.cost.plan import Plan
from ridgeline.cost.question import Question
from ridgeline.cost.roofline import Roofline, Work
from ridgeline.model.anatomy import Attention, LatentAttention, Recurrent
from ridgeline.quant.formats import Format, kv_format
from ridgeline.units import format_duration


def show_work(plan: Plan, roofline: Roofline, question: Question) -> dict[str, str]:
    """A line of arithmetic per figure, by its JSON key (`textbook.` before those of the textbook)."""
    return dict([*_memory(plan, roofline, question), *_times(plan, roofline, question), *_textbook(plan, question)])


def _memory(plan: Plan, roofline: Roofline, question: Question) -> Iterator[tuple[str, str]]:
    facts = roofline.facts
    yield (
        "weight_bytes",
        f"{plan.parameters:,} parameters in {plan.dtype}, {plan.weight_bytes / plan.parameters:.4g} bytes each with "
        f"scales = {plan.weight_bytes:,} bytes",
    )
    yield "kv_bytes_per_token", kv_arithmetic(facts, plan.kv_dtype)
    yield "kv_bytes_total", f"at {question.context_len:,} tokens: {plan.kv_bytes_total:,} bytes"
    memory = roofline.hardware.memory_bytes
    if memory is None:
        return
    free, request = plan.memory_free_after_weights_bytes, facts.kv_bytes(question.final_len, plan.kv_dtype)
    yield "memory_free_after_weights_bytes", f"{memory:,} - {plan.weight_bytes:,} = {free:,} bytes"
    yield (
        "max_concurrent_requests",
        f"{free:,} / {request:,} bytes ({question.final_len:,} tokens) = {plan.max_concurrent_requests:,}, whole ones",
    )
    yield (
        "admissible_requests",
        f"{KV_SHARE} of {free:,} bytes for KV, in pages of {PAGE_SIZE} tokens, one page reserved = "
        f"{plan.admissible_requests:,}",
    )


def _times(plan: Plan, roofline: Roofline, question: Question) -> Iterator[tuple[str, str]]:
    facts = roofline.facts
    if roofline.ridge is not None and roofline.compute is not None and roofline.bandwidth is not None:
        rates = f"{roofline.compute / 1e12:,.4g} TFLOP/s / {roofline.bandwidth / 1e9:,.4g} GB/s"
        yield "ridge_intensity", f"{rates} = {roofline.ridge:,.4g} FLOP per byte"
    prefill = roofline.prefill(question.input_len, question.cached)
    linear = facts.linear_flops(question.uncached, 1)
    attention = facts.attention_flops(question.cached, question.input_len)
    split = f"matrices {linear / 1e12:,.4g} + attention {attention / 1e12:,.4g} = {prefill.flops / 1e12:,.4g} TFLOP"
    yield "prefill_intensity", f"{split} / {_gb(prefill)} read = {plan.prefill_intensity:,.4g} FLOP per byte"
    yield "ttft_floor_s", f"{split}; {_larger(roofline, prefill)}"
    batch_step = roofline.decode(question.final_len, batch=question.batch)
    yield (
        "decode_intensity",
        f"batch {question.batch:,}: {batch_step.flops / 1e9:,.4g} GFLOP / {_gb(batch_step)} read = "
        f"{plan.decode_intensity:,.4g} FLOP per byte",
    )
    yield "tpot_floor_s", f"weights only: {_larger(roofline, roofline.decode(0))}"
    yield (
        "tpot_floor_with_kv_s",
        f"and {question.final_len:,} tokens of KV: {_larger(roofline, roofline.decode(question.final_len))}",
    )
    if plan.batch_throughput_tokens_per_s is not None:
        yield (
            "batch_throughput_tokens_per_s",
            f"{question.batch:,} tokens per step; {_larger(roofline, batch_step)}; "
            f"{plan.batch_throughput_tokens_per_s:,.4g} tokens/s",
        )
    if plan.request_latency_floor_s is not None and plan.ttft_floor_s is not None:
        decode_s = plan.request_latency_floor_s - plan.ttft_floor_s
        yield (
            "request_latency_floor_s",
            f"{format_duration(plan.ttft_floor_s)} + {question.output_len - 1:,} steps while the context grows, "
            f"{format_duration(decode_s)} = {format_duration(plan.request_latency_floor_s)}",
        )


def _textbook(plan: Plan, question: Question) -> Iterator[tuple[str, str]]:
    book = plan.textbook
    parameters = f"{book['parameters']:,.0f}"
    yield "textbook.weight_bytes", f"{parameters} parameters in {plan.dtype} = {book['weight_bytes']:,} bytes"
    if book["ttft_s"] is not None:
        yield (
            "textbook.ttft_s",
            f"2 x {parameters} x {question.uncached:,} tokens / compute = {format_duration(book['ttft_s'])}",
        )
    if book["tpot_s"] is not None:
        yield "textbook.tpot_s", f"weights / bandwidth = {format_duration(book['tpot_s'])}"
        yield (
            "textbook.batch_step_s",
            f"(weights + {question.batch:,} x {question.final_len:,} x KV per token) / bandwidth = "
            f"{format_duration(book['batch_step_s'])}",
        )
    if book["request_latency_s"] is not None:
        step = "TPOT" if question.batch == 1 else "batch step"
        latency = format_duration(book["request_latency_s"])
        yield "textbook.request_latency_s", f"TTFT + {question.output_len:,} x {step} = {latency}"


def _gb(work: Work) -> str:
    return f"{work.bytes_read / 1e9:,.4g} GB"


def _larger(roofline: Roofline, work: Work) -> str:
    """The step's two bounds and the one that holds."""
    read, compute = roofline.read_time(work), roofline.compute_time(work)
    parts = []
    if read is not None:
        parts.append(f"{_gb(work)} / {work.bytes_read / read / 1e9:,.4g} GB/s = {format_duration(read)}")
    if compute is not None and roofline.compute is not None:
        rate = f"{roofline.compute / 1e12:,.4g} TFLOP/s"
        parts.append(f"{work.flops / 1e12:,.4g} TFLOP / {rate} = {format_duration(compute)}")
    return "the larger of " + " and ".join(parts) if len(parts) == 2 else "".join(parts) or "unknown speed"


def kv_arithmetic(facts: ModelFacts, kv_dtype: str) -> str:
    """As in `2 x 32 x 8 x 128 x 2 = 131,072 bytes`: K and V, layers, KV heads, head size, bytes per value.

    int8 has a scale per vector: `2 x 32 x 8 x (128 x 1 + 4) = 67,584 bytes`.
    """
    fmt = kv_format(kv_dtype)
    counts = Counter(layer.mixer for layer in facts.anatomy.layers)
    terms, bounded = [], []
    for mixer, layers in counts.items():
        if isinstance(mixer, LatentAttention):
            sizes = [n for n in (mixer.latent_dim, mixer.rope_dim, mixer.index_dim) if n]
            terms.append(f"{layers} x {_vector_bytes(sizes, fmt)}")
        elif isinstance(mixer, Recurrent):
            bounded.append(f"{layers} layers keep a state instead")
        elif isinstance(mixer, Attention) and mixer.owns_cache and mixer.window is None:
            terms.append(_attention_term(mixer, layers, fmt))
        elif isinstance(mixer, Attention) and mixer.owns_cache:
            term = _attention_term(mixer, layers, fmt)
            bounded.append(f"{layers} layers keep the last {mixer.window:,} tokens only ({term} bytes each)")
    total = f"{' + '.join(terms) or '0'} = {facts.kv_bytes_per_token(kv_dtype):,} bytes"
    return "; ".join([total, *bounded])


def _attention_term(mixer: Attention, layers: int, fmt: Format) -> str:
    if mixer.key_dim == mixer.value_dim:
        return f"2 x {layers} x {mixer.num_kv_heads} x {_vector_bytes([mixer.key_dim], fmt)}"
    return f"{layers} x {mixer.num_kv_heads} x {_vector_bytes([mixer.key_dim, mixer.value_dim], fmt)}"


def _vector_bytes(sizes: list[int], fmt: Format) -> str:
    values = f"({' + '.join(map(str, sizes))})" if len(sizes) > 1 else str(sizes[0])
    values += f" x {fmt.bits / 8:g}"
    scale_bytes = sum(fmt.size(1, size) - size * fmt.bits // 8 for size in sizes)
    return f"({values} + {scale_bytes})" if scale_bytes else values
