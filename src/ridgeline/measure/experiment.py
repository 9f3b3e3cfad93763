"""The latency experiment: one request at a time, against a cold prefix cache.

    warm-up     cold start, the template's own length, how long all this will take
    repeats     the same short prompt N times: how fast, and how steady, is one stream
    lengths     prompts of several lengths, a few times each: what a prompt token and a token of context cost

Every prompt starts with a line of its own. Prompts are fitted to the server's count of tokens: per length, one request
that is never measured warms up and tells the count. Records are kept as they come, so that an experiment that is
interrupted still has what was measured. `findings.py` turns them into figures.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import NoReturn

from ridgeline.errors import ExecutionError
from ridgeline.measure import metrics, unique_prompt
from ridgeline.measure.endpoints import Endpoint, GenerationRequest
from ridgeline.measure.events import Failure, Record

Send = Callable[[GenerationRequest], Awaitable[Record]]
Progress = Callable[[str, float], None]

REPEATED_WORDS = 100  # the short prompt of the repeats: a question, not a document
_MINIMAL_WORDS = 1
_WARM_UP_TOKENS = 8
_TOGETHER_TOKENS = 16
_SHORT_LEN = 1024  # tokens that hold the repeats in any vocabulary
_FIT_TOKENS = 2
_FIT_SHARE = 0.95  # of a length, when its text is counted: a first guess must not exceed the context
_LINE_SLACK = 4  # tokens by which unique lines differ
_GIVE_UP_AFTER = 3  # failures in a row: more of the same would only take time

_HINTS = {
    "http_401": "give --api-key, or OPENAI_API_KEY in the environment",
    "http_404": "is the model loaded? --model names another",
    "http_429": "the server limits the rate: measure it when it is idle",
    "timeout": "the server went silent: --timeout waits longer",
    "connection": "is the server still running?",
}


@dataclass(frozen=True)
class Settings:
    """Lengths in tokens. `chat`: messages through the model's template, what a user of a chat sees; else raw prompts,
    where the server takes them."""

    repeats: int = 20
    output_len: int = 128
    lengths: tuple[int, ...] = (256, 1024, 4096, 8192)
    length_repeats: int = 5
    chat: bool = False
    budget_s: float | None = None  # the shortest lengths only, and fewer repeats, where all would take longer

    @property
    def num_requests(self) -> int:
        return self.repeats + len(self.lengths) * (self.length_repeats + 1)


QUICK = Settings(repeats=5, output_len=32, lengths=(256, 1024), length_repeats=3)


@dataclass
class Shape:
    """The requests of one prompt. `wanted_tokens` None: the repeats, whose length is as it comes."""

    wanted_tokens: int | None
    num_words: int
    records: list[Record] = field(default_factory=list)


class Experiment:
    """Runs once; what it has so far is in its attributes. `announce` gets the expected duration in seconds.
    `loaded_context`: the `num_ctx` that Ollama runs the model with now."""

    def __init__(
        self,
        endpoint: Endpoint,
        send: Send,
        settings: Settings,
        *,
        seed: int | None = None,
        loaded_context: int | None = None,
        progress: Progress = lambda stage, share: None,
        announce: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self.endpoint, self.settings = endpoint, settings
        self.warm_up: list[Record] = []
        self.repeats = Shape(None, REPEATED_WORDS)
        self.shapes: list[Shape] = []
        self.skipped: dict[int, str] = {}  # length -> why it was not measured
        self.overhead_tokens: int | None = None  # of the template, with the unique line; None: not told
        self.is_complete = False
        self._send, self._progress, self._announce = send, progress, announce
        self._rng = random.Random(seed)
        self._chat = settings.chat or not endpoint.capabilities.completions
        self._tokens_per_word = 1.3
        self._sent = 0
        self._loaded_context = loaded_context
        self._num_ctx: int | None = None

    @property
    def header_tokens(self) -> int:
        """What the template puts around the text, at most so many of them in front of the unique line: a cache may
        hold those. A word is at least a token."""
        return max(0, (self.overhead_tokens or 0) - unique_prompt.LINE_WORDS)

    @property
    def records(self) -> list[Record]:
        """All that were meant to be measured."""
        return [record for shape in (self.repeats, *self.shapes) for record in shape.records]

    async def run(self) -> None:
        """Raises ExecutionError when the server answers none of the first requests, with what it said."""
        self._limit_lengths()
        self._num_ctx = self._choose_num_ctx()
        await self._warm_up()
        self._keep_to_budget()
        self._announce(self.expected_s())
        await self._measure("repeats", self.repeats, self.settings.repeats)
        for length in self.settings.lengths:
            shape = await self._fit(length)
            if shape is not None:
                self.shapes.append(shape)
                await self._measure(f"{length:,} tokens", shape, self.settings.length_repeats)
        self._progress("done", 1.0)
        self.is_complete = True

    async def ask_together(self) -> list[Record]:
        """Two more requests, sent at once: they tell a queue from parallel slots."""
        return list(await asyncio.gather(*(self._ask(REPEATED_WORDS, _TOGETHER_TOKENS) for _ in range(2))))

    def expected_s(self) -> float:
        """From the warm-up's times: prefill in proportion to the prompt, every output token as long as another."""
        last = self.warm_up[-1]
        ttft, tpot = metrics.ttft(last) or 0.0, metrics.tpot(last) or 0.0
        per_token = ttft / (last.prompt_tokens or self._estimate(REPEATED_WORDS))
        decode = self.settings.output_len * tpot
        prompts = sum(self.settings.lengths) * per_token
        measured = self.settings.length_repeats * (prompts + len(self.settings.lengths) * decode)
        return self.settings.repeats * (ttft + decode) + prompts + measured

    def _limit_lengths(self) -> None:
        """A prompt and its answer have to fit in the context: the longest is fitted to it, longer ones fall away."""
        context, output = self.endpoint.context_len, self.settings.output_len
        if context is None:
            return
        room = context - output - _LINE_SLACK
        kept = [length for length in self.settings.lengths if length <= room]
        too_long = [length for length in self.settings.lengths if length > room]
        for length in too_long:
            self.skipped[length] = f"{length:,} + {output:,} tokens are beyond the context of {context:,}"
        if too_long and room > max(kept, default=0):
            kept.append(room)
            self.skipped[too_long[0]] += f": {room:,} instead"
        self.settings = replace(self.settings, lengths=tuple(kept))

    async def _warm_up(self) -> None:
        minimal = await self._ask(_MINIMAL_WORDS, _WARM_UP_TOKENS)
        self.warm_up.append(minimal)
        if minimal.error and not minimal.is_answered:
            _raise(minimal.error)
        repeated = await self._ask(REPEATED_WORDS, _WARM_UP_TOKENS)
        self.warm_up.append(repeated)
        if repeated.error and not repeated.is_answered:
            _raise(repeated.error)
        if minimal.prompt_tokens and repeated.prompt_tokens:
            self.overhead_tokens = minimal.prompt_tokens - _MINIMAL_WORDS
            self._learn(REPEATED_WORDS, repeated.prompt_tokens)

    def _keep_to_budget(self) -> None:
        """Drops the longest prompts, then shortens answers and repeats, until the rest fits in the budget."""
        budget = self.settings.budget_s
        while budget is not None and self.expected_s() > budget:
            if len(self.settings.lengths) > 2:
                self.settings = replace(self.settings, lengths=self.settings.lengths[:-1])
            elif self.settings.output_len > 8:
                self.settings = replace(self.settings, output_len=self.settings.output_len // 2)
            elif self.settings.repeats > 3:
                self.settings = replace(self.settings, repeats=3, length_repeats=1)
            elif self.settings.lengths:
                self.settings = replace(self.settings, lengths=self.settings.lengths[:-1])
            else:
                return

    async def _fit(self, length: int) -> Shape | None:
        """The shape of that length; None when the server does not answer it, with the reason in `skipped`."""
        num_words = self._words_for(round(_FIT_SHARE * length))
        record = await self._ask(num_words, _FIT_TOKENS)
        self._sent += 1
        if record.error and not record.is_answered:
            self.skipped[length] = f"{record.error.kind}: {record.error.message}"
            return None
        if record.prompt_tokens:
            self._learn(num_words, record.prompt_tokens)
        return Shape(length, self._words_for(length))

    async def _measure(self, stage: str, shape: Shape, repeats: int) -> None:
        for _ in range(repeats):
            self._progress(stage, self._sent / self.settings.num_requests)
            shape.records.append(await self._ask(shape.num_words, self.settings.output_len))
            self._sent += 1
            if len(shape.records) >= _GIVE_UP_AFTER and not any(r.ok for r in shape.records[-_GIVE_UP_AFTER:]):
                return

    async def _ask(self, num_words: int, max_tokens: int) -> Record:
        request = unique_prompt.request(
            self._rng, num_words, chat=self._chat, max_tokens=max_tokens, num_ctx=self._num_ctx
        )
        return await self._send(request)

    def _choose_num_ctx(self) -> int | None:
        needed = max((*self.settings.lengths, _SHORT_LEN)) + self.settings.output_len + _LINE_SLACK
        return self.endpoint.num_ctx(needed, self._loaded_context)

    def _estimate(self, num_words: int) -> float:
        return (self.overhead_tokens or 0) + self._tokens_per_word * num_words

    def _words_for(self, length: int) -> int:
        """Rounded down, so that a prompt for the whole context does not exceed it."""
        return max(1, int((length - (self.overhead_tokens or 0)) / self._tokens_per_word))

    def _learn(self, num_words: int, prompt_tokens: int) -> None:
        self._tokens_per_word = max(0.1, (prompt_tokens - (self.overhead_tokens or 0)) / num_words)


def _raise(failure: Failure) -> NoReturn:
    raise ExecutionError(f"the server's answer: {failure.message}", hint=_HINTS.get(failure.kind), kind=failure.kind)
