"""Published examples and identities of the metrics; numpy as oracle for percentiles."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.measure import metrics
from ridgeline.measure.events import Record, Recorder, TokenEvent, spread

TIMES = st.lists(st.floats(0.0, 1e3), min_size=1, max_size=50)


def record_of(times: list[float], n_out: int, *, sent: float = 0.0, scheduled: float | None = None) -> Record:
    """Events of one token each at `times`."""
    recorder = Recorder(Record(t_sched=sent if scheduled is None else scheduled, t_send=sent))
    for time in times:
        recorder.chunk(time, [("content", "x")])
    recorder.usage(n_out, "usage")
    return recorder.finish(times[-1] if times else sent)


def test_mean_hides_what_percentiles_show() -> None:
    """98 requests at 0.4 s and 2 at 12 s; with linear interpolation, P99 of 100 values lies between the 99th and the
    100th: 12 s."""
    summary = metrics.summarize([0.4] * 98 + [12.0] * 2)
    assert summary["mean"] == pytest.approx(0.632)
    assert summary["p50"] == pytest.approx(0.4)
    assert summary["p99"] == pytest.approx(12.0)
    assert summary["count"] == 100


@given(TIMES, st.floats(0.0, 1.0))
def test_percentiles_are_numpys(values: list[float], share: float) -> None:
    assert metrics.percentile(sorted(values), share) == pytest.approx(float(np.percentile(values, 100 * share)))


def test_nothing_is_not_zero() -> None:
    assert metrics.summarize([]) == {"mean": None, "p50": None, "p90": None, "p99": None, "count": 0}
    silent = Record(t_sched=0.0, t_send=0.0)
    for metric in (metrics.ttft, metrics.ttft_sched, metrics.ttfa, metrics.tpot, metrics.e2e, metrics.norm_latency):
        assert metric(silent) is None
    assert metrics.median([]) is None


@given(st.lists(st.floats(0.001, 10.0), min_size=2, max_size=30), st.integers(0, 100))
def test_parts_of_a_request_sum_to_the_whole(gaps: list[float], more_tokens: int) -> None:
    times = list(np.cumsum(gaps))
    record = record_of(times, len(times) + more_tokens)
    ttft, tpot, e2e = metrics.ttft(record), metrics.tpot(record), metrics.e2e(record)
    assert ttft is not None
    assert tpot is not None
    assert record.n_out is not None
    assert e2e == pytest.approx(ttft + (record.n_out - record.n_first) * tpot)
    assert sum(metrics.chunk_gaps(record)) == pytest.approx(times[-1] - times[0])
    assert sum(metrics.itls(record)) == pytest.approx(times[-1] - times[0])
    assert len(metrics.itls(record)) == record.n_out - record.n_first


def test_scheduled_times_count_what_the_client_held_back() -> None:
    record = record_of([3.0, 4.0], 2, sent=2.0, scheduled=0.5)
    assert metrics.ttft(record) == 1.0
    assert metrics.ttft_sched(record) == 2.5
    assert metrics.e2e_sched(record) == 3.5
    assert metrics.queue_client(record) == 1.5


def test_norm_latency_is_another_thing_than_tpot() -> None:
    record = record_of([5.0, 6.0, 7.0], 3)
    assert metrics.tpot(record) == 1.0
    assert metrics.norm_latency(record) == pytest.approx(7 / 3)


@given(st.integers(0, 500), st.lists(st.integers(0, 40), min_size=1, max_size=30))
def test_tokens_are_spread_without_loss(total: int, sizes: list[int]) -> None:
    counts = spread(total, sizes)
    assert sum(counts) == total
    assert min(counts) >= (1 if total >= len(sizes) else 0)


def test_spread_follows_the_text() -> None:
    assert spread(8, [1, 3]) == [2, 6] or spread(8, [1, 3]) == [3, 5]
    assert spread(3, [0, 0, 0]) == [1, 1, 1]


@pytest.mark.parametrize(("share", "needed"), [(0.5, 10), (0.9, 50), (0.99, 500)])
def test_samples_that_a_percentile_needs(share: float, needed: int) -> None:
    assert metrics.samples_needed(share) == needed


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    truth = math.log(2)  # the median of an exponential distribution
    found = [metrics.interval(rng.exponential(size=60), 0.5) for _ in range(400)]
    hits = sum(bounds is not None and bounds[0] <= truth <= bounds[1] for bounds in found)
    assert hits >= 0.93 * 400


def test_too_few_samples_have_no_interval() -> None:
    assert metrics.interval([1.0, 2.0, 3.0], 0.99) is None
    assert metrics.interval([], 0.5) is None
    assert metrics.interval(range(1, 1001), 0.99) == pytest.approx((984, 996), abs=2)


@given(st.integers(1, 200), st.floats(0.01, 0.99))
def test_binomial_probabilities_sum_to_one(n: int, p: float) -> None:
    assert math.fsum(metrics.binomial_pmf(n, p)) == pytest.approx(1.0)


def test_an_event_is_small() -> None:
    assert not hasattr(TokenEvent(0.0, "content", 1), "__dict__")
