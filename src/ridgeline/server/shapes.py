"""OpenAI's response shapes as msgspec structs: declared once, encoded fast.

`Reply` serves chat and completions, whole and streamed; they differ in `object` and in the kind of choice. A field
that is UNSET does not appear in the JSON; one that is None appears as null. `timings` and
`cache_explanation` are ours: OpenAI's clients ignore them.
"""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from ridgeline.engine.request import RequestMetrics
from ridgeline.server.cache import CacheExplanation


class PromptTokensDetails(Struct):
    """Whole pages of the prompts. `cached_tokens` is OpenAI's; the others are ours."""

    cached_tokens: int = 0  # not computed again
    loaded_tokens: int = 0  # of these: read from --cache-dir
    created_tokens: int = 0  # added to the prefix cache by this request
    expired_tokens: int = 0  # would have been cached, had they not expired

    def add(self, metrics: RequestMetrics) -> None:
        self.cached_tokens += metrics.num_cached_tokens + metrics.num_loaded_tokens
        self.loaded_tokens += metrics.num_loaded_tokens
        self.created_tokens += metrics.num_created_cache_tokens
        self.expired_tokens += metrics.num_expired_tokens


class Usage(Struct):
    """`prompt_tokens` counts each prompt once, whatever `n`, cached tokens included."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class Timings(Struct):
    """Seconds. prepare + queue + prefill + decode = e2e; `kv_wait_s` lies inside prefill and decode."""

    prepare_s: float  # from arrival until submitted: body, template, tokenization
    queue_s: float
    prefill_s: float
    decode_s: float
    e2e_s: float
    ttft_s: float | None
    tpot_s: float | None
    kv_wait_s: float
    num_preemptions: int

    @classmethod
    def of(cls, metrics: RequestMetrics, prepare_s: float) -> Timings:
        return cls(
            prepare_s=prepare_s,
            queue_s=metrics.queue_s,
            prefill_s=metrics.prefill_s,
            decode_s=metrics.decode_s,
            e2e_s=prepare_s + metrics.e2e_s,
            ttft_s=None if metrics.ttft_s is None else prepare_s + metrics.ttft_s,
            tpot_s=metrics.tpot_s,
            kv_wait_s=metrics.kv_wait_s,
            num_preemptions=metrics.num_preemptions,
        )


class TopToken(Struct):
    token: str
    logprob: float
    bytes: list[int]


class TokenDetail(Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopToken]


class ChatLogprobs(Struct):
    content: list[TokenDetail]
    refusal: None = None


class CompletionLogprobs(Struct):
    """The legacy shape: parallel lists, one entry per token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]  # characters from the start of the choice's text

    def __add__(self, other: CompletionLogprobs) -> CompletionLogprobs:
        return CompletionLogprobs(
            self.tokens + other.tokens,
            self.token_logprobs + other.token_logprobs,
            self.top_logprobs + other.top_logprobs,
            self.text_offset + other.text_offset,
        )


class Message(Struct):
    role: str
    content: str
    refusal: None = None


class MessageDelta(Struct):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChoice(Struct):
    index: int
    message: Message
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None = None


class ChatChunkChoice(Struct):
    index: int
    delta: MessageDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET


class CompletionChoice(Struct):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET


Choice = ChatChoice | ChatChunkChoice | CompletionChoice


class Reply(Struct):
    id: str
    object: str
    created: int  # seconds since the epoch
    model: str
    choices: list[Choice]
    usage: Usage | UnsetType | None = UNSET
    timings: Timings | UnsetType = UNSET
    cache_explanation: list[CacheExplanation] | UnsetType = UNSET  # one per prompt
