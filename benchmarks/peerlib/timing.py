"""From the moments at which tokens came out to the figures: the same arithmetic for every engine that runs in Python.

An event is (seconds since the prompts were handed over, tokens that were there by then and not before).
"""

from __future__ import annotations

from collections.abc import Sequence

Event = tuple[float, int]


def prefill_tokens_per_s(events: Sequence[Event], num_tokens: int) -> float:
    """Up to the first output token."""
    return num_tokens / events[0][0]


def step_s(events: Sequence[Event], batch: int) -> float:
    """Mean time of the steps that advance the whole batch. What prompts that are still being read cost is left out."""
    full = [index for index, (_, num_tokens) in enumerate(events) if num_tokens == batch]
    if len(full) < 2:
        raise ValueError(f"{len(full)} steps advanced all {batch} sequences, at least 2 are needed")
    if full != list(range(full[0], full[-1] + 1)):
        raise ValueError(f"steps that do not advance all {batch} sequences lie between those that do")
    return (events[full[-1]][0] - events[full[0]][0]) / (len(full) - 1)
