"""Cache: the scheduler's view of KV memory.

Five verbs cover a sequence's life: `acquire` the longest stored prefix, `extend` by pages for new tokens, `publish`
what has been computed, `release` everything, `check` the books. The scheduler calls them and never learns which pages
are shared, stored or evictable. Prefixes are not kept yet: `acquire` finds nothing and `publish` stores nothing.

Invariant: a request's pages hold positions 0, 1, 2 ... in order, and the list only grows until it is released.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ridgeline.cost.memory import pages_needed
from ridgeline.engine.pages import PagePool
from ridgeline.engine.request import Request


@dataclass(frozen=True, slots=True)
class MissReport:
    """Why a prompt was cached no further: what the caller's own namespace holds that comes nearest to it.

    `num_matching_tokens` is exact, not rounded to pages: the token at that index is the first that differs, or the
    first that nothing is stored for (then `stored_ids` ends there).
    """

    num_hit_tokens: int  # what was reused, in whole pages
    num_matching_tokens: int  # of the nearest stored prefix, expired ones included
    stored_start: int  # index of the first of `stored_ids`
    stored_ids: tuple[int, ...]  # of the nearest stored prefix, around index `num_matching_tokens`
    expired_ago_s: float | None  # since the nearest prefix expired; None: it has not, and is no reason


class Cache:
    def __init__(self, pool: PagePool, page_size: int) -> None:
        self.pool = pool
        self.page_size = page_size

    @property
    def num_available(self) -> int:
        """Pages that `extend` could hand out now."""
        return self.pool.num_free

    def pages_needed(self, num_tokens: int) -> int:
        return pages_needed(num_tokens, self.page_size)

    def acquire(self, request: Request) -> int:
        """Gives a request that starts the stored pages of its longest known prefix; how many tokens those hold.

        At most `num_tokens - 1`: the last token has to be computed, its logits are wanted.
        """
        assert not request.pages, f"{request.id} holds {len(request.pages)} pages before it starts"
        return 0

    def extend(self, request: Request, num_tokens: int) -> bool:
        """Makes place for `num_tokens` tokens in all. False, and nothing changed, when pages lack."""
        missing = self.pages_needed(num_tokens) - len(request.pages)
        if missing > self.num_available:
            return False
        if missing > 0:
            request.pages += self.pool.allocate(missing)
        return True

    def publish(self, request: Request) -> None:
        """Offers the full pages among the first `num_computed_tokens` to others. Called after a step has succeeded."""

    def release(self, request: Request) -> None:
        """Takes all pages back from a request that ends or is preempted; the tail first, so that heads live longest."""
        self.pool.release(reversed(request.pages))
        request.pages.clear()

    def check(self, holders: Iterable[Request]) -> None:
        """Raises AssertionError unless the pool's counts are what `holders`, all running requests, hold."""
        self.pool.check()
        counts = Counter(page for request in holders for page in request.pages)
        for page, count in counts.items():
            known = self.pool.num_holders(page)
            assert known == count, f"{count} requests hold page {page}, the pool says {known}"
        assert len(counts) == self.pool.num_held, f"{self.pool.num_held} pages held, {len(counts)} of them by requests"
