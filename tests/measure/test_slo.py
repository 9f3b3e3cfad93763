"""Goodput, attainment and the early-stopping verdict."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import ConfigError
from ridgeline.measure.events import Failure, Record
from ridgeline.measure.point import Load, Run, table
from ridgeline.measure.slo import Slo, parse_slo, verdict


def request(start: float, ttft: float, tpot: float = 0.01, n_out: int = 11) -> Record:
    first = start + ttft
    last = first + tpot * (n_out - 1)
    return Record(t_sched=start, t_send=start, t_1=first, t_ans=first, t_last=last, t_end=last, n_out=n_out)


def test_goodput_counts_what_met_every_limit() -> None:
    """10 requests a second, of which 3 miss: goodput is 7 a second."""
    records = [request(0.1 * (i + 1), 2.0 if i in (2, 5, 8) else 0.2) for i in range(10)]
    figures = table(Run(Load("open", rate=10.0), records, started=0.0), parse_slo("ttft=1s"))
    assert figures["goodput_rps"] == pytest.approx(7.0)
    assert figures["attainment"] == 0.7
    assert figures["slo"]["misses"] == {"failed": 0, "ttft": 3}


def test_failures_count_as_missed() -> None:
    failed = Record(t_sched=1.0, t_send=1.0, t_end=1.1, error=Failure("http_500", "no"))
    records = [request(0.5, 0.1), failed]
    figures = table(Run(Load("open", rate=2.0), records, started=0.0), parse_slo("ttft=1s"))
    assert figures["attainment"] == 0.5
    assert figures["goodput_rps"] == pytest.approx(1.0)
    assert figures["errors"] == {"http_500": 1}
    assert (figures["requests"], figures["completed"], figures["failed"]) == (2, 1, 1)


def test_limits_hold_from_the_scheduled_time() -> None:
    late = request(1.0, 0.5)
    late.t_sched = 0.0
    assert parse_slo("ttft=1s").is_met(request(1.0, 0.5))
    assert not parse_slo("ttft=1s").is_met(late)


def test_every_limit_counts() -> None:
    slo = parse_slo("ttft=1s, tpot=50ms, e2e=2s, gap=0.2s")
    assert slo.limits == {"ttft": 1.0, "tpot": 0.05, "e2e": 2.0, "gap": 0.2}
    assert slo.is_met(request(0.0, 0.5))
    assert not slo.is_met(request(0.0, 0.5, tpot=0.06))
    assert not slo.is_met(request(0.0, 1.5, tpot=0.01))
    assert not slo.is_met(request(0.0, 0.9, tpot=0.04, n_out=100))


def test_an_answer_of_one_token_cannot_miss_tpot() -> None:
    assert parse_slo("ttft=1s,tpot=1ms").is_met(request(0.0, 0.5, n_out=1))
    assert not parse_slo("ttft=1s,tpot=1ms").is_met(request(0.0, 1.5, n_out=1))


@pytest.mark.parametrize("text", ["ttft", "ttft=1", "speed=1s", "ttft=-1s", ""])
def test_what_is_no_slo(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_slo(text)


def test_mlperfs_early_stopping() -> None:
    """459 requests without a miss prove 99 % at 0.99 confidence, one fewer does not."""
    assert verdict(459, 0, 0.99).result == "pass"
    undecided = verdict(458, 0, 0.99)
    assert (undecided.result, undecided.more_requests) == ("undecided", 1)
    assert verdict(0, 0, 0.99).more_requests == 459
    assert verdict(100, 10, 0.99).result == "fail"
    assert verdict(44, 0, 0.9).result == "pass"


@given(st.integers(0, 300), st.integers(0, 30), st.sampled_from([0.8, 0.9, 0.99]))
def test_the_requests_still_needed_are_enough_and_no_more(requests: int, misses: int, target: float) -> None:
    misses = min(requests, misses)
    found = verdict(requests, misses, target)
    if found.result == "undecided" and found.more_requests is not None:
        assert verdict(requests + found.more_requests, misses, target).result == "pass"
        assert verdict(requests + found.more_requests - 1, misses, target).result == "undecided"


def test_an_attainment_must_be_a_share() -> None:
    with pytest.raises(ConfigError):
        parse_slo("ttft=1s", 1.0)
    assert Slo({"ttft": 1.0}).target == 0.9
