"""Prefixes as the cache knows them: token ids as bytes, and the nodes of the radix tree.

Token ids are compared as bytes, four each: a run of a thousand pages is one comparison, and a page's worth is a key.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

TOKEN_BYTES = 4  # array type "i"


def encode(token_ids: Iterable[int]) -> bytes:
    """Token ids as the tree compares them."""
    return array("i", token_ids).tobytes()


def decode(tokens: bytes) -> array[int]:
    return array("i", tokens)


def common_pages(a: bytes, b: bytes, page_size: int) -> int:
    """Whole pages that two runs begin with alike: one comparison when they are equal, else a binary search."""
    size = page_size * TOKEN_BYTES
    low, high = 0, min(len(a), len(b)) // size
    if a[: high * size] == b[: high * size]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if a[low * size : middle * size] == b[low * size : middle * size]:
            low = middle
        else:
            high = middle
    return low


@dataclass(frozen=True, slots=True)
class Use:
    """What a use of a prefix does for it."""

    ttl_s: float = math.inf  # it lives so long after this use, if not longer
    priority: int = 0  # smaller: evicted later
    memory_only: bool = False  # it gives no leave to store the pages below memory


@dataclass(slots=True, eq=False)
class Node:
    """A run of pages with one beginning. A root has no pages and no parent."""

    namespace: str
    parent: Node | None
    tokens: bytes  # of `pages`
    pages: list[int]  # ids
    end: int  # pages from the root up to and including this node's
    children: dict[bytes, Node] = field(default_factory=dict)  # by the tokens of their first page
    num_locks: int = 0
    num_hits: int = 0
    last_used_s: float = -math.inf
    expires_s: float = -math.inf
    priority: int = 2**63  # the most important (smallest) of its users
    memory_only: bool = True  # as long as all its users are

    @property
    def start(self) -> int:
        return self.end - len(self.pages)

    @property
    def is_evictable(self) -> bool:
        return self.parent is not None and self.num_locks == 0 and not self.children

    def path(self) -> Iterator[Node]:
        """This node and its ancestors, the root last."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent

    def subtree(self) -> Iterator[Node]:
        """This node and all below it, parents before their children."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack += node.children.values()

    def prefix(self) -> bytes:
        """All tokens from the root up to and including this node's."""
        return b"".join(node.tokens for node in reversed(list(self.path())))


@dataclass(frozen=True, slots=True)
class Match:
    """The longest stored continuation of a node: `pages`, of which the last `num_in_node` belong to `node`."""

    node: Node
    num_in_node: int
    pages: list[int]
    expired: Node | None  # the node that would have gone on, had it not expired


@dataclass(frozen=True, slots=True)
class Removed:
    """Pages that the tree has given up: those from index `start` on of the sequence that begins with `prefix()`."""

    node: Node
    start: int
    pages: list[int]
    tokens: bytes  # of `pages`

    def prefix(self) -> bytes:
        """All tokens up to the last of `pages`. Valid until the tree changes again."""
        assert self.node.parent is not None
        return self.node.parent.prefix() + self.node.tokens + self.tokens
