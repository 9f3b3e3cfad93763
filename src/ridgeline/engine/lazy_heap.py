"""LazyHeap: a set that knows its member with the smallest key, while keys grow.

An entry whose key is out of date is corrected when it comes to the top, and one whose member has left is dropped there.
So a use of a member costs nothing, adding and leaving are O(log n), and the heap stays within twice the set's size.

Invariant: a member's key never falls below that of its entry.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any, Generic, TypeVar

_Item = TypeVar("_Item")


class LazyHeap(Generic[_Item]):
    def __init__(self, key: Callable[[_Item], Any]) -> None:
        """`key` gives what orders the members; it may grow while they are in the heap."""
        self._key = key
        self._members: set[_Item] = set()
        self._entries: list[tuple[Any, int, _Item]] = []
        self._order = itertools.count()  # of equal keys: first come, first out

    def __contains__(self, item: _Item) -> bool:
        return item in self._members

    def __len__(self) -> int:
        return len(self._members)

    def add(self, item: _Item) -> None:
        if item in self._members:
            return
        self._members.add(item)
        if len(self._entries) > 2 * len(self._members) + 8:
            self._entries = [(self._key(member), next(self._order), member) for member in self._members]
            heapq.heapify(self._entries)
        else:
            heapq.heappush(self._entries, (self._key(item), next(self._order), item))

    def discard(self, item: _Item) -> None:
        self._members.discard(item)

    def first(self) -> _Item | None:
        """The member with the smallest key; it stays one. None when there is none."""
        while self._entries:
            key, _, item = self._entries[0]
            if item not in self._members:
                heapq.heappop(self._entries)
            elif (current := self._key(item)) != key:
                heapq.heapreplace(self._entries, (current, next(self._order), item))
            else:
                return item
        return None
