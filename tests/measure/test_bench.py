"""Whole runs in virtual time, against a client whose every request takes as long as is told: closed-form figures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ridgeline.errors import ConfigError
from ridgeline.measure.bench import Bench, Settings
from ridgeline.measure.capacity import find_capacity
from ridgeline.measure.endpoints import Capabilities, Endpoint, GenerationRequest
from ridgeline.measure.events import Failure, Record, Recorder
from ridgeline.measure.point import Load
from ridgeline.measure.slo import parse_slo
from ridgeline.measure.workloads import Block, Session, Workload
from virtual_time import now, run

ENDPOINT = Endpoint("openai", "http://test", "m", "vllm", Capabilities(completions=True, ignore_eos=True))
NO_PREDICTION: dict[str, Any] = {"reason": "none"}


class PacedClient:
    """First token after `ttft` seconds, the others `tpot` apart; at most `slots` at once, the others wait."""

    def __init__(self, *, ttft: float = 1.0, tpot: float = 0.1, slots: int = 1000, **record: Any) -> None:
        self.endpoint = ENDPOINT
        self.ttft, self.tpot = ttft, tpot
        self.record = record
        self.requests: list[GenerationRequest] = []
        self.fails: Callable[[int], bool] = lambda index: False
        self._slots = asyncio.Semaphore(slots)

    def clock(self) -> float:
        return now()

    async def stream(self, request: GenerationRequest, *, t_sched: float | None = None, index: int = 0) -> Record:
        self.requests.append(request)
        sent = now()
        record = Record(
            t_sched=sent if t_sched is None else t_sched,
            t_send=sent,
            index=index,
            wanted_prompt_tokens=request.prompt_tokens,
            wanted_output_tokens=request.max_tokens,
        )
        record.prompt_tokens, record.cached_tokens = len((request.prompt or "").split()), 0
        for name, value in self.record.items():
            setattr(record, name, value)
        recorder = Recorder(record)
        if self.fails(len(self.requests)):
            return recorder.finish(now(), Failure("http_429", "slow down"))
        async with self._slots:
            for i in range(request.max_tokens):
                await asyncio.sleep(self.tpot if i else self.ttft)
                recorder.chunk(now(), [("content", "x")])
        recorder.usage(request.max_tokens, "usage")
        return recorder.finish(now())


def benched(settings: Settings, **client: Any) -> tuple[Bench, PacedClient]:
    async def main() -> tuple[Bench, PacedClient]:
        paced = PacedClient(**client)
        bench = Bench(paced, settings, predict=lambda load: NO_PREDICTION, on_point=seen.append)  # type: ignore[arg-type]
        await bench.run()
        return bench, paced

    seen: list[dict[str, Any]] = []
    bench, paced = run(main())
    assert seen == bench.points
    return bench, paced


FIXED = Workload("fixed", 50, 11)


def test_closed_loop() -> None:
    """Each request takes 1 + 10 x 0.1 = 2 s: 4 at once make 2 requests and 22 tokens a second."""
    settings = Settings((Load("closed", 1), Load("closed", 4)), FIXED, num_requests=40)
    bench, _ = benched(settings)
    for point, workers in zip(bench.points, (1, 4), strict=True):
        assert point["valid"], point["invalid_reasons"]
        assert (point["requests"], point["completed"], point["concurrency"]) == (40, 40, workers)
        assert point["ttft_s"]["p50"] == pytest.approx(1.0)
        assert point["tpot_s"]["p99"] == pytest.approx(0.1)
        assert point["e2e_s"]["mean"] == pytest.approx(2.0)
        assert point["itl_s"]["count"] == 40 * 10
        assert point["output_tokens_per_s"] == pytest.approx(5.5 * workers, rel=0.02)
        assert point["duration_s"] == pytest.approx(40 * 2 / workers)
        assert point["client"]["in_flight_mean"] == pytest.approx(workers)
        assert point["client"]["in_flight_by_littles_law"] == pytest.approx(workers)
        assert point["predicted"] == NO_PREDICTION
        assert point["token_source"] == "usage"


def test_open_loop_on_a_server_of_one_slot_counts_the_queue() -> None:
    """A request a second, each takes 2 s: the n-th waits n seconds, though every one was sent in time."""
    settings = Settings(
        (Load("open", rate=1.0),), FIXED, num_requests=20, arrivals="constant", slo=parse_slo("ttft=5s")
    )
    bench, _ = benched(settings, slots=1)
    (point,) = bench.points
    ttfts = sorted(record.t_1 - record.t_sched for record in bench.runs[0].records if record.t_1)
    assert ttfts == pytest.approx([1.0 + i for i in range(20)])
    assert point["attainment"] == pytest.approx(5 / 20)
    assert point["goodput_rps"] == pytest.approx(5 / 20)
    assert point["saturated"]
    assert any("over-saturated" in note for note in point["notes"])
    assert point["client"]["schedule_lag_p99_s"] == pytest.approx(0.0, abs=1e-6)
    assert point["client"]["achieved_rate"] == pytest.approx(1.0)


def test_a_barrier_costs_what_uneven_lengths_waste() -> None:
    """Slots are idle while the longest answer goes on: mean / max of (50, 100, 200, 500) tokens is the bound."""
    settings = Settings((Load("closed", 4), Load("barrier", 4)), Workload("uneven", 50), num_requests=80)
    bench, _ = benched(settings, ttft=0.001, tpot=0.001)
    continuous, static = (point["output_tokens_per_s_whole_run"] for point in bench.points)
    assert static / (4 / 0.001) == pytest.approx((850 / 4) / 500)
    assert continuous / static > 1.8
    lens = [sorted(record.n_out or 0 for record in part.records) for part in bench.runs]
    assert lens[0] == lens[1]


def test_a_run_by_time_ends_and_finishes_what_it_began() -> None:
    bench, _ = benched(Settings((Load("closed", 2),), FIXED, duration_s=9.0))
    assert bench.points[0]["requests"] == 2 * 5
    bench, _ = benched(Settings((Load("open", rate=2.0),), FIXED, duration_s=10.0))
    assert bench.points[0]["requests"] == 20


def test_traces_are_replayed_at_their_times() -> None:
    trace = (Session(40, 3, time=0.5), Session(60, 2, (Block(1, 20),), time=4.0))
    bench, client = benched(Settings((Load("trace"),), trace=trace))
    records = bench.runs[0].records
    assert [r.t_sched - bench.runs[0].started for r in records] == pytest.approx([0.5, 4.0])
    assert [r.n_out for r in records] == [3, 2]
    assert client.requests[-1].cache  # blocks are there to be shared


def test_chats_go_turn_by_turn() -> None:
    workload = Workload("chat", 30, 4, num_turns=3)
    bench, client = benched(Settings((Load("closed", 2),), workload, num_requests=12))
    assert bench.points[0]["requests"] == 12
    lens = sorted(len((request.prompt or "").split()) for request in client.requests[-12:])
    assert len(set(lens)) == 3


def test_prompts_are_new_at_every_point_and_run_and_lengths_are_not() -> None:
    settings = Settings((Load("closed", 2), Load("closed", 2)), Workload("uniform", 60, 3), num_requests=10)
    _, first = benched(settings)
    _, second = benched(settings)
    prompts = [request.prompt for request in first.requests + second.requests]
    assert len(set(prompts)) == len(prompts)
    wanted = [[r.prompt_tokens for r in client.requests if r.max_tokens != 1] for client in (first, second)]
    assert wanted[0] == wanted[1]


def test_failures_are_counted_by_kind() -> None:
    async def main() -> Bench:
        client = PacedClient()
        client.fails = lambda count: count > 3 and count % 2 == 0  # beyond the fit and the warm-up
        settings = Settings((Load("closed", 1),), FIXED, num_requests=10, slo=parse_slo("ttft=2s"))
        bench = Bench(client, settings, predict=lambda load: NO_PREDICTION, on_point=lambda point: None)  # type: ignore[arg-type]
        await bench.run()
        return bench

    (point,) = run(main()).points
    assert (point["completed"], point["failed"], point["errors"]) == (5, 5, {"http_429": 5})
    assert point["slo"]["misses"]["failed"] == 5
    assert any("count as missed" in note for note in point["notes"])


def test_stopping_keeps_what_was_measured() -> None:
    async def main() -> Bench:
        settings = Settings((Load("closed", 4), Load("closed", 8)), FIXED, num_requests=100)
        bench = Bench(PacedClient(), settings, predict=lambda load: NO_PREDICTION, on_point=lambda point: None)  # type: ignore[arg-type]
        task = asyncio.create_task(bench.run())
        while len(bench.progress.records) < 8:
            await asyncio.sleep(0.5)
        bench.stop()
        await task
        return bench

    bench = run(main())
    (point,) = bench.points
    assert point["partial"]
    assert point["completed"] == 8
    assert point["interrupted"] == 4
    assert any("ended early, with 4 requests in flight" in note for note in point["notes"])


def test_a_context_that_is_too_short_is_told_before() -> None:
    async def main() -> None:
        client = PacedClient()
        client.endpoint = replace(ENDPOINT, context_len=60)
        await Bench(client, Settings((Load("closed", 1),), FIXED), predict=dict, on_point=print).run()  # type: ignore[arg-type]

    with pytest.raises(ConfigError, match="61 tokens are wanted, the server's context is 60"):
        run(main())


@pytest.mark.parametrize(("loaded", "num_ctx"), [(None, 764), (512, 764), (4096, 4096)])
def test_ollama_gets_one_context_that_holds_every_request(loaded: int | None, num_ctx: int) -> None:
    """600 + 100 tokens and some slack; a larger one that it has already is not made smaller."""

    async def main() -> list[GenerationRequest]:
        paced = PacedClient()
        paced.endpoint = replace(ENDPOINT, kind="ollama", server="ollama", context_len=8192)
        workload = Workload(input_len=600, output_len=100)
        settings = Settings((Load("closed", 2),), workload, num_requests=4, loaded_context=loaded)
        bench = Bench(paced, settings, predict=lambda load: NO_PREDICTION, on_point=lambda point: None)  # type: ignore[arg-type]
        await bench.run()
        return paced.requests

    requests = run(main())
    assert len(requests) == 2 + 2 + 4  # to fit, to warm up, to measure: another value in one of them reloads the model
    assert {request.num_ctx for request in requests} == {num_ctx}


@pytest.mark.parametrize(("limit", "points"), [(10.0, 16), (0.3, 16), (1000.0, 30)])
def test_capacity_is_found_by_doubling_and_bisection(limit: float, points: int) -> None:
    tried: list[float] = []

    async def meets(rate: float) -> bool:
        tried.append(rate)
        return rate <= limit

    found = asyncio.run(find_capacity(meets, 1.0, most_points=points))
    assert found.best is not None
    assert found.broken is not None
    assert found.best <= limit < found.broken <= 1.05 * found.best
    assert len(tried) <= 16


def test_no_rate_may_do() -> None:
    async def never(rate: float) -> bool:
        return False

    found = asyncio.run(find_capacity(never, 64.0))
    assert (found.best, found.broken) == (None, 1.0)


def test_capacity_of_a_server_with_slots() -> None:
    """One slot of 20 ms: 50 requests a second is what it can do."""
    slo = parse_slo("ttft=40ms")
    settings = Settings(
        (Load("open", rate=200.0),), FIXED, num_requests=60, arrivals="constant", slo=slo, seeks_capacity=True
    )
    bench, _ = benched(settings, ttft=0.01, tpot=0.001, slots=1)
    assert bench.capacity is not None
    assert bench.capacity.best == pytest.approx(50, rel=0.1)
    assert len(bench.points) > 3


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"cached_tokens": 5}, "came from a prefix cache"),
        ({"prompt_tokens": 80}, "prompt lengths are off: 80.0 tokens on average, 50.0"),
        ({"cached_tokens": None}, None),
        ({"cached_tokens": 0}, None),
    ],
)
def test_what_the_server_reports_decides_validity(record: dict[str, Any], reason: str | None) -> None:
    bench, _ = benched(Settings((Load("closed", 1),), FIXED, num_requests=10), **record)
    (point,) = bench.points
    assert point["valid"] == (reason is None)
    assert all(reason in text for text in point["invalid_reasons"])  # type: ignore[operator]
    if record.get("cached_tokens", 0) is None:
        assert point["hit_rate"] is None
        assert any("unverified" in note for note in point["notes"])


def test_a_workload_that_shares_may_hit() -> None:
    workload = Workload("shared-prefix", 50, 11)
    bench, _ = benched(Settings((Load("closed", 1),), workload, num_requests=10), cached_tokens=25)
    assert bench.points[0]["valid"]
    assert bench.points[0]["hit_rate"] == pytest.approx(0.5, rel=0.05)
