from __future__ import annotations

from collections.abc import Sequence

from ridgeline.engine.prefix import Use, encode
from ridgeline.engine.radix import RadixTree
from ridgeline.engine.reports import NUM_TOKENS_AROUND, MissReport, nearest, snapshot

PAGE = 4


class Stored:
    def __init__(self) -> None:
        self.now = 0.0
        self.tree = RadixTree(PAGE, lambda: self.now)

    def put(self, token_ids: Sequence[int], namespace: str = "", ttl_s: float = float("inf")) -> None:
        use = Use(ttl_s)
        tokens = encode(token_ids)
        match = self.tree.match(self.tree.root(namespace), tokens)
        node = self.tree.lock(match)
        self.tree.touch(node, use, num_hits=1)
        rest = tokens[len(match.pages) * PAGE * 4 :]
        if rest:
            first = self.tree.size + 1
            node, _ = self.tree.insert(node, rest, list(range(first, first + len(rest) // (PAGE * 4))), use)
        self.tree.unlock(node)

    def nearest(self, token_ids: Sequence[int], namespace: str = "") -> MissReport:
        return nearest(self.tree, namespace, token_ids, self.now)


def test_the_first_differing_token_is_found_within_a_page() -> None:
    stored = Stored()
    stored.put(range(20))
    report = stored.nearest([*range(10), 99, *range(11, 20)])
    assert (report.num_hit_tokens, report.num_matching_tokens, report.expired_ago_s) == (8, 10, None)
    assert report.stored_start == 10 - NUM_TOKENS_AROUND
    assert report.stored_ids == tuple(range(2, 16)), "up to the end of the second page from where they part"


def test_the_nearest_of_several_is_taken() -> None:
    stored = Stored()
    for third in (1, 2, 3):
        stored.put([0, 0, third, 7] * 2)
    report = stored.nearest([0, 0, 2, 8, 8])
    assert (report.num_hit_tokens, report.num_matching_tokens) == (0, 3)
    assert report.stored_ids == (0, 0, 2, 7, 0, 0, 2, 7)


def test_a_prompt_that_goes_on_where_nothing_is_stored() -> None:
    stored = Stored()
    stored.put(range(8))
    report = stored.nearest(range(12))
    assert (report.num_hit_tokens, report.num_matching_tokens, report.stored_ids) == (8, 8, tuple(range(8)))


def test_the_same_prompt_matches_whole_and_hits_all_but_its_last_token() -> None:
    stored = Stored()
    stored.put(range(8))
    report = stored.nearest(range(8))
    assert (report.num_hit_tokens, report.num_matching_tokens) == (4, 8)


def test_only_the_callers_namespace_is_searched() -> None:
    stored = Stored()
    stored.put(range(8), "other")
    report = stored.nearest(range(8), "mine")
    assert report == MissReport(0, 0, 0, (), None)


def test_an_expired_prefix_is_told_with_its_age() -> None:
    stored = Stored()
    stored.put(range(8), ttl_s=10)
    stored.now = 22
    report = stored.nearest(range(9))
    assert (report.num_hit_tokens, report.num_matching_tokens, report.expired_ago_s) == (0, 8, 12)


def test_a_snapshot_is_the_tree_in_values() -> None:
    stored = Stored()
    stored.put([*range(8)], ttl_s=10)
    stored.now = 3
    stored.put([*range(4), 9, 9, 9, 9], ttl_s=10)
    stored.put([5] * 4, "b")
    stored.now = 4
    first, second = snapshot(stored.tree, stored.now)
    (shared,) = first.children
    assert (shared.start, shared.num_tokens, shared.num_pages, shared.num_hits) == (0, 4, 1, 1)
    assert shared.first_ids == (0, 1, 2, 3)
    assert (shared.last_used_ago_s, shared.expires_in_s, shared.num_users) == (1, 9, 0)
    assert {child.first_ids: (child.start, child.last_used_ago_s, child.expires_in_s) for child in shared.children} == {
        (4, 5, 6, 7): (4, 4, 6),
        (9, 9, 9, 9): (4, 1, 9),
    }
    assert (second.namespace, second.children[0].expires_in_s, second.last_used_ago_s) == ("b", None, None)
