"""Request: one sequence from its prompt to its terminal event, and the settings and outcomes that go with it.

A request has no phase. It has `token_ids` (prompt and output), and `num_computed_tokens` of them have K and V in
pages; the scheduler lets the second number catch up with the first. Settings and outcomes are immutable; the
fields of a submitted request change on the engine's thread only.

Invariant 4 (docs/invariants.md): exactly one Delta with a `finish_reason` reaches the sink of every accepted request.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ridgeline.engine.prefix import TOKEN_BYTES, encode
from ridgeline.errors import RidgelineError

if TYPE_CHECKING:
    from ridgeline.engine.reports import MissReport


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

    max_tokens: int | None = None  # 0: only `prompt_logprobs` are wanted
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
    starts_text: bool = False  # a text of its own, as a chat answer, not more of the prompt's: no SentencePiece space
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
    num_loaded_tokens: int = 0  # of the prompt, from a tier below memory
    num_copied_tokens: int = 0  # of the prompt, from a page that another request was filling
    num_created_cache_tokens: int = 0  # of the prompt: whole pages that this request added to the prefix cache
    num_expired_tokens: int = 0  # of the prompt: would have been cached tokens, had they not expired
    cache_miss: MissReport | None = None  # when the request asked for an explanation


class Delta(NamedTuple):
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


@dataclass(slots=True)
class Timeline:
    """When things happened to a request, in seconds of the engine's clock; None: not yet."""

    submitted_s: float = 0.0
    scheduled_s: float | None = None  # first scheduled
    first_token_s: float | None = None
    last_token_s: float | None = None
    preempted_s: float | None = None  # set while it waits to come back
    kv_wait_s: float = 0.0
    num_preemptions: int = 0

    def on_scheduled(self, now: float) -> None:
        if self.scheduled_s is None:
            self.scheduled_s = now
        if self.preempted_s is not None:
            self.kv_wait_s += now - self.preempted_s
            self.preempted_s = None

    def on_preempted(self, now: float) -> None:
        self.preempted_s = now
        self.num_preemptions += 1

    def on_token(self, now: float) -> None:
        if self.first_token_s is None:
            self.first_token_s = now
        self.last_token_s = now


@dataclass(slots=True, eq=False)
class Request:
    """One sequence. The fields below `explain_cache` belong to the engine."""

    id: str
    prompt_ids: list[int]
    params: SamplingParams
    sink: Sink
    priority: int = 0  # smaller runs first
    choice: int = 0  # index among the `n` choices of one API request
    cache_salt: str = ""  # requests share cached prefixes only with those of the same salt
    cache_ttl_s: float | None = None  # how long its cached pages outlive their last use; None: `prefix_ttl_s`
    cache_memory_only: bool = False  # its pages go no lower than memory, unless another request's leave to
    explain_cache: bool = False  # `metrics.cache_miss` tells why its prompt was not cached any further

    status: Status = Status.WAITING
    arrival: int = 0  # counts submissions: the order of first come, first served
    max_tokens: int = 0  # `params.max_tokens`, or what context and pool leave room for
    seed: int = 0
    output_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0  # this and the next four: of the prompt, as in RequestMetrics
    num_loaded_tokens: int = 0
    num_copied_tokens: int = 0
    num_created_cache_tokens: int = 0
    num_expired_tokens: int = 0
    num_seen_pages: int = 0  # whole pages of the prompt that it has had, maybe before a preemption
    num_overtaken: int = 0  # times that a later one was started before it
    cache_miss: MissReport | None = None
    pages: list[int] = field(default_factory=list)
    sampler_slot: int | None = None  # while running
    needs_setup: bool = False  # its sampler slot has to be filled with the next step
    last_turn: int = 0  # when it last had a share of a step; the scheduler counts shares
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)  # of the positions scored so far, when asked for
    timeline: Timeline = field(default_factory=Timeline)
    _prompt_bytes: bytes = b""  # filled when first asked for

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def num_remaining_tokens(self) -> int:
        """Tokens to compute before the next one can be sampled: 1 is a decode, more a prefill."""
        return self.num_tokens - self.num_computed_tokens

    @property
    def num_missing_outputs(self) -> int:
        """Tokens that it may still generate."""
        return self.max_tokens - len(self.output_ids)

    @property
    def final_len(self) -> int:
        """The most tokens that this sequence can come to."""
        return len(self.prompt_ids) + self.max_tokens

    def tokens(self, start: int, stop: int) -> list[int]:
        """Token ids at positions [start, stop)."""
        split = len(self.prompt_ids)
        if start >= split:
            return self.output_ids[start - split : stop - split]
        return self.prompt_ids[start:stop] + self.output_ids[: max(0, stop - split)]

    def encode_prompt(self) -> None:
        """Done once, and not on the engine's thread if possible: a millisecond for 32,000 tokens."""
        if not self._prompt_bytes:
            self._prompt_bytes = encode(self.prompt_ids)

    def token_bytes(self, start: int, stop: int) -> bytes:
        """Token ids at positions [start, stop) as the prefix tree compares them."""
        self.encode_prompt()
        split = len(self.prompt_ids)
        prompt = self._prompt_bytes[start * TOKEN_BYTES : stop * TOKEN_BYTES]
        return prompt if stop <= split else prompt + encode(self.tokens(max(start, split), stop))

    @property
    def max_hit_tokens(self) -> int:
        """Tokens whose K and V need not be computed: all before the first position whose logits are wanted."""
        num_scored = len(self.prompt_logprobs)
        if self.params.prompt_logprobs is not None and num_scored < len(self.prompt_ids):
            return max(0, num_scored - 1)
        return self.num_tokens - 1

    def count_pages(self, start: int, end: int, page_size: int) -> int:
        """Tokens in those of the pages [start, end) that are all prompt, and that the request has for the first time.

        So a token of the prompt is counted once, as it first came: by the cache, from the tier below, or computed.
        """
        num_whole = min(end, len(self.prompt_ids) // page_size)
        num_new = max(0, num_whole - max(start, self.num_seen_pages))
        self.num_seen_pages = max(self.num_seen_pages, num_whole)
        return num_new * page_size

    def metrics(self, end_s: float) -> RequestMetrics:
        """Where the time until `end_s` went. What never came takes no time, so that the parts sum to the whole."""
        times = self.timeline
        scheduled_s = end_s if times.scheduled_s is None else times.scheduled_s
        first_s = end_s if times.first_token_s is None else times.first_token_s
        num_output = len(self.output_ids)
        tpot_s = None
        if num_output > 1 and times.last_token_s is not None:
            tpot_s = (times.last_token_s - first_s) / (num_output - 1)
        return RequestMetrics(
            num_prompt_tokens=len(self.prompt_ids),
            num_cached_tokens=self.num_cached_tokens,
            num_output_tokens=num_output,
            queue_s=scheduled_s - times.submitted_s,
            prefill_s=first_s - scheduled_s,
            decode_s=end_s - first_s,
            e2e_s=end_s - times.submitted_s,
            ttft_s=None if times.first_token_s is None else first_s - times.submitted_s,
            tpot_s=tpot_s,
            num_preemptions=times.num_preemptions,
            kv_wait_s=times.kv_wait_s + (0.0 if times.preempted_s is None else end_s - times.preempted_s),
            num_loaded_tokens=self.num_loaded_tokens,
            num_copied_tokens=self.num_copied_tokens,
            num_created_cache_tokens=self.num_created_cache_tokens,
            num_expired_tokens=self.num_expired_tokens,
            cache_miss=self.cache_miss,
        )
