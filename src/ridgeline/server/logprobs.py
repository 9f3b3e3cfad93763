"""Log-probabilities in the two shapes of the API: a list of objects in chat, parallel lists in completions.

A token may be a part of a character, which no JSON string can hold. It is told by its bytes, as OpenAI tells it:
`\\xf0\\x9f` in chat, `bytes:\\xf0\\x9f` in completions, where the token's name is all there is to tell it by.
"""

from __future__ import annotations

import codecs
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
    exact = _exact_bytes(token_id, tokenizer)
    return TopToken(_spelled(exact), LOWEST if logprob is None else max(logprob, LOWEST), list(exact))


def _exact_bytes(token_id: int, tokenizer: Tokenizer) -> bytes:
    """A token's bytes; a control token's are those of its spelling."""
    if tokenizer.is_control(token_id):
        return tokenizer.token_text(token_id).encode()
    return tokenizer.token_bytes(token_id)


def _spelled(exact: bytes, mark: str = "") -> str:
    """The text of a token, or `mark` and its bytes where they are no whole characters."""
    try:
        return exact.decode()
    except UnicodeDecodeError:
        return mark + "".join(chr(byte) if 0x20 <= byte < 0x7F else f"\\x{byte:02x}" for byte in exact)


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
        self._position = _Position(0)

    def echo(self, echo: Echo, tokens: Sequence[TokenLogprob]) -> CompletionLogprobs:
        """Those of the prompt. What its tokens have and the text has not, an added BOS or SentencePiece's first space,
        comes first, so it is put before the text's start."""
        whole = _Position(0)
        for token in tokens:
            whole.pass_over(self._text_bytes(token.token_id, echo.spells_control))
        self._position = _Position(min(0, len(echo.text) - whole.num_characters))
        result = self._piece(tokens, echo.spells_control)
        self._position = _Position(len(echo.text))
        return result

    def piece(self, tokens: Sequence[TokenLogprob]) -> CompletionLogprobs:
        return self._piece(tokens, self._spells_control)

    def _piece(self, tokens: Sequence[TokenLogprob], spells_control: bool) -> CompletionLogprobs:
        result = CompletionLogprobs([], [], [], [])
        for token in tokens:
            result.tokens.append(self._name(token.token_id))
            result.text_offset.append(max(0, self._position.num_characters))
            result.token_logprobs.append(None if token.logprob is None else max(token.logprob, LOWEST))
            result.top_logprobs.append(self._top(token))
            self._position.pass_over(self._text_bytes(token.token_id, spells_control))
        return result

    def _text_bytes(self, token_id: int, spells_control: bool) -> bytes:
        """What a token adds to the text."""
        return _exact_bytes(token_id, self._tokenizer) if spells_control else self._tokenizer.token_bytes(token_id)

    def _name(self, token_id: int) -> str:
        return _spelled(_exact_bytes(token_id, self._tokenizer), "bytes:")

    def _top(self, token: TokenLogprob) -> dict[str, float] | None:
        """By name, the chosen token's beside the likeliest. Of two tokens with one name, which differ for the model all
        the same (byte tokens, padding rows), the chosen or the likelier one has it, the other goes by its id."""
        if token.logprob is None:
            return None
        chosen = self._name(token.token_id)
        top: dict[str, float] = {}
        for token_id, logprob in dict((*token.top, (token.token_id, token.logprob))).items():
            name = chosen if token_id == token.token_id else self._name(token_id)
            if name in top or (name == chosen and token_id != token.token_id):
                name = f"token_id:{token_id}"
            top[name] = max(logprob, LOWEST)
        return top


class _Position:
    """A place in a text that grows by bytes, in characters. One that is unfinished counts from its first byte on, bytes
    that are no UTF-8 as the U+FFFD that the text shows."""

    def __init__(self, start: int) -> None:
        self._num_finished = start
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def pass_over(self, data: bytes) -> None:
        self._num_finished += len(self._decoder.decode(data))

    @property
    def num_characters(self) -> int:
        return self._num_finished + bool(self._decoder.getstate()[0])
