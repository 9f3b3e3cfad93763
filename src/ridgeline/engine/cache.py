"""Cache: the scheduler's view of KV memory, over the page pool, the prefix tree and a tier below memory.

Five verbs cover a sequence's life: `acquire` the stored pages that continue what it has, `extend` by pages for new
tokens, `publish` what has been computed, `release` everything, `check` the books. The scheduler calls them and never
learns which pages are shared, stored or evictable.

Who owns a sequence's pages, and what becomes of them at its release:

    positions    0 ............ node.end * page_size ............... num_computed_tokens ...... room
    pages        in the tree, locked; maybe shared    full or partly filled, its own     its own, empty
    at release   stay cached until evicted            free                               free

Invariants: a request's pages hold positions 0, 1, 2 ... in order. Only full, committed pages are in the tree, and each
of them has as many holders as its node has locks. At most num_tokens - 1 tokens hit: the last one has to be computed,
because its logits are wanted.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from ridgeline.cost.memory import pages_needed
from ridgeline.engine.pages import PagePool
from ridgeline.engine.prefix import Match, Node, Use, common_pages, decode
from ridgeline.engine.radix import RadixTree
from ridgeline.engine.reports import MissReport, TreeNode, nearest, snapshot
from ridgeline.engine.request import Request
from ridgeline.engine.tier import Tier, offer, offer_hits, store_all

EXPLAINED_S = 60.0  # an expired prefix stays so long, unless space is needed, so that a miss can be explained


@dataclass(slots=True)
class CacheCounters:
    """In pages, except for tokens. Totals only grow."""

    num_published: int = 0
    num_evicted_for_space: int = 0
    num_expired: int = 0
    num_flushed: int = 0


class Cache:
    def __init__(
        self,
        pool: PagePool,
        page_size: int,
        *,
        arithmetic_id: str = "",
        prefix_cache: bool = True,
        prefix_ttl_s: float | None = None,
        tier: Tier | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Without `prefix_cache` nothing is stored. `prefix_ttl_s` None: until space is needed."""
        self.pool = pool
        self.page_size = page_size
        self.tree = RadixTree(page_size, clock)
        self.counters = CacheCounters()
        self._arithmetic_id = arithmetic_id
        self._is_on = prefix_cache
        self._ttl_s = math.inf if prefix_ttl_s is None else prefix_ttl_s
        self._tier = tier
        self._clock = clock
        self._nodes: dict[Request, Node] = {}  # the locked node of each request that has been acquired for
        self._copies: list[tuple[int, int]] = []  # pages to copy with the next step: (source, destination)

    @property
    def num_available(self) -> int:
        """Pages that `extend` could hand out now: the free ones, and the cached ones, which it evicts."""
        return self.pool.num_free + self.pool.num_cached

    @property
    def num_available_meanwhile(self) -> int:
        """The same while a step computes: the tier below reads what it evicts, and that has to wait for the step."""
        return self.num_available if self._tier is None else self.pool.num_free

    def pages_needed(self, num_tokens: int) -> int:
        return pages_needed(num_tokens, self.page_size)

    def num_missing_pages(self, request: Request, num_tokens: int) -> int:
        """Pages that a request lacks to hold `num_tokens` tokens."""
        return max(0, self.pages_needed(num_tokens) - len(request.pages))

    def namespace(self, cache_salt: str = "", *, adapter: str = "") -> str:
        """What has to be the same for two sequences to share pages, apart from their tokens and the engine's model."""
        return json.dumps([self._arithmetic_id, adapter, cache_salt])

    # -- a sequence's life --------------------------------------------------------------------------------------------

    def acquire(self, request: Request) -> int:
        """Gives a request the stored pages that continue what it has computed; how many tokens it has by then.

        Called when it starts and before each chunk of its prefill, so that requests that started together share. Only
        one whose computed tokens fill whole pages can go on with a stored one.
        """
        if not self._is_on:
            return request.num_computed_tokens
        node = self._nodes.get(request)
        if node is None:
            return self._start(request)
        if node.end * self.page_size == request.num_computed_tokens:
            match = self._match(request)
            if match.pages:
                request.num_cached_tokens += self._take(request, match)
                return self._nodes[request].end * self.page_size
        return request.num_computed_tokens

    def extend(self, request: Request, num_tokens: int) -> bool:
        """Makes place for `num_tokens` tokens in all. False, and nothing changed, when pages lack."""
        missing = self.num_missing_pages(request, num_tokens)
        if missing > self.num_available:
            return False
        if missing > 0:
            request.pages += self._allocate(missing)
        return True

    def publish(self, request: Request) -> None:
        """Offers the full pages among the first `num_computed_tokens` to others. Called after a step has succeeded.

        Where another request was first, its page takes the place of this one's, which is freed.
        """
        node = self._nodes.get(request)
        num_full = request.num_computed_tokens // self.page_size
        if node is None or num_full <= node.end:
            return
        num_new = self._insert(request, num_full)
        request.num_created_cache_tokens += request.count_pages(num_full - num_new, num_full, self.page_size)
        self.counters.num_published += num_new

    def take_copies(self) -> list[tuple[int, int]]:
        """Pages to copy before the rows of the next step are stored: (source, destination)."""
        copies, self._copies = self._copies, []
        return copies

    def release(self, request: Request) -> None:
        """Takes all pages back from a request that ends or is preempted; the tail first, so that heads live longest."""
        self._copies = [copy for copy in self._copies if copy[1] not in request.pages]
        self.pool.release(reversed(request.pages))
        request.pages.clear()
        node = self._nodes.pop(request, None)
        if node is not None:
            self.tree.touch(node, self._use(request))
            self.tree.unlock(node)

    # -- what the scheduler asks --------------------------------------------------------------------------------------

    def num_hit_tokens(self, request: Request) -> int:
        """Tokens that a waiting request would find in memory, were it started now."""
        return len(self._match(request).pages) * self.page_size

    def num_shared_pages(self, request: Request, leaving: Collection[Request] = ()) -> int:
        """Pages that a waiting request would share with running ones, other than `leaving`: they cost it nothing."""
        left = Counter(page for other in leaving for page in other.pages)
        return sum(self.pool.num_holders(page) > left[page] for page in self._match(request).pages)

    def num_freed_pages(self, leaving: Collection[Request]) -> int:
        """Pages that would become available if `leaving` gave all theirs back."""
        left = Counter(page for request in leaving for page in request.pages)
        return sum(self.pool.num_holders(page) == count for page, count in left.items())

    def is_being_computed(self, request: Request, running: Iterable[Request]) -> bool:
        """Whether a running prefill will publish at least one page that a waiting request could use and lacks."""
        limit = self._max_hit_pages(request) if self._is_on else 0
        prefills = [r for r in running if r.num_remaining_tokens > 1 and r.cache_salt == request.cache_salt]
        if limit == 0 or not prefills:
            return False
        stop = limit * self.page_size
        tokens, num_known = request.token_bytes(0, stop), len(self._match(request).pages)
        return any(common_pages(tokens, r.token_bytes(0, stop), self.page_size) > num_known for r in prefills)

    # -- what people ask ----------------------------------------------------------------------------------------------

    def nearest(self, namespace: str, token_ids: Sequence[int]) -> MissReport:
        """What `namespace` holds that comes nearest to a prompt, and where they part."""
        return nearest(self.tree, namespace, token_ids, self._clock())

    def snapshot(self) -> list[TreeNode]:
        """The stored prefixes of each namespace, as a tree."""
        return snapshot(self.tree, self._clock())

    def flush(self, namespace: str | None = None) -> int:
        """Forgets what no running request uses, of one namespace or of all; how many pages."""
        pages = self.tree.flush(namespace)
        self.pool.drop(pages)
        self.counters.num_flushed += len(pages)
        if self._tier is not None:
            self._tier.clear()  # whole: it may forget anything, and must not bring back what was flushed
        return len(pages)

    def expire(self) -> None:
        """Frees what expired long enough ago that nobody will ask why it is missing."""
        self._drop_expired(self._clock() - EXPLAINED_S)

    def close(self) -> None:
        """Hands the tier what memory holds. Called after the last step."""
        tier, self._tier = self._tier, None
        if tier is not None:
            store_all(tier, self.tree.nodes(), self._clock())
            tier.close()

    def check(self, holders: Iterable[Request]) -> None:
        """Raises AssertionError unless pool, tree and `holders`, all running requests, agree on every page."""
        self.pool.check()
        self.tree.check()
        counts = Counter(page for request in holders for page in request.pages)
        for page, count in counts.items():
            known = self.pool.num_holders(page)
            assert known == count, f"{count} requests hold page {page}, the pool says {known}"
        assert len(counts) == self.pool.num_held, f"{self.pool.num_held} pages held, {len(counts)} of them by requests"
        num_stored = 0
        for node in self.tree.nodes():
            num_stored += len(node.pages)
            for page in node.pages:
                assert self.pool.is_stored(page), f"page {page} is in the tree, and the pool does not know"
                assert self.pool.num_holders(page) == node.num_locks, (
                    f"page {page}: {node.num_locks} locks, other holders"
                )
        cached = num_stored - sum(self.pool.is_stored(page) for page in counts)
        assert cached == self.pool.num_cached, f"{cached} pages only in the tree, the pool says {self.pool.num_cached}"

    # -- parts --------------------------------------------------------------------------------------------------------

    def _use(self, request: Request) -> Use:
        ttl_s = self._ttl_s if request.cache_ttl_s is None else request.cache_ttl_s
        return Use(ttl_s, request.priority, request.cache_memory_only)

    def _max_hit_pages(self, request: Request) -> int:
        return request.max_hit_tokens // self.page_size

    def _match(self, request: Request, *, expired_too: bool = False) -> Match:
        """The stored pages that continue what the request has in the tree; of a waiting one, from its beginning."""
        start = self._nodes.get(request) or self.tree.root(self.namespace(request.cache_salt))
        limit = self._max_hit_pages(request) if self._is_on else 0
        tokens = request.token_bytes(start.end * self.page_size, limit * self.page_size)
        return self.tree.match(start, tokens, expired_too=expired_too)

    def _start(self, request: Request) -> int:
        match = self._match(request)
        self._report_miss(request, match)
        request.num_cached_tokens += self._take(request, match)
        request.num_loaded_tokens += self._load(request)
        return self._nodes[request].end * self.page_size + self._copy(request)

    def _take(self, request: Request, match: Match) -> int:
        """Makes the matched pages the request's next ones; how many tokens of its prompt thereby hit."""
        node = self._nodes.get(request)
        first_empty = 0 if node is None else node.end
        self.pool.release(request.pages[first_empty:])
        self.pool.share(match.pages)
        request.pages[first_empty:] = match.pages
        self._nodes[request] = end = self.tree.lock(match)
        if node is not None:
            self.tree.unlock(node)
        if match.pages:
            self.tree.touch(end, self._use(request), num_hits=1)
            if self._tier is not None:
                offer_hits(self._tier, end, self._clock())
        return request.count_pages(end.end - len(match.pages), end.end, self.page_size)

    def _load(self, request: Request) -> int:
        """Continues a request that starts with pages of the tier below; how many tokens of its prompt that brings."""
        node = self._nodes[request]
        most = min(self._max_hit_pages(request) - node.end, self.num_available)
        if self._tier is None or most <= 0:
            return 0
        token_ids = request.tokens(0, request.num_tokens)
        found = self._tier.lookup(node.namespace, token_ids, node.end, most)
        if found == 0:
            return 0
        pages = self._allocate(found)
        count = self._tier.load(node.namespace, token_ids, [(node.end + i, page) for i, page in enumerate(pages)])
        self.pool.release(reversed(pages[count:]))
        if count == 0:
            return 0
        stop = node.end + count
        request.pages += pages[:count]
        self._insert(request, stop)
        return request.count_pages(stop - count, stop, self.page_size)

    def _copy(self, request: Request) -> int:
        """Continues a request that starts with a copy of the page that another one is filling, when all that is still
        to be computed but the last token stands there, as with the choices of one prompt; how many tokens that brings.

        A copy, because each of them goes on to write into its own.
        """
        start, stop = self._nodes[request].end * self.page_size, request.max_hit_tokens
        if not start < stop < start + self.page_size or self.num_available == 0:
            return 0
        tokens = request.token_bytes(0, stop)
        for other in self._nodes:
            is_ahead = other.num_computed_tokens >= stop and other.cache_salt == request.cache_salt
            if is_ahead and other is not request and other.token_bytes(0, stop) == tokens:
                request.pages += self._allocate(1)
                self._copies.append((other.pages[start // self.page_size], request.pages[-1]))
                if request.timeline.num_preemptions == 0:
                    request.num_copied_tokens = stop - start
                return stop - start
        return 0

    def _insert(self, request: Request, stop: int) -> int:
        """Puts the request's pages up to `stop` into the tree; how many of them it did not know."""
        node = self._nodes[request]
        start, own = node.end, request.pages[node.end : stop]
        tokens = request.token_bytes(start * self.page_size, stop * self.page_size)
        self._nodes[request], pages = self.tree.insert(node, tokens, own, self._use(request))
        new = [page for page, stored in zip(own, pages, strict=True) if page == stored]
        num_known = len(own) - len(new)
        self.pool.store(new)
        self.pool.share(pages[:num_known])
        self.pool.release(own[:num_known])
        request.pages[start:stop] = pages
        return len(new)

    def _report_miss(self, request: Request, match: Match) -> None:
        """Before a request starts for the first time: what had expired, and why it misses when it wants to know."""
        if request.timeline.num_preemptions > 0:
            return
        if match.expired is not None:
            num_stored = len(self._match(request, expired_too=True).pages)
            request.num_expired_tokens = (num_stored - len(match.pages)) * self.page_size
        if request.explain_cache:
            request.cache_miss = self.nearest(self.namespace(request.cache_salt), request.prompt_ids)

    def _allocate(self, count: int) -> list[int]:
        if self.pool.num_free < count:
            self._drop_expired(self._clock())
        while self.pool.num_free < count:
            removed = self.tree.evict(count - self.pool.num_free)
            assert removed is not None, f"{count} pages wanted, and all are locked"
            if self._tier is not None:
                offer(self._tier, removed.node, decode(removed.prefix()), removed.start, removed.pages, self._clock())
            self.pool.drop(removed.pages)
            self.counters.num_evicted_for_space += len(removed.pages)
        return self.pool.allocate(count)

    def _drop_expired(self, now: float) -> None:
        pages = self.tree.expire(now)
        self.pool.drop(pages)
        self.counters.num_expired += len(pages)
