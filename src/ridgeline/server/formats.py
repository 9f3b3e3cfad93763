"""How a choice's deltas look in the API: chat and completions, whole and piece by piece.

A whole choice is its deltas merged into one, so both ways show the same text, log-probabilities and reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from msgspec import UNSET

from ridgeline.engine.request import Delta, TokenLogprob
from ridgeline.model.tokenizer import Tokenizer
from ridgeline.server.logprobs import Echo, LegacyLogprobs, chat_logprobs
from ridgeline.server.shapes import (
    ChatChoice,
    ChatChunkChoice,
    ChatLogprobs,
    Choice,
    CompletionChoice,
    Message,
    MessageDelta,
)


def merged(deltas: Iterable[Delta]) -> Delta:
    """All deltas of a choice as one."""
    deltas = list(deltas)
    last = deltas[-1]
    return Delta(
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token_id for delta in deltas for token_id in delta.token_ids),
        logprobs=tuple(logprob for delta in deltas for logprob in delta.logprobs),
        prompt_logprobs=deltas[0].prompt_logprobs,
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        metrics=last.metrics,
    )


class Format(Protocol):
    """One per API request: it remembers which choices have begun.

    `speller` spells the tokens of log-probabilities; None: they are not wanted.
    """

    id_prefix: str
    object: str
    chunk_object: str

    def whole(self, index: int, delta: Delta) -> Choice: ...

    def pieces(self, index: int, delta: Delta) -> list[Choice]:
        """What to stream for `delta`: nothing when it brings nothing that a client can see."""
        ...


class ChatFormat:
    id_prefix = "chatcmpl-"
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, *, speller: Tokenizer | None) -> None:
        self._speller = speller
        self._begun: set[int] = set()

    def whole(self, index: int, delta: Delta) -> Choice:
        message = Message("assistant", delta.text)
        logprobs = self._logprobs(delta.logprobs)
        return ChatChoice(index, message, logprobs, delta.finish_reason, delta.stop_reason)

    def pieces(self, index: int, delta: Delta) -> list[Choice]:
        choices: list[Choice] = []
        is_first = index not in self._begun
        self._begun.add(index)
        if is_first or delta.text or (self._speller and delta.logprobs):
            message = MessageDelta("assistant" if is_first else UNSET, delta.text)
            choices.append(ChatChunkChoice(index, message, self._logprobs(delta.logprobs)))
        if delta.finish_reason is not None:
            reason, stop = delta.finish_reason, delta.stop_reason
            choices.append(ChatChunkChoice(index, MessageDelta(), None, reason, stop))
        return choices

    def _logprobs(self, tokens: Sequence[TokenLogprob]) -> ChatLogprobs | None:
        return None if self._speller is None else chat_logprobs(tokens, self._speller)


class CompletionFormat:
    """`echoes` holds each prompt when it is to be repeated before the completion."""

    id_prefix = "cmpl-"
    object = "text_completion"
    chunk_object = "text_completion"

    def __init__(
        self, n: int, echoes: list[Echo] | None, *, speller: Tokenizer | None, spells_control: bool = False
    ) -> None:
        self._n = n
        self._echoes = echoes
        self._speller = speller
        self._spells_control = spells_control
        self._begun: dict[int, LegacyLogprobs | None] = {}

    def whole(self, index: int, delta: Delta) -> Choice:
        return self.pieces(index, delta)[0]

    def pieces(self, index: int, delta: Delta) -> list[Choice]:
        text, before = delta.text, None
        if index not in self._begun:
            builder = None
            if self._speller is not None:
                builder = LegacyLogprobs(self._speller, spells_control=self._spells_control)
            self._begun[index] = builder
            if self._echoes is not None:
                echo = self._echoes[index // self._n]
                text = echo.text + text
                before = builder and builder.echo(echo, delta.prompt_logprobs or ())
        builder = self._begun[index]
        logprobs = None if builder is None else builder.piece(delta.logprobs)
        if before is not None and logprobs is not None:
            logprobs = before + logprobs
        if not text and not (logprobs and logprobs.tokens) and delta.finish_reason is None:
            return []
        stop = delta.stop_reason if delta.finish_reason else UNSET
        return [CompletionChoice(index, text, logprobs, delta.finish_reason, stop)]
