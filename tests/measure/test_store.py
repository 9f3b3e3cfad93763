"""Runs come back as they were saved, and two of them are compared without mistaking noise for a change."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from ridgeline.errors import ConfigError
from ridgeline.measure.compare import bootstrap, compare
from ridgeline.measure.events import Failure, Record, TokenEvent
from ridgeline.measure.store import Store

POINT = {"load": "closed", "concurrency": 4, "rate": None, "output_tokens_per_s": 10.0, "valid": True}


def summary(started: str = "2026-01-02T03:04:05+00:00", **fields: Any) -> dict[str, Any]:
    return {"started": started, "model": "m", "server": "s", "valid": True, "points": [POINT], **fields}


def request(ttft: float, tpot: float = 0.01, start: float = 5.0) -> Record:
    events = [TokenEvent(start + ttft, "content", 3), TokenEvent(start + ttft + tpot, "reasoning", 2)]
    return Record(
        t_sched=start,
        t_send=start,
        t_1=events[0].time,
        t_last=events[1].time,
        t_end=events[1].time,
        events=events,
        n_out=2,
    )


def test_runs_come_back(tmp_path: Path) -> None:
    store = Store(tmp_path / "new")
    failed = Record(t_sched=1.0, t_send=1.0, error=Failure("timeout", "silent"))
    first = store.save(summary(), [[request(0.5), failed]])
    second = store.save(summary(seed=2), [[request(0.25)]])
    assert (first, second) == ("20260102030405", "20260102030405-2")
    assert [run["id"] for run in store.runs()] == [first, second]
    loaded, ((good, bad),) = store.load("last-1")
    assert loaded == summary() | {"id": first}
    assert good == request(0.5)
    assert bad == failed
    assert store.load("last")[0]["seed"] == 2


def test_texts_are_not_kept(tmp_path: Path) -> None:
    record = request(0.5)
    record.text = record.reasoning = "something private"
    run_id = Store(tmp_path).save(summary(), [[record]])
    assert "private" not in (tmp_path / f"{run_id}.jsonl").read_text()


@pytest.mark.parametrize("name", ["last", "last-7", "2019", "last-x"])
def test_runs_that_are_not_there(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="is not there"):
        Store(tmp_path).load(name)


def test_an_ambiguous_beginning(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for _ in range(2):
        store.save(summary(), [[]])
    with pytest.raises(ConfigError, match="ambiguous"):
        store.load("2026")


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="XDG_DATA_HOME"):
        Store(tmp_path / "file" / "below").runs()


def noisy(mean: float, seed: int, count: int = 60) -> list[Record]:
    rng = random.Random(seed)
    return [request(rng.gauss(mean, 0.1), rng.gauss(0.01, 0.001)) for _ in range(count)]


def test_a_real_change_is_told_from_noise() -> None:
    before, after = (summary(), [noisy(1.0, 1)]), (summary(), [noisy(1.3, 2)])
    (point,) = compare(before, after)
    assert point["ttft_s"]["verdict"] == "slower"
    assert point["ttft_s"]["change"] == pytest.approx(0.3, abs=0.05)
    low, high = point["ttft_s"]["interval"]
    assert low < point["ttft_s"]["change"] < high
    assert point["tpot_s"]["verdict"] == "no difference shown"
    assert compare(after, before)[0]["ttft_s"]["verdict"] == "faster"


def test_loads_that_only_one_run_has_are_left_out() -> None:
    other = summary(points=[POINT | {"concurrency": 8}])
    assert compare((summary(), [[]]), (other, [[]])) == []
    assert compare((summary(), [[]]), (summary(), [noisy(1.0, 1)]))[0]["ttft_s"]["verdict"] == "no data"


def test_the_bootstrap_agrees_with_theory() -> None:
    """Two means of n normal values differ by chance with a standard deviation of sigma sqrt(2 / n)."""
    rng = random.Random(5)
    old, new = ([rng.gauss(0, 1) for _ in range(400)] for _ in range(2))
    low, high = bootstrap(old, new)
    assert (high - low) / 2 == pytest.approx(1.96 * (2 / 400) ** 0.5, rel=0.15)
