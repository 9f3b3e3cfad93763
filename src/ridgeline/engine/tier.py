"""Tier: where KV pages live on when they leave memory, such as a directory of files.

The cache asks a tier for pages that continue what memory holds, and offers it pages that are worth keeping. All calls
come from the engine's thread, between steps. A tier holds whatever it likes and may forget anything at any time: what
it cannot give is a miss, never an error. Page p of a sequence holds the tokens [p * page_size, (p + 1) * page_size).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ridgeline.engine.prefix import Node, decode

STORED_AT_HIT = 2  # a prefix goes to the tier when it is hit so often, or when it is evicted


@dataclass(frozen=True, slots=True)
class TierStats:
    """What is there now, then totals since the start."""

    num_pages: int = 0
    num_bytes: int = 0
    max_bytes: int = 0
    max_pages: int = 0  # of this model, that `max_bytes` holds
    num_pending: int = 0  # queued, not written yet
    num_foreign_pages: int = 0  # of other models, formats or kernels, when it was opened
    num_written: int = 0
    num_read: int = 0
    num_evicted: int = 0  # for space
    num_expired: int = 0
    num_damaged: int = 0
    num_foreign: int = 0  # sound, but not the wanted page
    num_dropped: int = 0  # not stored: the queue was full
    num_failed: int = 0  # not stored or not read: the system refused


def offer(tier: Tier, node: Node, token_ids: Sequence[int], start: int, pages: Sequence[int], now: float) -> None:
    """Offers pages of `node`, from index `start` of the sequence on, unless they may not leave memory."""
    if not node.memory_only:
        for index, page in enumerate(pages, start):
            tier.store(node.namespace, token_ids, index, page, ttl_s=node.expires_s - now)


def offer_hits(tier: Tier, end: Node, now: float) -> None:
    """Offers those parts of a prefix, just hit, that by now have been hit often enough."""
    token_ids = decode(end.prefix())
    for node in end.path():
        if node.num_hits == STORED_AT_HIT:
            offer(tier, node, token_ids, node.start, node.pages, now)


def store_all(tier: Tier, nodes: Iterable[Node], now: float) -> None:
    """Offers a tier the cached pages, as far as it has room: the most recently used last, and of a sequence its first
    page last, because a tier too forgets what was used longest ago."""
    alive = [node for node in nodes if node.expires_s > now and not node.memory_only]
    alive.sort(key=lambda node: (node.last_used_s, -node.end))
    num_over = sum(len(node.pages) for node in alive) - tier.stats().max_pages
    for node in alive:
        token_ids = decode(node.prefix())
        for index in reversed(range(node.start, node.end)):
            if num_over <= 0:
                page = node.pages[index - node.start]
                tier.store(node.namespace, token_ids, index, page, ttl_s=node.expires_s - now, wait=True)
            num_over -= 1


class Tier(Protocol):
    def lookup(self, namespace: str, token_ids: Sequence[int], start_page: int, max_pages: int) -> int:
        """How many pages from `start_page` on could be loaded, at most `max_pages`."""
        ...

    def load(self, namespace: str, token_ids: Sequence[int], pages: Sequence[tuple[int, int]]) -> int:
        """Fills executor pages, given as (page index in the sequence, page id) in order; how many of them, from the
        first on, now hold what they should. Fewer than asked when a stored page turns out damaged."""
        ...

    def store(
        self,
        namespace: str,
        token_ids: Sequence[int],
        page_index: int,
        page_id: int,
        *,
        ttl_s: float = math.inf,
        wait: bool = False,
    ) -> None:
        """Offers page `page_index` of a sequence that starts with `token_ids`; its contents stay valid during the call
        only. Called at a page's second hit, at its eviction and at shutdown; the same page may come again. The page
        must not be given out `ttl_s` after its last use. Never blocks unless `wait`, at shutdown."""
        ...

    def clear(self) -> int:
        """Forgets all pages; how many."""
        ...

    def stats(self) -> TierStats: ...

    def close(self) -> None:
        """Makes what was stored last until the next start."""
        ...
