from __future__ import annotations

import random

from ridgeline.engine.lazy_heap import LazyHeap


def test_first_is_the_member_with_the_smallest_key_while_keys_grow() -> None:
    rng = random.Random(1)
    keys = dict.fromkeys(range(20), 0)
    heap = LazyHeap[int](keys.__getitem__)
    members: set[int] = set()
    for _ in range(3000):
        item = rng.randrange(20)
        match rng.randrange(4):
            case 0:
                keys[item] += rng.randrange(50)
            case 1:
                heap.add(item)
                members.add(item)
            case 2:
                heap.discard(item)
                members.discard(item)
        first = heap.first()
        assert (first is None) == (not members)
        assert first is None or (first in members and keys[first] == min(keys[m] for m in members))
        assert len(heap) == len(members)
        assert all((i in heap) == (i in members) for i in range(20))


def test_members_that_come_and_go_leave_no_entries_behind() -> None:
    heap = LazyHeap[int](lambda item: item)
    heap.add(1)
    for _ in range(1000):
        heap.add(2)
        heap.discard(2)
    assert len(heap._entries) < 20
    assert heap.first() == 1


def test_equal_keys_leave_in_the_order_in_which_they_came() -> None:
    heap = LazyHeap[str](lambda _: 0)
    for item in ("b", "a", "c"):
        heap.add(item)
    order = []
    while (item := heap.first()) is not None:
        order.append(item)
        heap.discard(item)
    assert order == ["b", "a", "c"]
