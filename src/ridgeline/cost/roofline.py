"""The roofline: no step is faster than its bytes over the bandwidth, nor than its FLOPs over the compute.

    step time >= max(bytes read / bandwidth, FLOPs / compute)
    intensity  = FLOPs / bytes read            ridge = compute / bandwidth

Left of the ridge a step is bound by memory, right of it by compute. Decode at batch 1 does about one FLOP per byte;
prefill about one per byte and token. Counted are the weights and the KV cache that a step reads. Activations, writes
and communication between devices are left out, so these are floors: a measured time is never below.

A ceiling that is unknown does not bind; where both are unknown there is no floor (None).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ridgeline.cost.facts import STORED, ModelFacts
from ridgeline.cost.hardware import Hardware

_WIDE = ("fp32", "bf16", "fp16", "f16")  # weights of 16 bits and more
_LARGEST_BATCH = 1 << 20  # where the search for a batch gives up


@dataclass(frozen=True)
class Work:
    """What one step, or one prefill, has to do."""

    bytes_read: float
    flops: float

    @property
    def intensity(self) -> float:
        return self.flops / self.bytes_read


@dataclass(frozen=True)
class Roofline:
    """A model in given formats on given hardware. All times in seconds."""

    facts: ModelFacts
    hardware: Hardware
    dtype: str
    kv_dtype: str

    @property
    def format_name(self) -> str:
        """`dtype`, and what `stored` stands for."""
        return self.facts.stored_format if self.dtype == STORED else self.dtype

    @property
    def compute(self) -> float | None:
        return compute_rate(self.hardware, self.format_name)

    @property
    def bandwidth(self) -> float | None:
        """For the working set of decoding: the weights."""
        return self.hardware.bandwidth_for(self.facts.decode_read_bytes(self.dtype))

    @property
    def ridge(self) -> float | None:
        """FLOPs per byte at which both ceilings meet."""
        return self.compute / self.bandwidth if self.compute and self.bandwidth else None

    def time(self, work: Work) -> float | None:
        bounds = [bound for bound in (self.read_time(work), self.compute_time(work)) if bound is not None]
        return max(bounds, default=None)

    def read_time(self, work: Work) -> float | None:
        bandwidth = self.hardware.bandwidth_for(work.bytes_read)
        return work.bytes_read / bandwidth if bandwidth else None

    def compute_time(self, work: Work) -> float | None:
        return work.flops / self.compute if self.compute else None

    def binds(self, work: Work) -> str | None:
        """The ceiling that the step meets first: `memory` or `compute`; None when one of them is unknown."""
        read, compute = self.read_time(work), self.compute_time(work)
        if read is None or compute is None:
            return None
        return "memory" if read >= compute else "compute"

    def decode(self, context: int, *, batch: int = 1, tokens: int = 1) -> Work:
        """One step that adds `tokens` tokens (more than 1: verifying drafts) to each of `batch` sequences, which then
        have `context` tokens. `context` 0: weights only."""
        num_tokens = batch * tokens
        kv_bytes = batch * self.facts.kv_read_bytes(context, self.kv_dtype) if context else 0
        attention = batch * self.facts.attention_flops(context - tokens, context) if context else 0.0
        return Work(
            self.facts.decode_read_bytes(self.dtype, num_tokens) + kv_bytes,
            self.facts.linear_flops(num_tokens, num_tokens) + attention,
        )

    def prefill(self, input_len: int, cached: int = 0) -> Work:
        """The prompt's tokens beyond the `cached` ones, in one pass; the output matrix serves the last row only."""
        num_tokens = input_len - cached
        return Work(
            self.facts.decode_read_bytes(self.dtype, num_tokens) + self.facts.kv_bytes(cached, self.kv_dtype),
            self.facts.linear_flops(num_tokens, 1) + self.facts.attention_flops(cached, input_len),
        )

    def prefill_time(self, input_len: int, cached: int = 0) -> float | None:
        """None also when only the compute is unknown: reading alone says next to nothing of a prefill."""
        return self.time(self.prefill(input_len, cached)) if self.compute else None

    def compute_bound_batch(self, context: int) -> int | None:
        """The smallest batch at which a decode step takes longer to compute than to read; None: never, because each
        sequence brings KV of its own, or a ceiling is unknown."""
        return smallest_batch(lambda batch: self.binds(self.decode(context, batch=batch)) == "compute")


def smallest_batch(holds: Callable[[int], bool]) -> int | None:
    """The smallest batch for which `holds`, which stays true once it is; None: not up to about a million."""
    high = 1
    while not holds(high):
        high *= 2
        if high > _LARGEST_BATCH:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def matmul_input(dtype: str, hardware: Hardware) -> str:
    """What a format's matrices are multiplied in. Weights in few bits are widened to bf16; fp8 and nvfp4 are not. CPU
    engines, llama.cpp and we, multiply them as integers, by activations of 8 bits."""
    family = dtype.partition("+")[0].partition("-")[0]
    if hardware.kind == "cpu" and "int8" in hardware.compute and family not in _WIDE:
        return "int8"
    return {"fp32": "fp32", "fp8": "fp8", "mxfp8": "fp8", "nvfp4": "fp4"}.get(family, "bf16")


def compute_rate(hardware: Hardware, dtype: str) -> float | None:
    """FLOP/s for matrices of `dtype`. A device without that input type widens to bf16; a table without fp32 figures
    leaves the bf16 one as an upper bound."""
    for kind in ("any", matmul_input(dtype, hardware), "bf16"):
        if kind in hardware.compute:
            return hardware.compute[kind]
    return None
