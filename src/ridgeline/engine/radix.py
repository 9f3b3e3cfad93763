"""RadixTree: which token prefixes have their K and V in pages, and in which.

A radix tree whose unit is a page: an edge is a run of whole pages with one beginning, so that a long prompt is one
node and not a thousand. Token ids are compared as bytes, four each, a run at a time. The tree knows page ids and never
touches KV memory; who holds a page is the pool's affair.

A sequence that uses a prefix locks the prefix's last node, and so the path to it. Unlocked nodes form the lower part of
the tree. Their leaves wait in a heap by importance and last use; a leaf gives up its last pages first, because what
comes before them is the likelier to be shared. A node expires some time after its last use, never while it is locked.
A use counts for the whole path, so a child never expires after its parent. What has expired is not matched any more; it
stays until `expire` or `evict` removes it, so that a miss can be explained.

Invariant 2: siblings differ in their first page; a parent's lock count >= any child's (here: the sum of its
children's); only unlocked leaves are evicted; the stored tokens are compared. Times come from the caller's clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from ridgeline.engine.lazy_heap import LazyHeap
from ridgeline.engine.prefix import TOKEN_BYTES, Match, Node, Removed, Use, common_pages


class RadixTree:
    def __init__(self, page_size: int, clock: Callable[[], float]) -> None:
        self.size = 0  # pages
        self.page_size = page_size
        self._page_bytes = page_size * TOKEN_BYTES
        self._clock = clock
        self._roots: dict[str, Node] = {}
        self._leaves = LazyHeap[Node](lambda node: (-node.priority, node.last_used_s))  # evictable ones
        self._expiring = LazyHeap[Node](lambda node: node.expires_s)  # unlocked ones that can expire

    def root(self, namespace: str) -> Node:
        """Where sequences of `namespace` begin. The tree keeps it while it is locked or has children."""
        return self._roots.get(namespace) or Node(namespace, None, b"", [], 0)

    def roots(self) -> list[Node]:
        return list(self._roots.values())

    # -- what is stored -----------------------------------------------------------------------------------------------

    def match(self, start: Node, tokens: bytes, *, expired_too: bool = False) -> Match:
        """The longest stored continuation of `start` by whole pages of `tokens`. Changes nothing."""
        now = -math.inf if expired_too else self._clock()
        node, num_in_node, at = start, 0, 0
        pages: list[int] = []
        while node is start or num_in_node == len(node.pages):
            child = node.children.get(tokens[at : at + self._page_bytes])
            if child is None:
                break
            if child.num_locks == 0 and child.expires_s <= now:
                return Match(node, num_in_node, pages, child)
            num_in_node = common_pages(child.tokens, tokens[at : at + len(child.tokens)], self.page_size)
            pages += child.pages[:num_in_node]
            at += num_in_node * self._page_bytes
            node = child
        return Match(node, num_in_node, pages, None)

    # -- use ----------------------------------------------------------------------------------------------------------

    def lock(self, match: Match) -> Node:
        """Keeps the matched prefix in the tree until `unlock` of the node that is returned, its last one."""
        node = self._split(match)
        self._lock(node)
        return node

    def _lock(self, node: Node) -> None:
        root = node
        for root in node.path():
            root.num_locks += 1
            self._leaves.discard(root)
            self._expiring.discard(root)
        self._roots[root.namespace] = root

    def unlock(self, node: Node) -> None:
        root = node
        for root in node.path():
            root.num_locks -= 1
            if root.num_locks == 0:
                self._on_unlocked(root)
        self._forget_root(root)

    def touch(self, node: Node, use: Use, *, num_hits: int = 0) -> None:
        """A use of a locked prefix: it moves the time at which it expires, and its turn to be evicted."""
        now = self._clock()
        for above in node.path():
            above.last_used_s = now
            above.expires_s = max(above.expires_s, now + use.ttl_s)
            above.priority = min(above.priority, use.priority)
            above.memory_only &= use.memory_only
            above.num_hits += num_hits

    def insert(self, node: Node, tokens: bytes, pages: list[int], use: Use) -> tuple[Node, list[int]]:
        """Continues the caller's locked `node` by whole pages; the lock moves to the last of them.

        Returns that node, and the pages that the tree has for `tokens`: those it knew win over the caller's.
        """
        match = self.match(node, tokens, expired_too=True)  # what has expired is as good as what was computed anew
        num_known = len(match.pages)
        if num_known == 0 and self._may_grow(node, use):
            self._grow(node, tokens, pages)
            end = node
        else:
            end = self._split(match)
            if num_known < len(pages):
                end = self._add_child(end, tokens[num_known * self._page_bytes :], pages[num_known:])
            self._lock(end)
            self.unlock(node)
        self.touch(end, use)
        return end, match.pages + pages[num_known:]

    def _may_grow(self, node: Node, use: Use) -> bool:
        """Whether new pages can join the caller's node, because nobody else uses it and they live no longer by that.

        Otherwise every page of an output would become a node.
        """
        is_own_leaf = node.num_locks == 1 and not node.children and node.parent is not None
        lives_no_longer = node.expires_s <= self._clock() + use.ttl_s and node.priority >= use.priority
        return is_own_leaf and lives_no_longer and node.memory_only >= use.memory_only

    def _grow(self, leaf: Node, tokens: bytes, pages: list[int]) -> None:
        leaf.tokens += tokens
        leaf.pages += pages
        leaf.end += len(pages)
        self.size += len(pages)

    def _add_child(self, parent: Node, tokens: bytes, pages: list[int]) -> Node:
        child = Node(parent.namespace, parent, tokens, pages, parent.end + len(pages))
        parent.children[tokens[: self._page_bytes]] = child
        self.size += len(pages)
        return child

    def _split(self, match: Match) -> Node:
        """The node that ends where the match does. A node that goes on keeps its end, and so those who locked it."""
        node, count = match.node, match.num_in_node
        if count == 0 or count == len(node.pages):
            return node
        assert node.parent is not None
        cut = count * self._page_bytes
        upper = Node(node.namespace, node.parent, node.tokens[:cut], node.pages[:count], node.start + count)
        upper.num_locks, upper.num_hits, upper.priority = node.num_locks, node.num_hits, node.priority
        upper.last_used_s, upper.expires_s, upper.memory_only = node.last_used_s, node.expires_s, node.memory_only
        node.parent.children[node.tokens[: self._page_bytes]] = upper
        node.parent, node.tokens, node.pages = upper, node.tokens[cut:], node.pages[count:]
        upper.children[node.tokens[: self._page_bytes]] = node
        if upper.num_locks == 0:
            self._on_unlocked(upper)
        return upper

    def _on_unlocked(self, node: Node) -> None:
        if node.is_evictable:
            self._leaves.add(node)
        if node.parent is not None and node.expires_s < math.inf:
            self._expiring.add(node)

    # -- removal ------------------------------------------------------------------------------------------------------

    def evict(self, count: int) -> Removed | None:
        """Up to `count` pages of the unlocked leaf that is the least important, and of those the least recently used.
        None: all is locked. O(log nodes)."""
        leaf = self._leaves.first()
        if leaf is None:
            return None
        start = max(leaf.start, leaf.end - count)
        keep = start - leaf.start
        cut = keep * self._page_bytes
        removed = Removed(leaf, start, leaf.pages[keep:], leaf.tokens[cut:])
        if keep == 0:
            self._unlink(leaf)
        leaf.tokens, leaf.pages, leaf.end = leaf.tokens[:cut], leaf.pages[:keep], start
        self.size -= len(removed.pages)
        return removed

    def expire(self, now: float) -> list[int]:
        """Removes what had expired at `now`; its pages."""
        pages: list[int] = []
        while (node := self._expiring.first()) is not None and node.expires_s <= now:
            pages += self._remove(node)
        return pages

    def flush(self, namespace: str | None = None) -> list[int]:
        """Removes all that is unlocked, of one namespace or of all; its pages."""
        tops = [
            node
            for node in self.nodes()
            if namespace in (None, node.namespace)
            and node.num_locks == 0
            and node.parent is not None
            and (node.parent.num_locks > 0 or node.parent.parent is None)
        ]
        return [page for top in tops for page in self._remove(top)]

    def _remove(self, top: Node) -> list[int]:
        """A whole unlocked subtree."""
        pages: list[int] = []
        for node in list(top.subtree()):
            pages += node.pages
            self._leaves.discard(node)
            self._expiring.discard(node)
        self.size -= len(pages)
        self._unlink(top)
        return pages

    def _unlink(self, node: Node) -> None:
        """Takes a childless or wholly removed node from its parent, which may become a leaf."""
        parent = node.parent
        assert parent is not None
        del parent.children[node.tokens[: self._page_bytes]]
        self._leaves.discard(node)
        self._expiring.discard(node)
        if parent.is_evictable:
            self._leaves.add(parent)
        self._forget_root(parent)

    def _forget_root(self, node: Node) -> None:
        if node.parent is None and node.num_locks == 0 and not node.children:
            self._roots.pop(node.namespace, None)

    # -- books --------------------------------------------------------------------------------------------------------

    def nodes(self) -> Iterator[Node]:
        """All nodes with pages, parents before their children."""
        for root in self._roots.values():
            yield from (node for node in root.subtree() if node is not root)

    def check(self) -> None:
        """Raises AssertionError when invariant 2 is broken. O(pages): for tests and for an idle engine."""
        pages: set[int] = set()
        num_pages = 0
        for node in self.nodes():
            parent = node.parent
            assert parent is not None
            assert parent.children.get(node.tokens[: self._page_bytes]) is node, "a node stands under another's key"
            assert len(node.tokens) == len(node.pages) * self._page_bytes > 0, "tokens and pages differ in length"
            assert node.end == parent.end + len(node.pages), "a node does not begin where its parent ends"
            assert node.expires_s <= parent.expires_s, "a child outlives its parent"
            assert node.is_evictable == (node in self._leaves), "the heap of leaves is not that of the evictable ones"
            pages.update(node.pages)
            num_pages += len(node.pages)
        for node in [*self._roots.values(), *self.nodes()]:
            below = sum(child.num_locks for child in node.children.values())
            assert node.num_locks >= below >= 0, f"{node.num_locks} locks on a node, {below} on its children"
        assert len(pages) == num_pages, "two nodes have the same page"
        assert num_pages == self.size, f"{num_pages} pages in the tree, its size says {self.size}"
