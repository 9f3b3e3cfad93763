"""What an experiment found: figures of its records, and whether they may be believed.

A run is invalid when a cache answered what it was meant to compute, when requests failed, when the server saw another
number of tokens than it was sent, when token counts come from different sources, or when it was cut short. A cache
that the server does not report is `None`, and the run is "unverified", not invalid. Figures of an invalid run are kept:
the reader sees both them and the reasons.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ridgeline.measure import metrics
from ridgeline.measure.events import Record
from ridgeline.measure.experiment import Experiment, Shape
from ridgeline.measure.validity import MAX_LOOP_LAG_S, MAX_SCHEDULE_LAG
from ridgeline.units import format_duration

_HIT_RATE = 0.01  # of a prompt's tokens, beyond the template's header
_LENGTH_SLACK = 0.05  # prompts of one shape differ by a few tokens of their unique lines
_SHORT_OUTPUT = 0.95
_RELOAD_S = 0.2  # a model that is loaded answers `load_duration` with some milliseconds


@dataclass(frozen=True)
class Point:
    """One prompt length. Times are medians in seconds; server times are what the server says, where it says."""

    prompt_tokens: int | None
    cached_tokens: int | None
    requests: int
    failed: int
    output_tokens: float | None
    ttft_median_s: float | None
    ttft_p90_s: float | None
    tpot_median_s: float | None
    tpot_p90_s: float | None
    server_prefill_s: float | None
    server_decode_s: float | None

    @property
    def context(self) -> float | None:
        """Mean number of tokens in the context of the decode steps."""
        if self.prompt_tokens is None or self.output_tokens is None:
            return None
        return self.prompt_tokens + self.output_tokens / 2

    @property
    def server_tpot_s(self) -> float | None:
        """Its decode time starts at the first token, which the prefill made: one step less than tokens."""
        if self.server_decode_s is None or self.output_tokens is None or self.output_tokens < 2:
            return None
        return self.server_decode_s / (self.output_tokens - 1)


@dataclass(frozen=True)
class Findings:
    """`repeats`: the short prompt. `points`: the lengths, shortest first."""

    repeats: Point
    points: list[Point]
    header_tokens: int  # of the template: hits up to here are allowed
    cache: str  # "cold", "unverified" or "hit"
    token_source: str | None
    cold_start_s: float | None
    rtt_s: float | None
    loop_lag_s: float | None  # P99 of the client's event loop
    reasoning_share: float | None  # of the output tokens
    reloads: int  # measured requests for which the server loaded the model
    invalid_reasons: list[str]
    notes: list[str]

    @property
    def valid(self) -> bool:
        return not self.invalid_reasons

    @property
    def prefill_tokens_per_s(self) -> float | None:
        """Of the longest prompt, its cached tokens left out; the way to the server is no prefill."""
        for point in reversed([self.repeats, *self.points]):
            if point.prompt_tokens and point.ttft_median_s:
                computed = point.prompt_tokens - (point.cached_tokens or 0)
                seconds = point.ttft_median_s - (self.rtt_s or 0.0)
                return computed / seconds if seconds > 0 else None
        return None


def find(experiment: Experiment, loop_lag_s: float | None = None) -> Findings:
    """The figures of what has been measured so far. `loop_lag_s`: P99 of the event loop that measured."""
    points = [point_of(shape) for shape in experiment.shapes if shape.records]
    done = [record for record in experiment.records if record.ok]
    cold_start = experiment.warm_up[0].load_s if experiment.warm_up else None
    return Findings(
        repeats=point_of(experiment.repeats),
        points=points,
        header_tokens=experiment.header_tokens,
        cache=_cache(experiment, done),
        token_source=done[0].token_source if done else None,
        cold_start_s=cold_start,
        rtt_s=experiment.endpoint.rtt_s,
        loop_lag_s=loop_lag_s,
        reasoning_share=_reasoning_share(done),
        reloads=sum((record.load_s or 0.0) > _RELOAD_S for record in done),
        invalid_reasons=list(_invalid_reasons(experiment, done, loop_lag_s)),
        notes=list(_notes(experiment, done, loop_lag_s)),
    )


def point_of(shape: Shape) -> Point:
    done = [record for record in shape.records if record.ok]
    ttfts = metrics.summarize(metrics.defined(metrics.ttft, done))
    tpots = metrics.summarize(metrics.defined(metrics.tpot, done))
    cached = _known(done, lambda r: r.cached_tokens)
    prompt = metrics.median(_known(done, lambda r: r.prompt_tokens))
    return Point(
        prompt_tokens=None if prompt is None else round(prompt),
        cached_tokens=round(max(cached)) if cached else None,
        requests=len(shape.records),
        failed=len(shape.records) - len(done),
        output_tokens=metrics.median(_known(done, lambda r: r.n_out)),
        ttft_median_s=ttfts["p50"],
        ttft_p90_s=ttfts["p90"],
        tpot_median_s=tpots["p50"],
        tpot_p90_s=tpots["p90"],
        server_prefill_s=metrics.median(_known(done, lambda r: r.server_prefill_s)),
        server_decode_s=metrics.median(_known(done, lambda r: r.server_decode_s)),
    )


def _known(records: Sequence[Record], value: Callable[[Record], float | None]) -> list[float]:
    return [v for record in records if (v := value(record)) is not None]


def _cache(experiment: Experiment, done: list[Record]) -> str:
    if any(_is_hit(record, experiment.header_tokens) for record in done):
        return "hit"
    return "cold" if done and all(record.cached_tokens is not None for record in done) else "unverified"


def _is_hit(record: Record, header_tokens: int) -> bool:
    """Whether more came from a cache than the template's header, and more than two lines have in common by chance."""
    return (record.cached_tokens or 0) > header_tokens + _HIT_RATE * (record.prompt_tokens or 0)


def _invalid_reasons(experiment: Experiment, done: list[Record], loop_lag_s: float | None) -> Iterator[str]:
    total = len(experiment.records)
    if not experiment.is_complete:
        yield f"partial: ended after {total} of {experiment.settings.num_requests} requests"
    failures = Counter(record.error.kind for record in experiment.records if record.error)
    if failures:
        kinds = ", ".join(f"{kind} {count}" for kind, count in failures.most_common())
        yield f"{sum(failures.values())} of {total} requests failed: {kinds}"
    hits = [record for record in done if _is_hit(record, experiment.header_tokens)]
    if hits:
        worst = max(hits, key=lambda record: record.cached_tokens or 0)
        yield (
            f"the prefix cache answered in {len(hits)} of {len(done)} requests (up to {worst.cached_tokens:,} of "
            f"{worst.prompt_tokens or 0:,} tokens; the template's header is {experiment.header_tokens}): "
            "their TTFT is no prefill time"
        )
    yield from _length_reasons(experiment)
    yield from _lag_reasons(done, loop_lag_s)
    sources = sorted({record.token_source for record in done if record.token_source})
    if len(sources) > 1:
        yield f"tokens were counted in different ways ({', '.join(sources)}): the figures do not compare"
    if done and not metrics.median(metrics.defined(metrics.tpot, experiment.repeats.records)):
        yield "answers came in one piece: there is no time per token (does a proxy buffer the stream?)"


def _length_reasons(experiment: Experiment) -> Iterator[str]:
    for shape in experiment.shapes:
        told = [record.prompt_tokens for record in shape.records if record.prompt_tokens]
        wanted = shape.wanted_tokens or 0
        off = [tokens for tokens in told if abs(tokens - wanted) > _LENGTH_SLACK * wanted]
        if off:
            yield (
                f"of {wanted:,} prompt tokens the server reports {off[0]:,}: it cuts prompts (num_ctx?) "
                "or counts in another way"
            )


def _lag_reasons(done: list[Record], loop_lag_s: float | None) -> Iterator[str]:
    """A late client sees every token late. One request at a time, a lag below a tenth of TTFT is only noted: it moves a
    mean over many tokens by next to nothing, and a CPU server on the same cores always causes some."""
    ttft = metrics.median(metrics.defined(metrics.ttft, done))
    if loop_lag_s is None or ttft is None or loop_lag_s <= max(MAX_LOOP_LAG_S, MAX_SCHEDULE_LAG * ttft):
        return
    yield (
        f"the client was late: its event loop lagged {format_duration(loop_lag_s)} at P99, the median TTFT is "
        f"{format_duration(ttft)}"
    )


def _notes(experiment: Experiment, done: list[Record], loop_lag_s: float | None) -> Iterator[str]:
    yield from experiment.skipped.values()
    repeats, enough = len(experiment.repeats.records), metrics.samples_needed(0.9)
    if 0 < repeats < enough:
        yield f"a P90 of {repeats} repeats is a rough one: {enough} make it firm"
    if loop_lag_s is not None and loop_lag_s > MAX_LOOP_LAG_S:
        lag = format_duration(loop_lag_s)
        yield f"the client's event loop was up to {lag} late (P99): does it share its cores with the server?"
    if done and any(record.cached_tokens is None for record in done):
        yield "unverified: the server does not report cached tokens; every prompt had a unique line in front"
    cached = max((record.cached_tokens or 0 for record in done), default=0)
    if 0 < cached <= experiment.header_tokens:
        yield f"{cached} tokens of the template's header came from the cache, and are left out of the prefill rate"
    if done and done[0].token_source == "chunks":
        yield "the server reports no token counts: chunks were counted, which may hold several tokens each"
    if done and any(record.prompt_tokens is None for record in done):
        yield "the server does not report prompt tokens: lengths are not known"
    wanted = experiment.settings.output_len
    outputs = metrics.median(_known(done, lambda r: r.n_out))
    if outputs is not None and outputs < _SHORT_OUTPUT * wanted:
        yield f"answers ended after {outputs:,.0f} tokens (median), {wanted:,} were asked for"


def _reasoning_share(done: list[Record]) -> float | None:
    """None: no reasoning seen, or not counted."""
    tokens = sum(record.n_out or 0 for record in done)
    reasoning = sum(_reasoning_tokens(record) for record in done)
    return reasoning / tokens if tokens and reasoning else None


def _reasoning_tokens(record: Record) -> float:
    if record.reasoning_tokens is not None:
        return record.reasoning_tokens
    return sum(event.count for event in record.events if event.channel == "reasoning")
