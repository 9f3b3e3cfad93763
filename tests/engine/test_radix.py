"""The tree alone, with pages of two tokens; `tests/engine/test_cache.py` runs it under load."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.engine.prefix import Match, Node, Use, common_pages, decode, encode
from ridgeline.engine.radix import RadixTree

PAGE = 2


class Fixture:
    """A tree on a logical clock; pages are numbered as they are inserted."""

    def __init__(self) -> None:
        self.now = 0.0
        self.tree = RadixTree(PAGE, lambda: self.now)
        self.next_page = 1

    def match(self, text: str, namespace: str = "") -> Match:
        return self.tree.match(self.tree.root(namespace), tokens(text))

    def hit(self, text: str, namespace: str = "") -> list[int]:
        return self.match(text, namespace).pages

    def use(self, text: str, namespace: str = "", use: Use | None = None) -> Node:
        """What a request does: takes what is there, adds the rest, and keeps it locked."""
        use = use or Use()
        match = self.match(text, namespace)
        node = self.tree.lock(match)
        self.tree.touch(node, use, num_hits=1)
        lacking = len(text) // PAGE - len(match.pages)
        if lacking:
            pages = list(range(self.next_page, self.next_page + lacking))
            self.next_page += lacking
            node, _ = self.tree.insert(node, tokens(text)[len(match.pages) * PAGE * 4 :], pages, use)
        self.tree.check()
        return node

    def put(self, text: str, namespace: str = "", use: Use | None = None) -> None:
        self.tree.unlock(self.use(text, namespace, use))
        self.tree.check()

    def evict(self, count: int = 1) -> list[int]:
        removed = self.tree.evict(count)
        self.tree.check()
        return [] if removed is None else removed.pages


def tokens(text: Sequence[str]) -> bytes:
    whole = len(text) // PAGE * PAGE
    return encode(ord(c) for c in text[:whole])


@pytest.fixture
def fix() -> Fixture:
    return Fixture()


def test_the_longest_prefix_of_whole_pages_hits(fix: Fixture) -> None:
    fix.put("abcdef")
    assert fix.hit("abcdef") == [1, 2, 3]
    assert fix.hit("abcdefgh") == [1, 2, 3]
    assert fix.hit("abcdeX") == [1, 2]
    assert fix.hit("abcXef") == [1]
    assert fix.hit("aXcdef") == []
    assert fix.hit("bcdef") == []
    assert fix.tree.size == 3


def test_siblings_split_at_the_first_page_that_differs(fix: Fixture) -> None:
    fix.put("abcdef")
    fix.put("abcdXf")
    fix.put("abXdef")
    assert fix.hit("abcdef") == [1, 2, 3]
    assert fix.hit("abcdXf") == [1, 2, 4]
    assert fix.hit("abXdef") == [1, 5, 6]
    assert fix.tree.size == 6
    (top,) = fix.tree.root("").children.values()
    assert (top.pages, sorted(len(c.pages) for c in top.children.values())) == ([1], [1, 2])


def test_namespaces_never_share_and_vanish_when_empty(fix: Fixture) -> None:
    fix.put("abcd", "one")
    assert fix.hit("abcd", "two") == []
    fix.put("abcd", "two")
    assert fix.hit("abcd", "one") == [1, 2]
    assert fix.hit("abcd", "two") == [3, 4]
    assert fix.tree.flush("one") == [1, 2]
    assert [root.namespace for root in fix.tree.roots()] == ["two"]
    assert sorted(fix.tree.flush()) == [3, 4]
    assert fix.tree.roots() == []
    assert fix.tree.size == 0
    fix.tree.check()


def test_the_same_key_with_other_tokens_misses(fix: Fixture) -> None:
    """Whatever a page's key hashes to, its tokens are compared: here all keys collide."""

    class Colliding(bytes):
        def __hash__(self) -> int:
            return 7

        def __eq__(self, other: object) -> bool:
            return bytes(self) == bytes(other) if isinstance(other, bytes) else NotImplemented

        def __getitem__(self, index: object) -> object:
            part = super().__getitem__(index)  # type: ignore[index]
            return Colliding(part) if isinstance(part, bytes) else part

    root = fix.tree.lock(fix.tree.match(fix.tree.root(""), b""))
    node, _ = fix.tree.insert(root, Colliding(tokens("abcd")), [1, 2], Use())
    assert hash(next(iter(fix.tree.root("").children))) == 7
    assert fix.tree.match(fix.tree.root(""), Colliding(tokens("XYcd"))).pages == []
    assert fix.tree.match(fix.tree.root(""), Colliding(tokens("abXY"))).pages == [1]
    assert fix.tree.match(fix.tree.root(""), Colliding(tokens("abcd"))).pages == [1, 2]
    fix.tree.unlock(node)


def test_an_output_grows_its_leaf_unless_others_use_it(fix: Fixture) -> None:
    mine = fix.use("abcd")
    longer, pages = fix.tree.insert(mine, tokens("ef"), [8], Use())
    assert (longer, longer.pages, pages) == (mine, [1, 2, 8], [8])
    other = fix.use("abcdef")
    longest, _ = fix.tree.insert(mine, tokens("gh"), [9], Use())
    assert longest is not mine, "the other request's lock must not cover a page that it does not use"
    assert (longest.pages, longest.num_locks, mine.num_locks) == ([9], 1, 2)
    fix.tree.unlock(longest)
    fix.tree.unlock(other)
    fix.tree.check()


def test_a_leaf_does_not_grow_by_what_should_expire_sooner(fix: Fixture) -> None:
    fix.put("abcd", use=Use(ttl_s=100))
    short = fix.use("abcdef", use=Use(ttl_s=5))
    assert short.pages == [3]
    fix.tree.unlock(short)
    fix.now = 6
    assert fix.hit("abcdef") == [1, 2]


def test_who_was_first_wins_and_the_second_learns_the_pages(fix: Fixture) -> None:
    first = fix.tree.lock(fix.match(""))
    second = fix.tree.lock(fix.match(""))
    first, _ = fix.tree.insert(first, tokens("abcd"), [1, 2], Use())
    second, pages = fix.tree.insert(second, tokens("abcdef"), [7, 8, 9], Use())
    assert pages == [1, 2, 9]
    assert fix.hit("abcdef") == [1, 2, 9]
    assert fix.tree.size == 3
    fix.tree.unlock(first)
    fix.tree.unlock(second)
    fix.tree.check()


def test_locked_prefixes_are_not_evicted(fix: Fixture) -> None:
    fix.put("abcdefgh")
    node = fix.tree.lock(fix.match("abcd"))
    assert fix.evict(9) == [3, 4]
    assert fix.evict() == []
    fix.tree.unlock(node)
    assert fix.evict(9) == [1, 2]
    assert fix.tree.roots() == []


def test_leaves_leave_least_recently_used_first_and_tails_before_heads(fix: Fixture) -> None:
    for fix.now, text in enumerate(("abcdef", "abXX", "YYYY"), start=1):
        fix.put(text)
    fix.now = 4
    fix.tree.unlock(fix.use("abcdef"))
    order = [fix.evict() for _ in range(6)]
    assert order == [[4], [6], [5], [3], [2], [1]]
    assert fix.evict() == []


def test_more_important_prefixes_outlive_more_recent_ones(fix: Fixture) -> None:
    fix.put("aaaa", use=Use(priority=-1))
    fix.now = 1
    fix.put("bbbb", use=Use(priority=3))
    fix.put("cccc", use=Use(priority=0))
    assert [fix.evict(2) for _ in range(3)] == [[3, 4], [5, 6], [1, 2]]


def test_removed_pages_tell_their_sequence(fix: Fixture) -> None:
    fix.put("abcd")
    fix.put("abcdefgh")
    removed = fix.tree.evict(1)
    assert removed is not None
    assert (removed.pages, removed.start) == ([4], 3)
    assert [*map(chr, decode(removed.prefix()))] == list("abcdefgh")
    removed = fix.tree.evict(9)
    assert removed is not None
    assert removed.start == 0
    assert [*map(chr, decode(removed.prefix()))] == list("abcdef")


def test_a_prefix_expires_after_its_last_use(fix: Fixture) -> None:
    fix.put("abcdef", use=Use(ttl_s=10))
    fix.now = 9
    fix.put("abcd", use=Use(ttl_s=10))
    fix.now = 18
    assert fix.hit("abcdef") == [1, 2], "the use of a head does not keep its tail alive"
    assert fix.match("abcdef").expired is not None
    assert fix.tree.expire(fix.now) == [3]
    assert fix.match("abcdef").expired is None
    fix.now = 19
    assert fix.hit("abcd") == []
    assert sorted(fix.tree.expire(fix.now)) == [1, 2]
    fix.tree.check()


def test_what_is_in_use_does_not_expire(fix: Fixture) -> None:
    node = fix.use("abcd", use=Use(ttl_s=10))
    fix.now = 50
    assert fix.hit("abcd") == [1, 2]
    assert fix.tree.expire(fix.now) == []
    fix.tree.touch(node, Use(ttl_s=10))
    fix.tree.unlock(node)
    fix.now = 59
    assert fix.hit("abcd") == [1, 2]
    fix.now = 60
    assert fix.hit("abcd") == []


def test_the_longest_of_its_users_lifetimes_counts(fix: Fixture) -> None:
    fix.put("abcd", use=Use(ttl_s=100))
    fix.put("abcd", use=Use(ttl_s=1))
    fix.now = 99
    assert fix.hit("abcd") == [1, 2]
    fix.put("abcd", use=Use(ttl_s=math.inf))
    fix.now = 1e9
    assert fix.hit("abcd") == [1, 2]
    assert fix.tree.expire(fix.now) == []


def test_what_was_computed_again_takes_up_what_had_expired(fix: Fixture) -> None:
    fix.put("abcd", use=Use(ttl_s=1))
    fix.now = 2
    fix.put("abcd", use=Use(ttl_s=5))
    assert fix.hit("abcd") == [1, 2], "the pages that were there"
    fix.now = 6
    assert fix.hit("abcd") == [1, 2]
    assert fix.tree.size == 2


def test_flush_spares_what_is_in_use(fix: Fixture) -> None:
    node = fix.use("abcd")
    fix.put("abcdef")
    fix.put("abXY")
    assert sorted(fix.tree.flush()) == [3, 4]
    assert fix.hit("abcdef") == [1, 2]
    fix.tree.unlock(node)
    fix.tree.check()


@given(st.lists(st.integers(0, 2), max_size=24), st.lists(st.integers(0, 2), max_size=24), st.integers(1, 4))
def test_common_pages(a: list[int], b: list[int], page_size: int) -> None:
    expected = 0
    while (end := (expected + 1) * page_size) <= min(len(a), len(b)) and a[:end] == b[:end]:
        expected += 1
    assert common_pages(encode(a), encode(b), page_size) == expected


def test_check_finds_a_lost_lock(fix: Fixture) -> None:
    node = fix.use("abcd")
    assert node.parent is not None
    node.parent.num_locks -= 1
    with pytest.raises(AssertionError, match="0 locks on a node, 1 on its children"):
        fix.tree.check()
