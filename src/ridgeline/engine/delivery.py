"""Delivery: from committed tokens to the requests' sinks, while the next step computes.

Outcomes are delivered in the order in which they were added:
tokens become text, stop strings are looked for, the sink is called. A stop string so ends its request one step late,
and the token that was computed meanwhile is discarded.

Invariant 4: the sink of every opened request gets exactly one Delta with a finish reason, and none after it. An open
stream is what still has to end; ending removes it, and outcomes without a stream are dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Protocol

from ridgeline.engine.outcome import Outcome
from ridgeline.engine.request import Delta, FinishReason, Request
from ridgeline.engine.text import TextStream, TextTokenizer
from ridgeline.errors import ExecutionError, RidgelineError

_log = logging.getLogger(__name__)


class Tokenizer(TextTokenizer, Protocol):
    """What the engine needs of `model/tokenizer.py`."""

    @property
    def eos_token_ids(self) -> Collection[int]: ...


class Delivery:
    """`on_end` is called once for each request that ends, before its sink gets the last Delta."""

    def __init__(self, tokenizer: Tokenizer | None, on_end: Callable[[Request, FinishReason], None]) -> None:
        self._tokenizer = tokenizer
        self._on_end = on_end
        self._streams: dict[str, TextStream | None] = {}  # None: there is no tokenizer, so no text
        self._outcomes: list[Outcome] = []

    def open(self, request: Request) -> None:
        """From any thread, before the request's first outcome."""
        stream = None if self._tokenizer is None else TextStream(self._tokenizer, request.params)
        self._streams[request.id] = stream

    def add(self, outcome: Outcome) -> None:
        self._outcomes.append(outcome)

    def flush(self) -> None:
        """Delivers all that was added. Never raises: a fault of a sink or of a text ends that request alone."""
        outcomes, self._outcomes = self._outcomes, []
        for outcome in outcomes:
            if outcome.request.id in self._streams:
                self._deliver(outcome)

    def _deliver(self, outcome: Outcome) -> None:
        request = outcome.request
        try:
            text, stop = self._text(outcome)
        except Exception as error:  # must not reach the other outcomes
            _log.exception("the tokens of request %s could not be turned into text", request.id)
            failure = ExecutionError(f"token {outcome.token_id} could not be turned into text: {error!r}")
            self._cut_off(outcome, FinishReason.ERROR, failure)
            return
        reason = outcome.finish_reason if stop is None else FinishReason.STOP
        has_token = outcome.token_id is not None
        is_first = has_token and len(request.output_ids) == 1
        is_scored = is_first or (request.max_tokens == 0 and reason is FinishReason.LENGTH)
        delta = Delta(
            text=text,
            token_ids=(outcome.token_id,) if outcome.token_id is not None else (),
            logprobs=(outcome.logprob,) if outcome.logprob is not None else (),
            prompt_logprobs=tuple(request.prompt_logprobs) if is_scored and request.prompt_logprobs else None,
            finish_reason=reason,
            stop_reason=outcome.stop_reason if stop is None else stop,
            error=outcome.error,
            metrics=None if reason is None else request.metrics(outcome.time_s),
        )
        if reason is not None:
            self._end(request, reason)
        if not self._send(request, delta) and reason is None:
            self._cut_off(outcome, FinishReason.ABORT)

    def _text(self, outcome: Outcome) -> tuple[str, str | None]:
        """The text that became certain, and the stop string that ended it."""
        stream = self._streams[outcome.request.id]
        reason = outcome.finish_reason
        if stream is None or reason in (FinishReason.ABORT, FinishReason.ERROR):
            return "", None
        text = ""
        ended_by_token = reason is FinishReason.STOP
        if outcome.token_id is not None and (not ended_by_token or outcome.request.params.include_stop_str):
            update = stream.push([outcome.token_id])
            text = update.text
            if update.stop is not None:
                return text, update.stop
        return (text if reason is None else text + stream.finish()), None

    def _cut_off(self, outcome: Outcome, reason: FinishReason, error: RidgelineError | None = None) -> None:
        """Ends a request for a fault of its delivery."""
        self._end(outcome.request, reason)
        metrics = outcome.request.metrics(outcome.time_s)
        self._send(outcome.request, Delta(finish_reason=reason, error=error, metrics=metrics))

    def _end(self, request: Request, reason: FinishReason) -> None:
        del self._streams[request.id]
        self._on_end(request, reason)

    def _send(self, request: Request, delta: Delta) -> bool:
        """Whether the sink took it."""
        try:
            request.sink(delta)
        except Exception:  # a sink is foreign code: whatever it raises concerns its own request only
            _log.exception("the sink of request %s failed; the request is aborted", request.id)
            return False
        return True
