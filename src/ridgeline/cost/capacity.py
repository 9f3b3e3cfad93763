"""How many users: the requests that fit beside the weights, the longest context, and what to change when none fits.

Two counts, since people compare both. `max_concurrent_requests` is plain division: memory - weights, over the KV bytes
of a request at its final length. `admissible_requests` is what the engine would run: KV memory is the share that
`memory.kv_budget` grants, cut into pages, of which one is reserved, and a request holds whole pages.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from ridgeline.cost.facts import ModelFacts
from ridgeline.cost.hardware import Hardware
from ridgeline.cost.memory import PAGE_SIZE, admissible_requests, kv_budget, pages_needed
from ridgeline.cost.roofline import Roofline
from ridgeline.units import format_bytes

_FEWER_BITS = ("int8", "int4")
_FEWER_KV_BITS = ("fp8",)


@dataclass(frozen=True)
class Capacity:
    """`memory_free_bytes` may be negative: then the weights alone do not fit."""

    memory_free_bytes: int
    max_concurrent_requests: int
    admissible_requests: int
    largest_context: int  # of one sequence alone, at most the model's own limit


def capacity(roofline: Roofline, final_len: int) -> Capacity | None:
    """For requests that end at `final_len` tokens; None when the device's memory is unknown."""
    facts, memory_bytes = roofline.facts, roofline.hardware.memory_bytes
    if memory_bytes is None:
        return None
    weights = facts.weight_bytes(roofline.dtype)
    free = memory_bytes - weights
    return Capacity(
        memory_free_bytes=free,
        max_concurrent_requests=max(0, free) // max(1, facts.kv_bytes(final_len, roofline.kv_dtype)),
        admissible_requests=_admissible(facts, roofline.kv_dtype, kv_budget(memory_bytes, weights), final_len),
        largest_context=largest_context(facts, roofline.kv_dtype, free),
    )


def _admissible(facts: ModelFacts, kv_dtype: str, budget: int, final_len: int) -> int:
    page_bytes = facts.kv_bytes(PAGE_SIZE, kv_dtype)
    rounded_len = pages_needed(final_len, PAGE_SIZE) * PAGE_SIZE
    request_bytes = facts.kv_bytes(rounded_len, kv_dtype)
    if request_bytes == page_bytes * (rounded_len // PAGE_SIZE):  # every page is alike
        return admissible_requests(max(0, budget // page_bytes - 1), PAGE_SIZE, final_len)
    return max(0, budget - page_bytes) // max(1, request_bytes)  # windows and states: pages stop growing


def largest_context(facts: ModelFacts, kv_dtype: str, budget_bytes: int) -> int:
    """The longest sequence whose KV fits in `budget_bytes`, at most the model's limit; 0: not even one token's."""
    low, high = 0, facts.max_context
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if facts.kv_bytes(middle, kv_dtype) <= budget_bytes else (low, middle - 1)
    return low


def advice(roofline: Roofline, final_len: int, devices: dict[str, Hardware]) -> list[str]:
    """What would make requests of `final_len` tokens fit, each with the number that then run at once."""
    found = capacity(roofline, final_len)
    if found is None or found.max_concurrent_requests > 0:
        return []
    lines = [
        f"{change}: {fits.max_concurrent_requests:,} requests of {final_len:,} tokens"
        for change, changed in _changes(roofline, final_len, devices)
        if (fits := capacity(changed, final_len)) is not None and fits.max_concurrent_requests > 0
    ]
    if found.largest_context > 0:
        lines.insert(0, f"at most {found.largest_context:,} tokens: one request fits as it is")
    return lines or ["nothing that Ridgeline knows makes it fit: neither int4, nor 8 devices, nor a larger one"]


def _changes(roofline: Roofline, final_len: int, devices: dict[str, Hardware]) -> Iterator[tuple[str, Roofline]]:
    facts, hardware = roofline.facts, roofline.hardware
    for dtype in _FEWER_BITS:
        weights = facts.weight_bytes(dtype)
        if weights < facts.weight_bytes(roofline.dtype):
            yield f"--dtype {dtype} ({format_bytes(weights)})", dataclasses.replace(roofline, dtype=dtype)
    for kv_dtype in _FEWER_KV_BITS:
        if facts.kv_bytes_per_token(kv_dtype) < facts.kv_bytes_per_token(roofline.kv_dtype):
            yield f"--kv-dtype {kv_dtype}", dataclasses.replace(roofline, kv_dtype=kv_dtype)
    for count in (2, 4, 8):
        yield f"--devices {count * hardware.devices}", dataclasses.replace(roofline, hardware=hardware.times(count))
    smallest = _smallest_device(roofline, final_len, devices)
    if smallest is not None:
        yield f"--hardware {smallest.name}", dataclasses.replace(roofline, hardware=smallest)


def _smallest_device(roofline: Roofline, final_len: int, devices: dict[str, Hardware]) -> Hardware | None:
    for device in sorted(devices.values(), key=lambda device: device.memory_bytes or 0):
        found = capacity(dataclasses.replace(roofline, hardware=device), final_len)
        if found is not None and found.max_concurrent_requests > 0:
            return device
    return None
