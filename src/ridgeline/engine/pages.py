"""PagePool: who holds which page of KV memory.

Pages are numbers; their contents belong to the executor. A page has holders, counted, because sequences with a common
prefix share pages; and it may be stored, which means that the prefix tree knows its contents. Without holders, a stored
page is cached and any other is free. Page 0 is the null page: it pads block tables and is never handed out.

Invariant 1: free + held + cached = total after every operation; a page without holder is free or cached. All operations
are O(1) a page. The page freed last is handed out first: it is the likeliest to sit in a processor cache.
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
        self.num_cached = 0
        self._num_holders = [0] * num_pages
        self._is_stored = [False] * num_pages
        self._free = list(range(num_pages - 1, 0, -1))  # a stack; low pages first

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_held(self) -> int:
        return self.num_usable - len(self._free) - self.num_cached

    def num_holders(self, page: int) -> int:
        return self._num_holders[page]

    def is_stored(self, page: int) -> bool:
        return self._is_stored[page]

    def allocate(self, count: int) -> list[int]:
        """`count` free pages, each with one holder. The caller has made sure that they are there."""
        if count > len(self._free):
            raise ValueError(f"{count} pages wanted, {len(self._free)} free")
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._num_holders[page] = 1
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """One more holder for each of `pages`, which are held or cached."""
        for page in pages:
            if self._num_holders[page] == 0:
                if not self._is_stored[page]:
                    raise ValueError(f"page {page} is free and cannot be shared")
                self.num_cached -= 1
            self._num_holders[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """One holder less for each of `pages`; without holders a page is cached when it is stored, else free."""
        for page in pages:
            if self._num_holders[page] == 0:
                raise ValueError(f"page {page} has no holder and cannot be released")
            self._num_holders[page] -= 1
            if self._num_holders[page] == 0:
                self._on_unheld(page)

    def store(self, pages: Iterable[int]) -> None:
        """The tree now knows `pages`, which are held."""
        for page in pages:
            if self._num_holders[page] == 0 or self._is_stored[page]:
                raise ValueError(f"page {page} cannot be stored: it has no holder, or is stored already")
            self._is_stored[page] = True

    def drop(self, pages: Iterable[int]) -> None:
        """The tree has forgotten `pages`, which are cached; they are free again."""
        for page in pages:
            if self._num_holders[page] > 0 or not self._is_stored[page]:
                raise ValueError(f"page {page} cannot be dropped: it is held, or was not stored")
            self._is_stored[page] = False
            self.num_cached -= 1
            self._free.append(page)

    def _on_unheld(self, page: int) -> None:
        if self._is_stored[page]:
            self.num_cached += 1
        else:
            self._free.append(page)

    def check(self) -> None:
        """Raises AssertionError when invariant 1 is broken. O(pages): for tests and for an idle engine."""
        free = set(self._free)
        assert len(free) == len(self._free), "a page is twice on the free list"
        assert NULL_PAGE not in free, "the null page is on the free list"
        assert self._num_holders[NULL_PAGE] == 0, "the null page has a holder"
        num_cached = 0
        for page in range(1, len(self._num_holders)):
            count, is_stored = self._num_holders[page], self._is_stored[page]
            is_free = count == 0 and not is_stored
            assert is_free == (page in free), f"page {page}: {count} holders, stored {is_stored}, free {page in free}"
            num_cached += count == 0 and is_stored
        assert num_cached == self.num_cached, f"{num_cached} pages are cached, the pool says {self.num_cached}"
