"""Windows and rates of hand-made runs."""

from __future__ import annotations

import pytest

from ridgeline.measure.events import Record, TokenEvent
from ridgeline.measure.point import Load, Run, table
from ridgeline.measure.throughput import (
    Window,
    in_flight,
    is_saturated,
    output_tokens_in,
    prompt_tokens_in,
    steady_window,
    whole_run,
)


def request(start: float, end: float, num_tokens: int = 1, *, prompt: int = 10, cached: int = 0) -> Record:
    """Tokens arrive evenly, the last at `end`."""
    step = (end - start) / num_tokens
    events = [TokenEvent(start + step * (i + 1), "content", 1) for i in range(num_tokens)]
    return Record(
        t_sched=start,
        t_send=start,
        t_1=events[0].time,
        t_last=end,
        t_end=end,
        events=events,
        n_out=num_tokens,
        token_source="usage",
        prompt_tokens=prompt,
        cached_tokens=cached,
    )


def test_in_flight_counts() -> None:
    assert in_flight([request(0, 3), request(1, 2)]) == [(0, 1), (1, 2), (2, 1), (3, 0)]
    assert in_flight([request(0, 1), request(1, 2)]) == [(0, 1), (1, 0), (1, 1), (2, 0)]


def test_steady_state_leaves_out_filling_and_draining() -> None:
    records = [request(0, 10), request(2, 12), request(12, 20)]
    assert steady_window(records, 2) == Window(2, 10)
    assert steady_window(records, 1) == Window(0, 20)
    assert steady_window(records, 5) is None
    assert steady_window([], 1) is None


def test_tokens_count_where_they_arrive() -> None:
    records = [request(0, 10, 10), request(2, 12, 5)]
    assert output_tokens_in(records, Window(2, 10)) == 9 + 4
    assert output_tokens_in(records, whole_run(records) or Window(0, 0)) == 15
    assert prompt_tokens_in([request(0, 1, prompt=10, cached=4), request(0, 5, prompt=100)], Window(0, 2)) == 6


def test_headline_is_the_steady_state_with_the_whole_run_beside_it() -> None:
    records = [request(0, 10, 10), request(2, 12, 10)]
    figures = table(Run(Load("closed", 2), records, started=0.0), None)
    assert figures["output_tokens_per_s"] == pytest.approx((9 + 8) / 8)  # one of the first's came at 2
    assert figures["output_tokens_per_s_whole_run"] == pytest.approx(20 / 12)
    assert figures["goodput_rps"] is None
    assert figures["attainment"] is None


@pytest.mark.parametrize("load", [Load("barrier", 2), Load("closed", 2, scheduler="static")])
def test_static_batching_has_no_steady_state(load: Load) -> None:
    records = [request(0, 10, 10), request(0, 2, 2), request(10, 15, 5)]
    figures = table(Run(load, records, started=0.0), None)
    assert figures["output_tokens_per_s"] == figures["output_tokens_per_s_whole_run"] == pytest.approx(17 / 15)


def test_a_growing_backlog_is_saturation_and_a_steady_one_is_not() -> None:
    steady = [request(i / 10, i / 10 + 0.5) for i in range(200)]
    assert not is_saturated(steady, Window(0, 20))
    growing = [request(i / 10, i / 5 + 0.5) for i in range(200)]  # served at half the rate
    assert is_saturated(growing, Window(0, 20))


def test_sources_of_counts_are_never_mixed() -> None:
    records = [request(0, 1), request(0, 1)]
    assert table(Run(Load("closed", 1), records, started=0.0), None)["token_source"] == "usage"
    records[1].token_source = "chunks"
    assert table(Run(Load("closed", 1), records, started=0.0), None)["token_source"] == "mixed"


def test_nothing_at_all_is_a_table_too() -> None:
    figures = table(Run(Load("closed", 1), [], started=0.0), None)
    assert figures["requests"] == 0
    assert figures["output_tokens_per_s"] is None
    assert figures["ttft_s"]["count"] == 0
