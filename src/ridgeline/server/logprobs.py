"""Log-probabilities in the two shapes of the API: a list of objects in chat, parallel lists in completions."""

from __future__ import annotations

from collections.abc import Sequence

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


class LegacyLogprobs:
    """Builds completion logprobs piece by piece and keeps the running text offset of one choice."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._offset = 0

    def piece(self, tokens: Sequence[TokenLogprob]) -> CompletionLogprobs:
        text_of = self._tokenizer.token_text
        result = CompletionLogprobs([], [], [], [])
        for token in tokens:
            result.tokens.append(text_of(token.token_id))
            result.text_offset.append(self._offset)
            result.token_logprobs.append(None if token.logprob is None else max(token.logprob, LOWEST))
            result.top_logprobs.append(self._top(token))
            self._offset += _num_characters(self._tokenizer.token_bytes(token.token_id))
        return result

    def _top(self, token: TokenLogprob) -> dict[str, float] | None:
        if token.logprob is None:
            return None
        top: dict[str, float] = {}
        for token_id, logprob in (*token.top, (token.token_id, token.logprob)):
            top.setdefault(self._tokenizer.token_text(token_id), max(logprob, LOWEST))  # the better of equal spellings
        return top


def _num_characters(data: bytes) -> int:
    """Characters that begin in `data`: a token may hold a part of one, which then counts where it begins."""
    return sum(byte & 0xC0 != 0x80 for byte in data)
