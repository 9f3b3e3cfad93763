"""Load patterns in virtual time: when each job starts, exactly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import ConfigError
from ridgeline.measure.arrivals import arrival_times, num_arrivals
from ridgeline.measure.load import Job, Watch, barrier, closed_loop, open_loop
from virtual_time import now, run


class Served:
    """Jobs that take as long as they are told; `started` and `scheduled` say when."""

    def __init__(self) -> None:
        self.started: list[float] = []
        self.scheduled: list[float | None] = []
        self.in_flight = self.most = 0

    def job(self, duration: float) -> Job:
        async def work(t_sched: float | None) -> None:
            self.started.append(now())
            self.scheduled.append(t_sched)
            self.in_flight += 1
            self.most = max(self.most, self.in_flight)
            await asyncio.sleep(duration)
            self.in_flight -= 1

        return work


def clock() -> Callable[[], float]:
    return asyncio.get_running_loop().time


def test_closed_loop_starts_the_next_when_one_ends() -> None:
    served = Served()

    async def main() -> None:
        await closed_loop([served.job(d) for d in (1.0, 4.0, 1.0, 1.0, 1.0)], 2, clock=clock())

    run(main())
    assert served.started == [0.0, 0.0, 1.0, 2.0, 3.0]
    assert served.most == 2
    assert served.scheduled == [None] * 5


def test_closed_loop_finishes_what_runs_when_time_is_up() -> None:
    served = Served()

    async def main() -> float:
        await closed_loop((served.job(2.0) for _ in range(99)), 3, clock=clock(), until=3.0)
        return now()

    assert run(main()) == pytest.approx(4.0)
    assert len(served.started) == 6
    assert served.in_flight == 0


def test_open_loop_is_never_delayed_by_answers() -> None:
    served = Served()
    times = [0.5, 0.6, 0.6, 5.0]

    async def main() -> None:
        await open_loop([served.job(100.0) for _ in times], times, clock=clock())

    run(main())
    assert served.started == pytest.approx(times)
    assert served.scheduled == times
    assert served.most == 4


def test_a_barrier_waits_for_the_slowest() -> None:
    served = Served()

    async def main() -> None:
        await barrier([served.job(d) for d in (1.0, 5.0, 1.0, 1.0, 2.0)], 2, clock=clock())

    run(main())
    assert served.started == [0.0, 0.0, 5.0, 5.0, 6.0]


def test_the_watch_integrates_requests_in_flight() -> None:
    async def main() -> Watch:
        watch = Watch(clock())

        async def one(start: float, duration: float) -> None:
            await asyncio.sleep(start)
            with watch.request():
                await asyncio.sleep(duration)

        await asyncio.gather(one(1.0, 4.0), one(2.0, 1.0))
        return watch

    watch = run(main())
    assert watch.mean_in_flight == pytest.approx((4.0 + 1.0) / 4.0)
    assert watch.elapsed_s == pytest.approx(4.0)
    assert watch.now_in_flight == 0


def test_the_watch_sees_a_loop_that_was_blocked() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        watch = Watch(clock())
        async with watch.beating():
            await asyncio.sleep(0.1)
            loop._now += 0.5  # type: ignore[attr-defined]  # as if something had held the loop for so long
            await asyncio.sleep(0.1)
        return watch.lags

    assert max(run(main())) == pytest.approx(0.5, abs=0.011)


@pytest.mark.parametrize("kind", ["poisson", "gamma", "constant"])
def test_arrivals_keep_their_rate_and_follow_from_the_seed(kind: str) -> None:
    times = arrival_times(kind, 5.0, 4_000, seed=1)
    assert times == sorted(times)
    assert times[0] > 0
    assert len(times) / times[-1] == pytest.approx(5.0, rel=0.06)
    assert times == arrival_times(kind, 5.0, 4_000, seed=1)
    assert (times == arrival_times(kind, 5.0, 4_000, seed=2)) == (kind == "constant")


def test_constant_arrivals_are_constant() -> None:
    assert arrival_times("constant", 4.0, 4, seed=0) == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert num_arrivals(4.0, 2.5) == 10


def test_bursts() -> None:
    """Squared coefficient of variation of gamma gaps: 1 / burstiness."""
    for burstiness in (0.25, 4.0):
        times = arrival_times("gamma", 1.0, 20_000, seed=3, burstiness=burstiness)
        gaps = [later - earlier for earlier, later in zip([0.0, *times], times, strict=False)]
        mean = sum(gaps) / len(gaps)
        variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
        assert variance / mean**2 == pytest.approx(1 / burstiness, rel=0.1)


def test_what_is_no_arrival_process() -> None:
    for kind, rate in (("poisson", 0.0), ("poisson", -1.0), ("uniform", 1.0)):
        with pytest.raises(ConfigError):
            arrival_times(kind, rate, 1, seed=0)


@given(st.lists(st.floats(0.0, 5.0), max_size=20), st.integers(1, 5))
def test_every_job_runs_once(durations: list[float], workers: int) -> None:
    for pattern in (closed_loop, barrier):
        served = Served()

        async def main(pattern: Callable[..., object] = pattern, served: Served = served) -> None:
            await pattern([served.job(d) for d in durations], workers, clock=clock())  # type: ignore[misc]

        run(main())
        assert len(served.started) == len(durations)
        assert served.most <= workers


def test_a_timer_that_rings_early_sends_nothing_early(monkeypatch: pytest.MonkeyPatch) -> None:
    sleep, served = asyncio.sleep, Served()
    monkeypatch.setattr("ridgeline.measure.load.asyncio.sleep", lambda wait: sleep(wait - min(0.001, wait / 2)))

    async def main() -> None:
        start = now()
        await open_loop([served.job(0.0)] * 3, [start + 0.25, start + 0.5, start + 0.5], clock=clock())

    run(main())
    assert all(began >= asked for began, asked in zip(served.started, served.scheduled, strict=True))
