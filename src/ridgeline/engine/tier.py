"""Tier: where KV pages live on when they leave memory, such as a directory of files.

The cache asks a tier for pages that continue what memory holds, and offers it pages that are worth keeping. All calls
come from the engine's thread, between steps. A tier holds whatever it likes and may forget anything at any time: what
it cannot give is a miss, never an error. Page p of a sequence holds the tokens [p * page_size, (p + 1) * page_size).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Tier(Protocol):
    def lookup(self, namespace: str, token_ids: Sequence[int], start_page: int, max_pages: int) -> int:
        """How many pages from `start_page` on could be loaded, at most `max_pages`."""
        ...

    def load(self, namespace: str, token_ids: Sequence[int], pages: Sequence[tuple[int, int]]) -> int:
        """Fills executor pages, given as (page index in the sequence, page id) in order; how many of them, from the
        first on, now hold what they should. Fewer than asked when a stored page turns out damaged."""
        ...

    def store(self, namespace: str, token_ids: Sequence[int], page_index: int, page_id: int) -> None:
        """Offers page `page_index` of a sequence that starts with `token_ids`; its contents stay valid during the call
        only. Called at a page's second hit and at its eviction; the same page may come again. Never blocks."""
        ...
