"""Generated tokens to text: an incremental detokenizer and stop strings.

A token is bytes, perhaps half a character; `Detokenizer` gives out whole characters only. `StopMatcher` looks for stop
strings across token borders and holds back exactly what may yet become one: the longest end of the text that begins a
stop string. `TextStream` is both for one request.

Invariants: the texts of all updates and of `finish` joined equal the text of the whole, cut at the first stop string,
however the text falls into tokens. The first stop string is the one that is complete first (of several that end
together, the longest): whoever reads along could not know of another.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ridgeline.engine.request import SamplingParams
from ridgeline.errors import RequestError


class TextTokenizer(Protocol):
    """What text needs to know of a tokenizer; `model/tokenizer.py` has it."""

    @property
    def strips_leading_space(self) -> bool:
        """Whether a text's first space is an artefact of the vocabulary (SentencePiece)."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes that a token contributes; none for control tokens."""
        ...

    def token_text(self, token_id: int) -> str:
        """The token spelled out, control tokens too."""
        ...

    def is_control(self, token_id: int) -> bool: ...


class TextUpdate(NamedTuple):
    """What a push brought. With `stop` the request is over, and only `num_tokens_used` of the pushed tokens count."""

    text: str
    stop: str | None
    num_tokens_used: int


class TextStream:
    """The text of one request's output as it grows."""

    def __init__(self, tokenizer: TextTokenizer, params: SamplingParams) -> None:
        self._detokenizer = Detokenizer(
            tokenizer, skip_special_tokens=params.skip_special_tokens, starts_text=params.starts_text
        )
        self._matcher = StopMatcher(params.stop, include_stop_str=params.include_stop_str)
        self._min_tokens = params.min_tokens
        self._num_tokens = 0

    def push(self, token_ids: Sequence[int]) -> TextUpdate:
        """Takes the next output tokens. Stop strings that are complete before token `min_tokens` are plain text."""
        text = ""
        for used, token_id in enumerate(token_ids, start=1):
            self._num_tokens += 1
            piece = self._detokenizer.push(token_id)
            released, stop = self._matcher.push(piece, armed=self._num_tokens >= self._min_tokens)
            text += released
            if stop is not None:
                self._detokenizer.clear()
                return TextUpdate(text, stop, used)
        return TextUpdate(text, None, len(token_ids))

    def finish(self) -> str:
        """The text that was held back, at the end of the output; an unfinished character comes as U+FFFD."""
        return self._matcher.finish() + self._detokenizer.finish()


class Detokenizer:
    """Tokens to text, whole characters only. Bytes that are not UTF-8 become U+FFFD, as in the text of the whole.

    With `starts_text` the tokens are a text of their own, whose first space may be SentencePiece's, and then goes;
    otherwise they continue a text, in which every space counts.
    """

    def __init__(
        self, tokenizer: TextTokenizer, *, skip_special_tokens: bool = True, starts_text: bool = False
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._strip_space = starts_text and tokenizer.strips_leading_space

    def push(self, token_id: int) -> str:
        """The characters that `token_id` completes."""
        if not self._skip_special_tokens and self._tokenizer.is_control(token_id):
            data = self._tokenizer.token_text(token_id).encode()
        else:
            data = self._tokenizer.token_bytes(token_id)
        text = self._decoder.decode(data)
        if text and self._strip_space:
            self._strip_space = False
            return text.removeprefix(" ")
        return text

    def finish(self) -> str:
        """U+FFFD for a character whose end never came."""
        return self._decoder.decode(b"", final=True)

    def clear(self) -> None:
        """Forgets an unfinished character."""
        self._decoder.reset()


class StopMatcher:
    """Passes text on until a stop string is complete."""

    def __init__(self, stops: Sequence[str], *, include_stop_str: bool = False) -> None:
        if "" in stops:
            raise RequestError("a stop string is empty", param="stop", hint="leave it out")
        self._stops = tuple(stops)
        self._include_stop_str = include_stop_str
        self._longest = max(map(len, stops), default=0)
        self._held = ""  # the end of the text so far, when it begins a stop string

    def push(self, text: str, *, armed: bool = True) -> tuple[str, str | None]:
        """Text that can be passed on, and the stop string that `text` completed. Unless `armed`, none is looked for;
        one that `text` begins can still be completed later."""
        match = self._first_match(text) if armed else None
        buffer = self._held + text
        if match is not None:
            start, stop = match
            self._held = ""
            return buffer[: start + len(stop) if self._include_stop_str else start], stop
        num_held = self._num_held(buffer)
        self._held = buffer[len(buffer) - num_held :]
        return buffer[: len(buffer) - num_held], None

    def finish(self) -> str:
        """What was held back, now that no more text comes."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[int, str] | None:
        """Start in held + `text` and stop string of the match that ends first, within `text`."""
        buffer, num_held = self._held + text, len(self._held)
        found = ((buffer.find(stop, max(0, num_held - len(stop) + 1)), stop) for stop in self._stops)
        matches = [(start, stop) for start, stop in found if start >= 0]
        return min(matches, key=lambda match: (match[0] + len(match[1]), match[0]), default=None)

    def _num_held(self, buffer: str) -> int:
        """Length of the longest end of `buffer` that begins a stop string without completing it."""
        for length in range(min(len(buffer), self._longest - 1), 0, -1):
            end = buffer[-length:]
            if any(len(stop) > length and stop.startswith(end) for stop in self._stops):
                return length
        return 0
