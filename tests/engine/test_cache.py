"""The cache facade, verb by verb. One file, long as it is: all verbs are tried on the same small pool and tree."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from engine_runs import Client, make_request
from ridgeline.engine.cache import EXPLAINED_S, Cache
from ridgeline.engine.pages import PagePool
from ridgeline.engine.request import Request, TokenLogprob

PAGE = 4


class World:
    """A cache on a logical clock, and what a sequence of steps would do to it."""

    def __init__(self, num_pages: int = 20, **settings: Any) -> None:
        self.now = 0.0
        self.pool = PagePool(num_pages + 1)
        self.cache = Cache(self.pool, PAGE, clock=lambda: self.now, **settings)
        self.running: list[Request] = []

    def request(self, prompt: Iterable[int], salt: str = "", **params: Any) -> Request:
        request = make_request(list(prompt), Client(), **params)
        request.cache_salt = salt
        return request

    def start(self, request: Request) -> int:
        """How many tokens hit."""
        self.running.append(request)
        request.num_computed_tokens = self.cache.acquire(request)
        return request.num_computed_tokens

    def compute(self, request: Request, stop: int | None = None) -> None:
        stop = request.num_tokens if stop is None else stop
        assert self.cache.extend(request, stop)
        request.num_computed_tokens = stop
        self.cache.publish(request)
        self.check()

    def end(self, request: Request) -> None:
        self.running.remove(request)
        self.cache.release(request)
        self.check()

    def serve(self, prompt: Iterable[int], salt: str = "", **given: Any) -> Request:
        """A whole request that generates nothing."""
        request = self.request(prompt, salt)
        for name, value in given.items():
            setattr(request, name, value)
        self.start(request)
        self.compute(request)
        self.end(request)
        return request

    def check(self) -> None:
        self.cache.check(self.running)


def test_extend_gives_pages_for_tokens_or_changes_nothing() -> None:
    cache = Cache(PagePool(6), page_size=4)
    request = make_request(range(20), Client())
    assert cache.acquire(request) == 0
    assert cache.extend(request, 9)
    assert len(request.pages) == 3
    first = list(request.pages)
    assert cache.extend(request, 12)
    assert request.pages == first, "the third page has room for token 12"
    assert cache.extend(request, 13)
    assert request.pages[:3] == first
    assert not cache.extend(request, 21)
    assert len(request.pages) == 4
    cache.check([request])
    cache.release(request)
    assert request.pages == []
    assert cache.num_available == 5
    cache.check([])


def test_check_finds_pages_that_nobody_accounts_for() -> None:
    cache = Cache(PagePool(6), page_size=4)
    request = make_request(range(20), Client())
    cache.extend(request, 4)
    with pytest.raises(AssertionError, match="1 pages held, 0 of them by requests"):
        cache.check([])
    request.pages *= 2
    with pytest.raises(AssertionError, match="2 requests hold page"):
        cache.check([request])


def test_full_pages_of_a_served_prompt_hit() -> None:
    world = World()
    assert world.serve(range(11)).num_cached_tokens == 0
    assert world.serve(range(11)).num_cached_tokens == 8
    assert world.serve([*range(10), 99, 98]).num_cached_tokens == 8
    assert world.serve([99, *range(1, 11)]).num_cached_tokens == 0, "another first token"
    assert world.serve(range(11), "salt").num_cached_tokens == 0
    assert world.serve(range(11), "salt").num_cached_tokens == 8


@pytest.mark.parametrize("num_pages", [1, 2, 3])
def test_a_prompt_of_whole_pages_recomputes_its_last(num_pages: int) -> None:
    world = World()
    world.serve(range(num_pages * PAGE))
    request = world.request(range(num_pages * PAGE))
    assert world.start(request) == (num_pages - 1) * PAGE
    world.compute(request)
    world.end(request)
    assert world.pool.num_cached == num_pages, "its own copy of the last page gave way to the one that was there"


def test_a_page_that_requests_share_counts_once() -> None:
    world = World()
    first, second = world.request(range(13)), world.request([*range(12), 77])
    world.start(first)
    world.compute(first)
    assert world.start(second) == 12
    world.compute(second)
    assert world.pool.num_held == 3 + 1 + 1
    assert first.pages[:3] == second.pages[:3]
    assert world.cache.num_shared_pages(world.request(range(13))) == 3
    assert world.cache.num_shared_pages(world.request(range(13)), leaving=[first, second]) == 0
    assert world.cache.num_freed_pages([first]) == 1
    assert world.cache.num_freed_pages([first, second]) == 5
    world.end(first)
    assert (world.pool.num_held, world.pool.num_cached) == (4, 0)
    world.end(second)
    assert (world.pool.num_held, world.pool.num_cached) == (0, 3)


def test_requests_that_computed_the_same_keep_one_copy() -> None:
    world = World()
    requests = [world.request(range(12)) for _ in range(3)]
    for request in requests:
        world.start(request)
    for request in requests:
        world.compute(request)
    assert world.pool.num_held == 3
    assert [request.num_created_cache_tokens for request in requests] == [12, 0, 0]


def test_a_prefill_goes_on_with_what_another_published_meanwhile() -> None:
    world = World()
    ahead, behind = world.request(range(17)), world.request(range(17))
    world.start(ahead)
    world.start(behind)
    world.compute(behind, 3)
    world.compute(ahead, 12)
    assert world.cache.acquire(behind) == 3, "a page that is partly its own stays so"
    world.compute(behind, 4)
    assert world.cache.acquire(behind) == 12
    assert behind.pages == ahead.pages[:3]
    assert behind.num_cached_tokens == 8
    world.check()


def test_a_page_that_another_is_filling_is_copied() -> None:
    world = World()
    first = world.request(range(11))
    world.start(first)
    world.compute(first)
    first.output_ids += [50, 51]
    world.compute(first)
    choice, other = world.request(range(11)), world.request([*range(9), 77, 78])
    assert world.start(choice) == 10
    assert (choice.num_cached_tokens, choice.num_copied_tokens) == (8, 2)
    assert world.start(other) == 8, "it parts from the first within that page"
    assert world.cache.take_copies() == [(first.pages[2], choice.pages[2])]
    assert world.cache.take_copies() == []
    world.check()
    salted = world.request(range(11), "salt")
    assert world.start(salted) == 0


def test_a_request_that_goes_before_its_copy_leaves_none() -> None:
    world = World()
    first, choice = world.request(range(11)), world.request(range(11))
    world.start(first)
    world.compute(first)
    world.start(choice)
    world.end(choice)
    assert world.cache.take_copies() == [], "its page may be another's by then"


def test_a_waiting_request_waits_for_pages_that_a_prefill_will_publish() -> None:
    world = World()
    owner = world.request(range(17))
    world.start(owner)
    same, shorter, other = world.request(range(17)), world.request(range(9)), world.request([5, *range(20)])
    salted = world.request(range(17), "salt")
    scored = world.request(range(17), prompt_logprobs=0)
    scored.prompt_logprobs = [TokenLogprob(0, None)]
    waits = [world.cache.is_being_computed(r, [owner]) for r in (same, shorter, other, salted, scored)]
    assert waits == [True, True, False, False, False]
    world.compute(owner, 8)
    assert world.cache.is_being_computed(same, [owner])
    assert not world.cache.is_being_computed(shorter, [owner]), "both its pages are there"
    world.compute(owner, 16)
    assert not world.cache.is_being_computed(same, [owner]), "no more than n - 1 tokens can hit"
    assert not world.cache.is_being_computed(same, []), "the owner is gone"


def test_prompt_logprobs_take_no_hit_past_what_they_need() -> None:
    world = World()
    world.serve(range(13))
    request = world.request(range(13), prompt_logprobs=0)
    request.prompt_logprobs = [TokenLogprob(0, None)]
    assert world.start(request) == 0
    world.end(request)
    request.prompt_logprobs = [TokenLogprob(i, -1.0) for i in range(9)]  # position 9 is scored by row 8
    assert world.start(request) == 8
    world.end(request)
    request.prompt_logprobs = [TokenLogprob(i, -1.0) for i in range(13)]
    assert world.start(request) == 12


def test_space_is_made_by_evicting_the_least_recently_used_tail() -> None:
    world = World(num_pages=5)
    for world.now, first in enumerate((0, 50)):
        world.serve(range(first, first + 8))
    world.now = 3
    assert world.serve(range(70, 77)).pages == []
    assert world.cache.counters.num_evicted_for_space == 1
    assert world.cache.num_hit_tokens(world.request(range(9))) == 4, "the older prompt lost its last page"
    assert world.cache.num_hit_tokens(world.request(range(50, 59))) == 8
    assert not world.cache.extend(world.request([1]), 6 * PAGE)


def test_an_important_requests_pages_are_evicted_last() -> None:
    world = World(num_pages=4)
    world.serve(range(8), priority=-1)
    world.serve(range(50, 58))
    world.serve(range(70, 75))
    assert world.cache.num_hit_tokens(world.request(range(9))) == 8
    assert world.cache.num_hit_tokens(world.request(range(50, 59))) == 0


def test_use_refreshes_and_time_expires() -> None:
    world = World(prefix_ttl_s=10)
    world.serve(range(9))
    world.now = 9
    assert world.serve(range(9)).num_cached_tokens == 8
    world.now = 18
    assert world.serve(range(9)).num_cached_tokens == 8
    world.now = 28
    late = world.serve(range(9), explain_cache=True)
    assert (late.num_cached_tokens, late.num_expired_tokens) == (0, 8)
    assert late.cache_miss is not None
    assert late.cache_miss.expired_ago_s == 0
    world.now = 100
    world.cache.expire()
    assert world.cache.counters.num_expired == 2
    assert world.pool.num_free == 20
    late = world.serve(range(9))
    assert (late.num_cached_tokens, late.num_expired_tokens) == (0, 0), "too long ago to know"


def test_a_requests_own_lifetime_holds() -> None:
    world = World(prefix_ttl_s=10)
    world.serve(range(9), cache_ttl_s=1000.0)
    world.serve(range(50, 59), cache_ttl_s=1.0)
    world.now = 5
    assert world.serve(range(50, 59)).num_expired_tokens == 8
    world.now = 999
    assert world.serve(range(9)).num_cached_tokens == 8


def test_expired_pages_go_before_others_when_space_is_needed() -> None:
    world = World(num_pages=5)
    world.serve(range(8))
    world.now = 1
    world.serve(range(50, 58), cache_ttl_s=1.0)
    world.now = 2.5
    world.serve(range(70, 77))
    assert (world.cache.counters.num_expired, world.cache.counters.num_evicted_for_space) == (2, 0)
    assert world.now < EXPLAINED_S
    assert world.cache.num_hit_tokens(world.request(range(9))) == 8


def test_flush_forgets_one_salt_or_all_but_not_what_runs() -> None:
    world = World()
    running = world.request(range(9))
    world.start(running)
    world.compute(running)
    world.serve(range(50, 58))
    world.serve(range(9), "salt")
    assert world.cache.flush(world.cache.namespace("salt")) == 2
    assert world.cache.flush() == 2
    assert world.cache.counters.num_flushed == 4
    world.check()
    world.end(running)
    assert world.cache.flush() == 2
    assert world.pool.num_free == 20


def test_without_prefix_cache_nothing_is_kept() -> None:
    world = World(prefix_cache=False)
    for _ in range(2):
        request = world.serve(range(9))
        assert (request.num_cached_tokens, request.num_created_cache_tokens) == (0, 0)
    assert world.pool.num_free == 20


def test_a_preempted_request_finds_its_pages_and_hits_count_once() -> None:
    world = World()
    request = world.request(range(13))
    world.start(request)
    world.compute(request, 10)
    world.end(request)
    request.num_computed_tokens = 0
    assert world.start(request) == 8
    assert request.num_cached_tokens == 0, "it had computed them itself"
    world.compute(request)
    request.output_ids += [1, 2, 3, 4]
    world.compute(request)
    world.end(request)
    request.num_computed_tokens = 0
    assert world.start(request) == 16, "its output's pages too"
    assert (request.num_cached_tokens, request.num_created_cache_tokens) == (0, 12)


@dataclass
class FakeTier:
    """Holds pages as (namespace, tokens up to the page's end)."""

    held: set[tuple[str, tuple[int, ...]]] = field(default_factory=set)
    damaged_from: int = 10**9
    offered: list[int] = field(default_factory=list)

    def lookup(self, namespace: str, token_ids: Sequence[int], start_page: int, max_pages: int) -> int:
        count = 0
        while count < max_pages and (namespace, self._key(token_ids, start_page + count)) in self.held:
            count += 1
        return count

    def load(self, namespace: str, token_ids: Sequence[int], pages: Sequence[tuple[int, int]]) -> int:
        assert all((namespace, self._key(token_ids, index)) in self.held for index, _ in pages)
        return sum(index < self.damaged_from for index, _ in pages)

    def store(  # type: ignore[override]
        self, namespace: str, token_ids: Sequence[int], page_index: int, page_id: int, *, ttl_s: float
    ) -> None:
        self.held.add((namespace, self._key(token_ids, page_index)))
        self.offered.append(page_index)

    @staticmethod
    def _key(token_ids: Sequence[int], page: int) -> tuple[int, ...]:
        assert len(token_ids) >= (page + 1) * PAGE
        return tuple(token_ids[: (page + 1) * PAGE])


def test_evicted_and_twice_hit_pages_are_offered_to_the_tier() -> None:
    tier = FakeTier()
    world = World(num_pages=5, tier=tier)
    world.serve(range(9))
    assert tier.offered == []
    world.serve(range(9))
    assert tier.offered == []
    world.serve(range(9))
    assert sorted(tier.offered) == [0, 1]
    world.serve(range(50, 58))
    world.serve(range(70, 82))
    assert sorted(tier.offered) == [0, 0, 1, 1], "the pages that made space"


def test_pages_of_the_tier_continue_those_in_memory() -> None:
    tier = FakeTier()
    space = World().cache.namespace()
    tier.held = {(space, tuple(range(n))) for n in (8, 12, 16)}
    world = World(tier=tier)
    world.serve(range(5))
    request = world.request(range(17))
    assert world.start(request) == 16
    assert (request.num_cached_tokens, request.num_loaded_tokens) == (4, 12)
    world.compute(request)
    world.end(request)
    again = world.serve(range(17))
    assert (again.num_cached_tokens, again.num_loaded_tokens) == (16, 0)
    assert world.serve(range(17), "salt").num_loaded_tokens == 0


def test_a_damaged_page_of_the_tier_is_a_miss() -> None:
    tier = FakeTier(damaged_from=1)
    tier.held = {(World().cache.namespace(), tuple(range(n))) for n in (4, 8, 12)}
    world = World(tier=tier)
    request = world.request(range(13))
    assert world.start(request) == 4
    world.check()
    assert world.pool.num_free == 19
    world.compute(request)
    world.end(request)
    assert (request.num_loaded_tokens, request.num_created_cache_tokens) == (4, 8)


def test_a_tier_gives_no_more_than_memory_takes() -> None:
    tier = FakeTier()
    tier.held = {(World().cache.namespace(), tuple(range(n))) for n in (4, 8, 12)}
    world = World(num_pages=3, tier=tier)
    other = world.request([50])
    world.start(other)
    world.compute(other)
    assert world.start(world.request(range(13))) == 8


class Fuzz(World):
    """10,000 operations in little memory; every page remembers whose tokens were computed into it."""

    def __init__(self, seed: int) -> None:
        super().__init__(num_pages=12, prefix_ttl_s=30)
        self.rng = random.Random(seed)
        self.contents: dict[int, tuple[str, list[int]]] = {}  # page -> salt, and tokens up to the last one in it
        self.num_hits = self.num_copies = 0

    def run(self, num_operations: int) -> None:
        operations = [self.arrive, self.arrive, self.step, self.step, self.step, self.leave, self.wait, self.flush]
        for _ in range(num_operations):
            self.rng.choice(operations)()
            self.check()

    def arrive(self) -> None:
        prompt = [*range(self.rng.randrange(1, 30)), *(self.rng.randrange(2) for _ in range(self.rng.randrange(9)))]
        request = self.request(prompt, self.rng.choice(["", "salt"]))
        request.cache_ttl_s = self.rng.choice([None, 3.0])
        request.priority = self.rng.randrange(3)
        expected = self.cache.num_hit_tokens(request)
        wanted = self.cache.pages_needed(request.num_tokens + 1) - self.cache.num_shared_pages(request)
        if len(self.running) == 4 or wanted > self.cache.num_available:
            return
        assert self.start(request) == expected + request.num_copied_tokens < request.num_tokens
        for source, destination in self.cache.take_copies():
            self.contents[destination] = self.contents[source]
            self.num_copies += 1
        self.num_hits += expected
        assert self.cache.extend(request, request.num_tokens), "what was counted as available is"
        self.verify(request)

    def step(self) -> None:
        """Computes some of what a request lacks, or gives it a token."""
        if not self.running:
            return
        request = self.rng.choice(self.running)
        if request.num_remaining_tokens == 0:
            request.output_ids.append(self.rng.randrange(2))
        request.num_computed_tokens = self.cache.acquire(request)
        stop = request.num_computed_tokens + self.rng.randint(1, request.num_remaining_tokens)
        if not self.cache.extend(request, stop):
            self.leave()
            return
        for index in range(request.num_computed_tokens // PAGE, self.cache.pages_needed(stop)):
            page = request.pages[index]
            assert self.pool.num_holders(page) == 1, "a shared page is written to"
            assert not self.pool.is_stored(page), "a published page is written to"
            self.contents[page] = (request.cache_salt, request.tokens(0, min(stop, (index + 1) * PAGE)))
        request.num_computed_tokens = stop
        self.cache.publish(request)
        self.verify(request)

    def verify(self, request: Request) -> None:
        for index in range(self.cache.pages_needed(request.num_computed_tokens)):
            expected = request.tokens(0, min(request.num_computed_tokens, (index + 1) * PAGE))
            salt, tokens = self.contents[request.pages[index]]
            assert (salt, tokens[: len(expected)]) == (request.cache_salt, expected), "a page holds another sequence"

    def leave(self) -> None:
        if self.running:
            self.end(self.rng.choice(self.running))

    def wait(self) -> None:
        self.now += self.rng.choice([0, 1, 20])
        self.cache.expire()

    def flush(self) -> None:
        if self.rng.random() < 0.1:
            self.cache.flush(self.rng.choice([None, self.cache.namespace("salt")]))


def test_10000_random_operations_keep_the_books_and_the_contents() -> None:
    fuzz = Fuzz(seed=5)
    fuzz.run(10_000)
    counters = fuzz.cache.counters
    assert min(fuzz.num_hits, fuzz.num_copies * 20) > 1000
    assert min(counters.num_evicted_for_space, counters.num_expired, counters.num_flushed) > 10
    while fuzz.running:
        fuzz.end(fuzz.running[0])
    fuzz.cache.flush()
    assert fuzz.pool.num_free == 12
