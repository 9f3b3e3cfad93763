"""Log-probabilities in the two shapes of the API: a list of objects in chat, parallel lists in completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.engine.request import TokenLogprob
from ridgeline.model.tokenizer import Tokenizer
from ridgeline.server.shapes import ChatLogprobs, CompletionLogprobs, TokenDetail, TopToken

LOWEST = -9999.0  # what OpenAI reports for "impossible"; JSON has no -Infinity


def chat_logprobs(tokens: Sequence[TokenLogprob], tokenizer: Tokenizer) -> ChatLogprobs:
    return ChatLogprobs([_detail(token, tokenizer) for token in tokens])


def _detail(token: TokenLogprob, tokenizer: Tokenizer) -> TokenDetail:
    top = [_top_token(token_id, logprob, tokenizer) for token_id, logprob in token.top]
    chosen = _top_token(token.token_id, token.logprob, tokenizer)
    return TokenDetail(chosen.token, chosen.logprob, chosen.bytes, top)


def _top_token(token_id: int, logprob: float | None, tokenizer: Tokenizer) -> TopToken:
    text = tokenizer.token_text(token_id)
    exact = text.encode() if tokenizer.is_control(token_id) else tokenizer.token_bytes(token_id)
    return TopToken(text, LOWEST if logprob is None else max(logprob, LOWEST), list(exact))


@dataclass(frozen=True)
class Echo:
    """A prompt's text as it is repeated before its completion."""

    text: str
    spells_control: bool  # whether its control tokens stand in the text


class LegacyLogprobs:
    """Builds completion logprobs piece by piece and keeps the running text offset of one choice."""

    def __init__(self, tokenizer: Tokenizer, *, spells_control: bool) -> None:
        self._tokenizer = tokenizer
        self._spells_control = spells_control
        self._offset = 0

    def echo(self, echo: Echo, tokens: Sequence[TokenLogprob]) -> CompletionLogprobs:
        """Those of the prompt. What its tokens have and the text has not, an added BOS or SentencePiece's first space,
        comes first, so it is put before the text's start."""
        num_characters = sum(self._width(token.token_id, echo.spells_control) for token in tokens)
        self._offset = min(0, len(echo.text) - num_characters)
        result = self._piece(tokens, echo.spells_control)
        self._offset = len(echo.text)
        return result

    def piece(self, tokens: Sequence[TokenLogprob]) -> CompletionLogprobs:
        return self._piece(tokens, self._spells_control)

    def _piece(self, tokens: Sequence[TokenLogprob], spells_control: bool) -> CompletionLogprobs:
        result = CompletionLogprobs([], [], [], [])
        for token in tokens:
            result.tokens.append(self._tokenizer.token_text(token.token_id))
            result.text_offset.append(max(0, self._offset))
            result.token_logprobs.append(None if token.logprob is None else max(token.logprob, LOWEST))
            result.top_logprobs.append(self._top(token))
            self._offset += self._width(token.token_id, spells_control)
        return result

    def _width(self, token_id: int, spells_control: bool) -> int:
        """Characters that begin in a token: one that it holds a part of counts where it begins."""
        if spells_control and self._tokenizer.is_control(token_id):
            return len(self._tokenizer.token_text(token_id))
        return sum(byte & 0xC0 != 0x80 for byte in self._tokenizer.token_bytes(token_id))

    def _top(self, token: TokenLogprob) -> dict[str, float] | None:
        if token.logprob is None:
            return None
        top: dict[str, float] = {}
        for token_id, logprob in (*token.top, (token.token_id, token.logprob)):
            top.setdefault(self._tokenizer.token_text(token_id), max(logprob, LOWEST))  # the better of equal spellings
        return top
