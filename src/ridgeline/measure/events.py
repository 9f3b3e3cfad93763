"""One request as its client saw it: token events with their times, and what the server said about it.

Every server's dialect becomes a `Record`; all figures are pure functions of records (`metrics.py`). Times are seconds
of one monotonic clock of this process. A token event carries at least one generated token, in whatever channel: answer
text, reasoning, tool arguments. Comments, role-only, empty, finish-only and usage-only chunks are no token events.

How many tokens a chunk holds, a server seldom says. `Recorder.finish` settles it: the server's running usage where it
is sent; one token a chunk where the total equals the number of chunks; else one in the first chunk and the rest spread
over the others by length of text, and then `counts_estimated` is set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Channel = Literal["content", "reasoning", "tool"]
TokenSource = Literal["usage", "native", "tokenizer", "chunks"]


@dataclass(slots=True)
class TokenEvent:
    """`count` tokens arrived at `time`; `size` is the length of their text in characters."""

    time: float
    channel: Channel
    size: int
    count: int = 1


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request failed. `kind` groups alike ones: connection, timeout, http_401, http_429, bad_response,
    stream_error, truncated, interrupted, empty (it ended well, and no token came)."""

    kind: str
    message: str


@dataclass(slots=True)
class Record:
    """Times and counts of one request (docs/handbook/measuring.md). None: did not happen, or the server does not
    say. `prompt_tokens` includes cached ones."""

    t_sched: float  # intended start: of the schedule in open loop, else t_send
    t_send: float  # just before the request's bytes are written
    index: int = 0  # in the run
    t_byte: float | None = None  # first byte of the body, of any kind
    t_1: float | None = None  # first token event
    t_ans: float | None = None  # first answer text or tool call
    t_last: float | None = None  # last token event
    t_end: float | None = None  # stream closed, or failed
    events: list[TokenEvent] = field(default_factory=list)
    n_out: int | None = None  # output tokens, reasoning included
    n_first: int = 1  # tokens of the first token event
    token_source: TokenSource | None = None  # of n_out
    counts_estimated: bool = False  # of the events
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    server_queue_s: float | None = None
    server_prefill_s: float | None = None
    server_decode_s: float | None = None
    load_s: float | None = None  # the server loaded the model for this request: cold start
    server: dict[str, Any] = field(default_factory=dict)  # its own timings, as it sent them
    finish_reason: str | None = None
    text: str = ""  # answer; reasoning and tool arguments are apart
    reasoning: str = ""
    tool_arguments: str = ""
    wanted_prompt_tokens: int | None = None
    wanted_output_tokens: int | None = None
    error: Failure | None = None

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def is_answered(self) -> bool:
        """What the server says of its prompt may be believed, though perhaps no token came."""
        return self.error is None or self.error.kind == "empty"


class Recorder:
    """Builds a record while its stream is read. `count_tokens` counts the tokens of a text, where a tokenizer is at
    hand: asked only when the server gives no count."""

    def __init__(self, record: Record, count_tokens: Callable[[str], int] | None = None) -> None:
        self.record = record
        self._count_tokens = count_tokens
        self._parts: dict[Channel, list[str]] = {"content": [], "reasoning": [], "tool": []}
        self._running: list[int | None] = []  # tokens so far at each event, where the server tells

    def byte(self, time: float) -> None:
        if self.record.t_byte is None:
            self.record.t_byte = time

    def chunk(self, time: float, parts: Sequence[tuple[Channel, str]], total: int | None = None) -> None:
        """A chunk arrived with these texts, empty ones among them: one token event, or none when all are empty.
        `total`: output tokens so far, by the server's running usage."""
        parts = [(channel, text) for channel, text in parts if text]
        if not parts:
            return
        record = self.record
        if record.t_1 is None:
            record.t_1 = time
        if record.t_ans is None and any(channel != "reasoning" for channel, _ in parts):
            record.t_ans = time
        record.t_last = time
        record.events.append(TokenEvent(time, parts[0][0], sum(len(text) for _, text in parts)))
        for channel, text in parts:
            self._parts[channel].append(text)
        self._running.append(total)

    def usage(self, n_out: int, source: TokenSource) -> None:
        """The server's total of output tokens; the last one counts, and usage goes before native counters."""
        if n_out >= 0 and (source == "usage" or self.record.token_source != "usage"):
            self.record.n_out, self.record.token_source = n_out, source

    def finish(self, time: float, error: Failure | None = None) -> Record:
        record = self.record
        record.t_end, record.error = time, error or self._without_tokens()
        record.text = "".join(self._parts["content"])
        record.reasoning = "".join(self._parts["reasoning"])
        record.tool_arguments = "".join(self._parts["tool"])
        self._settle_counts()
        return record

    def _without_tokens(self) -> Failure | None:
        """An answer without a token has no latency, whatever the server counts."""
        if self.record.events:
            return None
        reason = f" ({self.record.finish_reason})" if self.record.finish_reason else ""
        counted = "" if self.record.n_out is None else f"; the server counted {self.record.n_out}"
        return Failure("empty", f"the answer ended{reason}, and no token came{counted}")

    def _settle_counts(self) -> None:
        record = self.record
        if not record.n_out and record.events:  # some servers count nothing, and send 0
            whole = record.reasoning + record.text + record.tool_arguments
            if self._count_tokens is not None:
                record.n_out, record.token_source = self._count_tokens(whole), "tokenizer"
            else:
                record.n_out, record.token_source = len(record.events), "chunks"
        if not record.events or record.n_out is None:
            return
        counts = _from_running(self._running)
        if counts is None and len(record.events) == 1:
            counts = [record.n_out]
        if counts is None and len(record.events) == record.n_out:
            counts = [1] * record.n_out
        if counts is None:
            counts = [1, *spread(max(0, record.n_out - 1), [event.size for event in record.events[1:]])]
            record.counts_estimated = True
        record.n_first = counts[0]
        for event, count in zip(record.events, counts, strict=True):
            event.count = count


def _from_running(totals: Sequence[int | None]) -> list[int] | None:
    """Tokens per event from running totals; None unless every event has one, they start above 0 and never fall."""
    known = [total for total in totals if total is not None]
    counts = [now - before for before, now in zip([0, *known], known, strict=False)]
    return counts if len(known) == len(totals) and counts[0] > 0 and min(counts) >= 0 else None


def spread(total: int, sizes: Sequence[int]) -> list[int]:
    """`total` tokens over chunks in proportion to their text, whole numbers, at least one each where there are enough.

    Largest remainders: the sum is exactly `total`.
    """
    least = 1 if total >= len(sizes) else 0
    rest, weight = total - least * len(sizes), sum(sizes)
    shares = [rest * (size / weight if weight else 1 / len(sizes)) for size in sizes]
    counts = [least + int(share) for share in shares]
    by_remainder = sorted(range(len(sizes)), key=lambda i: int(shares[i]) - shares[i])
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    return counts
