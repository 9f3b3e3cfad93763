from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ridgeline.engine.pages import PagePool
from ridgeline.errors import ConfigError

NUM_PAGES = 12


class PoolMachine(RuleBasedStateMachine):
    """Against a model that is a list of holdings and a set of stored pages."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(NUM_PAGES)
        self.holdings: list[list[int]] = []
        self.stored: set[int] = set()

    @property
    def held(self) -> set[int]:
        return {page for pages in self.holdings for page in pages}

    @rule(count=st.integers(0, NUM_PAGES))
    def allocate(self, count: int) -> None:
        known = self.held | self.stored
        if count > self.pool.num_free:
            with pytest.raises(ValueError, match=f"{count} pages wanted"):
                self.pool.allocate(count)
            return
        pages = self.pool.allocate(count)
        assert len(set(pages)) == count
        assert known.isdisjoint(pages)
        assert all(0 < page < NUM_PAGES for page in pages)
        self.holdings.append(pages)

    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        if self.holdings:
            pages = data.draw(st.sampled_from(self.holdings))
            self.pool.share(pages)
            self.holdings.append(list(pages))

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.holdings:
            index = data.draw(st.integers(0, len(self.holdings) - 1))
            self.pool.release(self.holdings.pop(index))

    @precondition(lambda self: self.held - self.stored)
    @rule(data=st.data())
    def store(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(self.held - self.stored)))
        self.pool.store([page])
        self.stored.add(page)

    @precondition(lambda self: self.stored - self.held)
    @rule(data=st.data())
    def take_up_or_drop(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(self.stored - self.held)))
        if data.draw(st.booleans()):
            self.pool.share([page])
            self.holdings.append([page])
        else:
            self.pool.drop([page])
            self.stored.remove(page)

    @invariant()
    def conserves(self) -> None:
        held = [page for pages in self.holdings for page in pages]
        assert self.pool.num_held == len(set(held))
        assert self.pool.num_cached == len(self.stored - set(held))
        assert self.pool.num_free + self.pool.num_held + self.pool.num_cached == NUM_PAGES - 1
        assert all(self.pool.is_stored(page) == (page in self.stored) for page in range(NUM_PAGES))
        assert all(self.pool.num_holders(page) == held.count(page) for page in range(NUM_PAGES))
        self.pool.check()


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=30)


def test_misuse_is_an_error() -> None:
    pool = PagePool(4)
    page = pool.allocate(1)
    pool.release(page)
    with pytest.raises(ValueError, match="cannot be released"):
        pool.release(page)
    with pytest.raises(ValueError, match="cannot be shared"):
        pool.share(page)
    with pytest.raises(ValueError, match="cannot be released"):
        pool.release([0])
    with pytest.raises(ValueError, match="cannot be stored"):
        pool.store(page)
    (page,) = pool.allocate(1)
    pool.store([page])
    for misuse in (pool.store, pool.drop):
        with pytest.raises(ValueError, match=f"page {page} cannot be"):
            misuse([page])
    pool.check()


def test_a_pool_needs_a_page_beside_the_null_page() -> None:
    with pytest.raises(ConfigError, match="pool of 1 pages"):
        PagePool(1)


def test_check_finds_a_lost_page() -> None:
    pool = PagePool(4)
    pool._free.pop()
    with pytest.raises(AssertionError, match="holders"):
        pool.check()
