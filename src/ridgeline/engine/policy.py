"""The scheduler's judgements, each small and replaceable: who goes first, what must fit, how long a chunk may be."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ridgeline.config import Admission, EngineConfig, Policy
from ridgeline.cost.memory import pages_needed
from ridgeline.engine.request import Request


def rank(request: Request, policy: Policy) -> tuple[int, int]:
    """The smaller goes first. The queue is kept in this order, and the largest among the running is preempted first.

    A preempted request keeps its rank, and so returns to the queue ahead of all that came later.
    """
    return (request.priority if policy == "priority" else 0, request.arrival)


MAX_OVERTAKEN = 32  # longest-prefix: later requests that may be started before one that waits


def start_order(waiting: Sequence[Request], policy: Policy, num_hit_tokens: Callable[[Request], int]) -> list[Request]:
    """Waiting requests, given by rank, in the order in which they should be started.

    longest-prefix: those whose prompts the cache holds the furthest first, before what they need is evicted. Who was
    preempted, or overtaken as often as may be, goes by arrival ahead of them.
    """
    if policy != "longest-prefix":
        return list(waiting)
    due = [r for r in waiting if r.num_overtaken >= MAX_OVERTAKEN or r.timeline.num_preemptions > 0]
    others = [r for r in waiting if r not in due]
    return due + sorted(others, key=num_hit_tokens, reverse=True)  # stable: arrival decides among equals


def outranks(waiting: Request, running: Request, policy: Policy) -> bool:
    """Whether `waiting` may take the place of `running`: only when it is strictly more important."""
    return policy == "priority" and waiting.priority < running.priority


def reserved_pages(request: Request, admission: Admission, page_size: int) -> int:
    """The pages that a request needs set aside, in all, to be started or kept beside others.

    reserve: those of its final length when `max_tokens` was given; such requests never preempt each other.
    optimistic, and any request without `max_tokens`, whose final length says nothing: one page ahead of what it has
    now. That uses memory better, and preempts when the guess was wrong; the page ahead keeps a request that has just
    been preempted from coming back only to be preempted again.
    """
    if admission == "reserve" and request.params.max_tokens is not None:
        return pages_needed(request.final_len, page_size)
    return pages_needed(min(request.num_tokens + page_size, request.final_len), page_size)


class PrefillPacer:
    """Bounds the prefill tokens beside running decodes, so that these pause about `target_gap_s` longer than without.

    What a chunk cost is its step's time less that of the steps that only decode: where these alone take as long as the
    target, prompts would else creep by the smallest chunk, each at the price of a whole step. A chunk is also allowed
    as many tokens as there are decodes beside it, which at most doubles the step's rows.

    Prompts that wait together are not computed together, which would have the first one wait for the last one's
    tokens: a step takes up a further prompt only as far as that makes its rows faster.
    """

    MIN_TOKENS = 16
    ENOUGH_TOKENS = 256  # of prefill: more in one step are hardly faster per token
    MAX_CHANGE = 2.0  # from one step to the next, so that one that was disturbed, or slept through, misleads but a few
    SMOOTHING = 0.5  # weight of the newest step in the moving average

    def __init__(self, config: EngineConfig) -> None:
        self._target_gap_s = config.target_gap_s
        self._fixed = config.max_batch_tokens is not None
        self._num_tokens = self.MIN_TOKENS
        self._decode_s: float | None = None  # of a step without prefill
        self._num_decodes = 0  # in the latest of these

    def max_prefill_tokens(self, room: int, num_decodes: int) -> int:
        """How many of `room` tokens of a step's budget may be prefill when the step also decodes."""
        return room if self._fixed else min(room, max(self._num_tokens, num_decodes))

    def max_further_tokens(self, room: int, num_prefill: int) -> int:
        """How many of `room` tokens other prompts may have in a step with a chunk of `num_prefill` tokens."""
        return room if self._fixed else max(0, min(room, self.ENOUGH_TOKENS - num_prefill))

    def observe(self, chunk_lens: Sequence[int], duration_s: float) -> None:
        """A step that ran chunks of so many tokens; chunks of one token are decodes."""
        num_prefill = sum(length for length in chunk_lens if length > 1)
        num_decodes = chunk_lens.count(1)
        if duration_s <= 0:
            return
        if num_prefill == 0:
            before_s = duration_s if self._decode_s is None else self._decode_s
            newest_s = min(duration_s, self.MAX_CHANGE * before_s)
            self._decode_s = self.SMOOTHING * newest_s + (1 - self.SMOOTHING) * before_s
            self._num_decodes = num_decodes
        elif num_prefill >= self._num_tokens / self.MAX_CHANGE:  # the short end of a prompt says little
            shortest_s, longest_s = self._pause_bounds_s(duration_s, num_decodes)
            fitting = max(
                self._fitting(num_prefill, longest_s), min(self._num_tokens, self._fitting(num_prefill, shortest_s))
            )
            least = max(self.MIN_TOKENS, self._num_tokens / self.MAX_CHANGE)
            most = self.MAX_CHANGE * max(num_prefill, self._num_tokens)
            self._num_tokens = int(max(least, min(fitting, most)))

    def _pause_bounds_s(self, duration_s: float, num_decodes: int) -> tuple[float, float]:
        """What a chunk can have cost: more decodes than were seen by themselves take as long as those did, or longer
        by as much as they are more; of none seen, nobody knows how much of the step they took."""
        if num_decodes == 0:
            return duration_s, duration_s
        if self._decode_s is None:
            return 0.0, duration_s
        return duration_s - self._decode_s * max(1.0, num_decodes / self._num_decodes), duration_s - self._decode_s

    def _fitting(self, num_prefill: int, pause_s: float) -> float:
        return num_prefill * self._target_gap_s / pause_s if pause_s > 0 else math.inf
