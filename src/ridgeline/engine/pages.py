"""PagePool: who holds which page of KV memory.

Pages are numbers; their contents belong to the executor. A page is free or has holders, counted, because sequences
with a common prefix share pages. Page 0 is the null page: it pads block tables and is never handed out.

Invariant 1: free + held = total after every operation, and a page without holder is free. All operations are O(1) a
page. The page freed last is handed out first: it is the likeliest to sit in a processor cache.
"""

from __future__ import annotations

from collections.abc import Iterable

from ridgeline.engine.plan import NULL_PAGE
from ridgeline.errors import ConfigError


class PagePool:
    """Pages 1 .. num_pages - 1."""

    def __init__(self, num_pages: int) -> None:
        """`num_pages` includes the null page."""
        if num_pages < 2:
            raise ConfigError(f"a pool of {num_pages} pages has none to hand out beside the null page")
        self.num_usable = num_pages - 1
        self._num_holders = [0] * num_pages
        self._free = list(range(num_pages - 1, 0, -1))  # a stack; low pages first

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_held(self) -> int:
        return self.num_usable - len(self._free)

    def num_holders(self, page: int) -> int:
        return self._num_holders[page]

    def allocate(self, count: int) -> list[int]:
        """`count` free pages, each with one holder. The caller has made sure that they are there."""
        if count > len(self._free):
            raise ValueError(f"{count} pages wanted, {len(self._free)} free")
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._num_holders[page] = 1
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """One more holder for each of `pages`, which have at least one."""
        for page in pages:
            if self._num_holders[page] == 0:
                raise ValueError(f"page {page} is free and cannot be shared")
            self._num_holders[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """One holder less for each of `pages`; without holders a page is free."""
        for page in pages:
            if self._num_holders[page] == 0:
                raise ValueError(f"page {page} is free and cannot be released")
            self._num_holders[page] -= 1
            if self._num_holders[page] == 0:
                self._free.append(page)

    def check(self) -> None:
        """Raises AssertionError when invariant 1 is broken. O(pages): for tests and for an idle engine."""
        free = set(self._free)
        assert len(free) == len(self._free), "a page is twice on the free list"
        assert NULL_PAGE not in free, "the null page is on the free list"
        assert self._num_holders[NULL_PAGE] == 0, "the null page has a holder"
        for page, count in enumerate(self._num_holders[1:], start=1):
            assert (count == 0) == (page in free), f"page {page} has {count} holders and free is {page in free}"
