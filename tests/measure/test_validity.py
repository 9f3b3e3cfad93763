"""Each reason not to believe a run, and the run beside it that is fine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ridgeline.measure.events import Failure, Record, TokenEvent
from ridgeline.measure.point import Load, Run, table
from ridgeline.measure.validity import Expected, check


def request(start: float, **fields: Any) -> Record:
    """A tenth of a second to the first token, 11 tokens in a second."""
    events = [TokenEvent(start + 0.1 * (i + 1), "content", 1) for i in range(11)]
    record = Record(
        t_sched=start,
        t_send=start,
        t_1=events[0].time,
        t_last=events[-1].time,
        t_end=events[-1].time,
        events=events,
        n_out=11,
        token_source="usage",
        prompt_tokens=100,
        cached_tokens=0,
        wanted_prompt_tokens=100,
        wanted_output_tokens=11,
    )
    return replace(record, **fields)


def judged(run: Run, expected: Expected | None = None) -> dict[str, Any]:
    return check(run, table(run, None), expected or Expected())


def closed(**fields: Any) -> Run:
    """One request after the other."""
    records = [request(1.1 * i, **fields) for i in range(20)]
    return Run(Load("closed", 1), records, started=0.0, lags=[0.001] * 200, mean_in_flight=1.0, elapsed_s=22.0)


def test_a_good_run() -> None:
    assert judged(closed())["valid"]
    assert judged(closed())["invalid_reasons"] == judged(closed())["notes"] == []


def test_a_client_that_was_late() -> None:
    assert judged(replace(closed(), lags=[0.0] * 199 + [1.0]))["valid"]  # once in two hundred
    late = judged(replace(closed(), lags=[0.0] * 190 + [0.02] * 10))
    assert "event loop lagged 20.0 ms at P99" in late["invalid_reasons"][0]
    assert "real-time priority" in late["invalid_reasons"][0]
    urgent = judged(replace(closed(), lags=[0.02] * 200, is_real_time=True))
    assert urgent["invalid_reasons"][0].endswith("it needs a core of its own")
    short = judged(replace(closed(), lags=[0.02] * 20))
    assert short["valid"]
    assert "too short" in short["notes"][0]


def test_requests_that_were_sent_late() -> None:
    def opened(lag: float) -> dict[str, Any]:
        records = [request(i + lag, t_sched=float(i)) for i in range(20)]
        run = Run(Load("open", rate=1.0), records, 0.0, [0.001] * 200, mean_in_flight=1.1, elapsed_s=20.0)
        return judged(run)

    assert opened(0.005)["valid"]
    (reason,) = opened(0.02)["invalid_reasons"]
    assert "20.0 ms after their time" in reason
    assert "10% of the median TTFT of 100.0 ms" in reason


def test_a_rate_that_was_not_reached() -> None:
    records = [request(2.0 * i + 1, t_sched=float(i)) for i in range(20)]
    run = Run(Load("open", rate=1.0), records, 0.0, [0.001] * 200, mean_in_flight=0.56, elapsed_s=39.1)
    assert any("requests/s were sent" in reason for reason in judged(run)["invalid_reasons"])


@pytest.mark.parametrize(("cached", "header", "valid"), [(1, 0, True), (2, 0, False), (9, 8, True), (12, 8, False)])
def test_cached_prompts(cached: int, header: int, valid: bool) -> None:
    found = judged(closed(cached_tokens=cached), Expected(header_tokens=header))
    assert found["valid"] == valid
    if header:
        assert any("header of 8 tokens" in note for note in found["notes"])
    assert judged(closed(cached_tokens=cached), Expected(is_cold=False))["valid"]


@pytest.mark.parametrize(("n_out", "valid"), [(11, True), (10, False)])
def test_answers_of_another_length(n_out: int, valid: bool) -> None:
    run = closed(n_out=n_out)
    assert judged(run)["valid"] == valid
    natural = judged(run, Expected(has_exact_outputs=False))
    assert natural["valid"]
    assert bool(natural["notes"]) != valid


def test_books_that_do_not_balance() -> None:
    (reason,) = judged(replace(closed(), mean_in_flight=2.0))["invalid_reasons"]
    assert "2.00 requests were in flight, rate x time says 1.00" in reason


def test_nothing_completed() -> None:
    run = closed(error=Failure("http_401", "no key"))
    (reason,) = judged(run)["invalid_reasons"]
    assert "no request completed (http_401 x 20)" in reason


def test_counts_of_different_kinds() -> None:
    run = closed()
    run.records[3].token_source = "chunks"
    assert "different ways" in judged(run)["invalid_reasons"][0]
    assert any("taken for one" in note for note in judged(closed(token_source="chunks"))["notes"])
