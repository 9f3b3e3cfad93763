"""The disk tier over a memory whose pages say what they hold: right bytes or a miss, whatever happens to the files."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from page_memory import PAGE_BYTES, PAGE_SIZE, PageMemory, contents
from ridgeline.engine.disk_tier import DiskTier
from ridgeline.errors import ConfigError

FINGERPRINT = b"f" * 32
TOKENS = list(range(100, 100 + 4 * PAGE_SIZE))
Open = Callable[..., DiskTier]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def opened(path: Path) -> Iterator[Open]:
    """Opens tiers over `path`; all are closed at last."""
    tiers: list[DiskTier] = []

    def open_tier(**options: object) -> DiskTier:
        defaults = {"fingerprint": FINGERPRINT, "max_bytes": 1 << 20, "write_bytes_per_s": 1e12}
        tiers.append(DiskTier(path, PageMemory(), **(defaults | options)))  # type: ignore[arg-type]
        return tiers[-1]

    yield open_tier
    for tier in tiers:
        tier.close()


def memory(tier: DiskTier) -> PageMemory:
    return tier._memory  # type: ignore[return-value]


def store(tier: DiskTier, namespace: str = "", token_ids: list[int] = TOKENS, **options: object) -> None:
    for index in range(len(token_ids) // PAGE_SIZE):
        memory(tier).fill(1, namespace, token_ids, index)
        tier.store(namespace, token_ids, index, 1, **options)  # type: ignore[arg-type]


def num_loadable(tier: DiskTier, namespace: str = "", token_ids: list[int] = TOKENS) -> int:
    """Pages that come back from the first on; their bytes are checked."""
    pages = [(index, 10 + index) for index in range(len(token_ids) // PAGE_SIZE)]
    memory(tier).pages[:] = 0
    count = tier.load(namespace, token_ids, pages)
    for index, page_id in pages[:count]:
        assert np.array_equal(memory(tier).pages[page_id], contents(namespace, token_ids, index))
    return count


def page_files(path: Path) -> list[Path]:
    return sorted(path.glob("*/*.page"))


def test_pages_survive_a_restart(opened: Open, path: Path) -> None:
    first = opened()
    store(first)
    first.close()
    second = opened()
    assert second.lookup("", TOKENS, 0, 99) == 4
    assert second.lookup("", TOKENS, 1, 2) == 2
    assert second.lookup("", [*TOKENS[:-1], 7], 0, 99) == 3
    assert second.lookup("", TOKENS[:-1], 0, 99) == 3
    assert num_loadable(second) == 4
    assert second.stats().num_read == 4
    assert second.load("", TOKENS, [(2, 40), (3, 41)]) == 2
    assert np.array_equal(memory(second).pages[41], contents("", TOKENS, 3))


def test_queued_pages_are_there_at_once_and_the_memory_may_change(opened: Open) -> None:
    tier = opened(write_bytes_per_s=1.0)
    store(tier)
    memory(tier).pages[1] = 0
    assert tier.lookup("", TOKENS, 0, 99) == 4
    assert num_loadable(tier) == 4
    assert tier.stats().num_written < 4


@pytest.mark.parametrize("num_bytes", [0, 31, 33])
def test_a_fingerprint_of_another_length_is_refused(opened: Open, path: Path, num_bytes: int) -> None:
    with pytest.raises(ValueError, match=f"of {num_bytes} bytes, where 32 are needed"):
        opened(fingerprint=bytes(num_bytes))
    assert not path.exists()


def test_namespaces_and_fingerprints_never_share(opened: Open) -> None:
    tier = opened()
    store(tier, "salt:a")
    assert num_loadable(tier, "salt:b") == num_loadable(tier) == 0
    tier.close()
    other = opened(fingerprint=b"g" * 32)
    assert other.lookup("salt:a", TOKENS, 0, 99) == 0
    assert other.stats().num_foreign_pages == 4


def test_files_are_for_the_owner_only(opened: Open, path: Path) -> None:
    tier = opened()
    store(tier)
    assert tier.flush()
    assert {file.stat().st_mode & 0o777 for file in page_files(path)} == {0o600}
    assert path.stat().st_mode & 0o777 == 0o700
    assert {file.parent.stat().st_mode & 0o777 for file in page_files(path)} == {0o700}


def corrupt(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("harm", "count"),
    [
        (corrupt, "num_damaged"),
        (lambda file: file.write_bytes(b""), "num_damaged"),
        (lambda file: os.truncate(file, 300), "num_damaged"),
        (lambda file: shutil.copy(next(f for f in page_files(file.parents[1]) if f != file), file), "num_foreign"),
        (lambda file: file.unlink(), None),
    ],
)
def test_a_bad_file_is_a_miss_and_a_count(
    opened: Open, path: Path, harm: Callable[[Path], object], count: str | None
) -> None:
    tier = opened()
    store(tier)
    assert tier.flush()
    harm(Path(tier._directory._path(tier._chain.pages("", TOKENS, 4)[2][0])))
    assert num_loadable(tier) == 2
    stats = dataclasses.asdict(tier.stats())
    for name in ("num_damaged", "num_foreign", "num_failed", "num_expired"):
        assert stats[name] == (name == count)
    assert tier.lookup("", TOKENS, 0, 99) == 2  # it is gone
    store(tier)
    assert num_loadable(tier) == 4  # and can come again


def test_pages_expire_on_disk(opened: Open, path: Path) -> None:
    tier = opened()
    store(tier, ttl_s=60.0)
    assert tier.flush()
    assert num_loadable(tier) == 4
    assert tier.flush()
    for file in page_files(path):
        os.utime(file, (1, 1))
    assert num_loadable(tier) == 0
    assert tier.stats().num_expired == 1


def test_the_bound_holds_and_the_least_recently_used_goes_first(opened: Open, path: Path) -> None:
    def total() -> int:
        return sum(file.stat().st_size for file in page_files(path))

    prompts = [[100 * i + j for j in range(2 * PAGE_SIZE)] for i in range(4)]
    tier = opened(max_bytes=6 * (PAGE_BYTES + 256))
    for prompt in prompts[:3]:
        store(tier, token_ids=prompt)
        assert tier.flush()
    assert num_loadable(tier, token_ids=prompts[0]) == 2  # used again: now the second prompt is the oldest
    assert tier.flush()
    tier.close()
    tier = opened(max_bytes=6 * (PAGE_BYTES + 256))  # a restart keeps the order
    store(tier, token_ids=prompts[3])
    assert tier.flush()
    assert total() == tier.stats().num_bytes <= tier.stats().max_bytes
    assert tier.stats().num_evicted > 0
    assert [tier.lookup("", prompt, 0, 9) for prompt in prompts][0::3] == [2, 2]
    assert tier.lookup("", prompts[1], 0, 9) < 2
    tier.close()
    smaller = opened(max_bytes=2 * (PAGE_BYTES + 256))
    assert total() == smaller.stats().num_bytes <= smaller.stats().max_bytes


def test_a_bound_that_holds_no_pages_is_refused(opened: Open) -> None:
    with pytest.raises(ConfigError, match="holds no two KV pages"):
        opened(max_bytes=PAGE_BYTES)


def test_a_full_queue_drops(opened: Open) -> None:
    tier = opened(max_pending_bytes=PAGE_BYTES, write_bytes_per_s=1.0)
    with tier._writing:  # the disk hangs
        store(tier)
        assert tier.stats().num_dropped == 3
    assert num_loadable(tier) == 1


def test_at_shutdown_a_full_queue_waits(opened: Open) -> None:
    tier = opened(max_pending_bytes=PAGE_BYTES, write_bytes_per_s=1.0)
    store(tier, wait=True)
    assert tier.stats().num_dropped == 0
    assert num_loadable(tier) == 4


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("a fault of ours")])
def test_what_cannot_be_written_is_a_count(opened: Open, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def refuse(*_: object) -> None:
        raise error

    tier = opened()
    monkeypatch.setattr(os, "rename", refuse)
    store(tier)
    assert tier.flush()
    monkeypatch.undo()
    assert tier.stats().num_failed == 4
    assert num_loadable(tier) == 0


def test_leftovers_of_a_kill_are_removed_and_strangers_left_alone(opened: Open, path: Path) -> None:
    tier = opened()
    store(tier)
    tier.close()
    directory = page_files(path)[0].parent
    (directory / ("0" * 64 + ".tmp")).write_bytes(b"half a pa")
    (directory / "notes.txt").write_text("mine")
    (path / "photos").mkdir()
    tier = opened()
    assert sorted(p.suffix for p in directory.iterdir()) == [".page"] * 4 + [".txt"]
    assert (path / "photos").exists()
    assert num_loadable(tier) == 4


def test_one_process_at_a_time(opened: Open) -> None:
    tier = opened()
    with pytest.raises(ConfigError, match="in use by another process"):
        opened()
    tier.close()
    opened()


def test_a_path_that_is_a_file_is_told(opened: Open, path: Path) -> None:
    path.write_text("")
    with pytest.raises(ConfigError, match="cannot be used"):
        opened()


def test_clear_forgets_queue_and_disk(opened: Open, path: Path) -> None:
    tier = opened()
    store(tier, "a")
    assert tier.flush()
    store(tier, "b")
    assert tier.clear() == 8
    assert num_loadable(tier, "a") == num_loadable(tier, "b") == 0
    tier.close()
    assert page_files(path) == []


def test_reads_while_the_disk_is_written_and_cleared(opened: Open) -> None:
    tier = opened(max_bytes=20 * (PAGE_BYTES + 256))
    done = threading.Event()

    def clear_often() -> None:
        while not done.is_set():
            tier.clear()
            tier.stats()

    other = threading.Thread(target=clear_often)
    other.start()
    try:
        for i in range(60):
            prompt = [i % 7, *range(1, 4 * PAGE_SIZE)]
            store(tier, token_ids=prompt)
            num_loadable(tier, token_ids=prompt)
    finally:
        done.set()
        other.join(30)
    assert tier.stats().num_damaged == tier.stats().num_foreign == 0


class Histories(RuleBasedStateMachine):
    """Any order of stores, loads, clears, restarts, kills and harm: what comes back is right, and the bound holds."""

    MAX_BYTES = 8 * (PAGE_BYTES + 256)
    sequences = st.lists(st.integers(0, 2), min_size=1, max_size=3).map(
        lambda x: [t for t in x for _ in range(PAGE_SIZE)]
    )
    namespaces = st.sampled_from(["", "a"])

    @initialize()
    def start(self) -> None:
        self.path = Path(tempfile.mkdtemp())
        self.open()

    def open(self) -> None:
        self.tier = DiskTier(
            self.path, PageMemory(), fingerprint=FINGERPRINT, max_bytes=self.MAX_BYTES, write_bytes_per_s=1e12
        )

    @rule(namespace=namespaces, token_ids=sequences)
    def store(self, namespace: str, token_ids: list[int]) -> None:
        store(self.tier, namespace, token_ids)

    @rule(namespace=namespaces, token_ids=sequences)
    def load(self, namespace: str, token_ids: list[int]) -> None:
        found = self.tier.lookup(namespace, token_ids, 0, 9)
        assert num_loadable(self.tier, namespace, token_ids) <= found

    @rule()
    def clear(self) -> None:
        self.tier.clear()
        assert page_files(self.path) == []

    @rule()
    def restart(self) -> None:
        self.tier.close()
        self.open()

    @rule(cut=st.integers(0, 600), data=st.data())
    def kill(self, cut: int, data: st.DataObject) -> None:
        """As SIGKILL leaves it: the queue is lost, the page under way is a part of a temporary file; then a power cut
        shortens a file that had been renamed."""
        self.tier.clear() if data.draw(st.booleans()) else self.tier.flush()
        self.tier.close()
        files = page_files(self.path)
        if files:
            victim = data.draw(st.sampled_from(files))
            whole = victim.read_bytes()
            victim.with_suffix(".tmp").write_bytes(whole[:cut])
            victim.write_bytes(whole[:cut])
        self.open()
        assert not list(self.path.glob("*/*.tmp"))

    @invariant()
    def bounded(self) -> None:
        if hasattr(self, "tier"):
            assert self.tier.flush()
            assert sum(file.stat().st_size for file in page_files(self.path)) == self.tier.stats().num_bytes
            assert self.tier.stats().num_bytes <= self.MAX_BYTES

    def teardown(self) -> None:
        if hasattr(self, "tier"):
            self.tier.close()
            shutil.rmtree(self.path)


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=25, stateful_step_count=25)
