"""Request: one sequence from its prompt to its terminal event, and the settings and outcomes that go with it.

A request has no phase. It has `token_ids` (prompt and output), and `num_computed_tokens` of them have K and V in
pages; the scheduler lets the second number catch up with the first.

DESIGN.md's invariant 4: exactly one Delta with a `finish_reason` reaches the sink of every accepted request.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field

from ridgeline.errors import RidgelineError


class FinishReason(enum.StrEnum):
    STOP = "stop"  # an end token, a stop token or a stop string
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class Status(enum.StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose tokens and when to stop. Defaults are neutral; None of `max_tokens`: as far as the context goes."""

    max_tokens: int | None = None
    temperature: float = 1.0  # 0: greedy
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None  # None: drawn at random when the request is submitted
    stop: tuple[str, ...] = ()
    include_stop_str: bool = False
    stop_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None  # alternatives per token; 0: the chosen token only; None: no logprobs
    prompt_logprobs: int | None = None  # the same for the prompt's tokens


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    token_id: int
    logprob: float | None  # None for the first prompt token, which nothing predicts
    top: tuple[tuple[int, float], ...] = ()  # (token id, logprob), best first


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Where a finished request's time went, in seconds. queue + prefill + decode = e2e."""

    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    queue_s: float  # submitted until first scheduled
    prefill_s: float  # first scheduled until first output token
    decode_s: float  # first until last output token
    e2e_s: float
    ttft_s: float | None
    tpot_s: float | None  # None with fewer than two output tokens
    num_preemptions: int = 0
    kv_wait_s: float = 0.0  # of decode and prefill: time spent preempted


@dataclass(frozen=True, slots=True)
class Delta:
    """What a request's sink receives: new text and tokens, and at last a finish reason.

    `token_ids` counts every generated token once, also those whose text is still held back.
    """

    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None  # once, with the first delta, when asked for
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None  # the stop string or stop token that ended it
    error: RidgelineError | None = None  # with FinishReason.ERROR
    metrics: RequestMetrics | None = None  # with a finish reason


Sink = Callable[[Delta], None]


@dataclass(slots=True, eq=False)
class Request:
    """One sequence. The fields below `sink` belong to the engine thread."""

    id: str
    prompt_ids: list[int]
    params: SamplingParams
    sink: Sink
    priority: int = 0  # smaller runs first
    choice: int = 0  # index among the `n` choices of one API request

    status: Status = Status.WAITING
    output_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    pages: list[int] = field(default_factory=list)
