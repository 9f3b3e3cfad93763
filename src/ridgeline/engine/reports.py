"""What people want to know of the prefix cache: what it holds, and why a prompt missed.

Reports are plain values, so that they can leave the engine's thread.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.engine.prefix import TOKEN_BYTES, Node, decode, encode
from ridgeline.engine.radix import RadixTree

NUM_TOKENS_AROUND = 8  # stored tokens shown on either side of the first that differs
MAX_SIBLINGS = 1000  # that are compared to find the nearest: a report must not hold up a step


@dataclass(frozen=True, slots=True)
class MissReport:
    """Why a prompt was cached no further: what the caller's own namespace holds that comes nearest to it.

    `num_matching_tokens` is exact, not rounded to pages: the token at that index is the first that differs, or the
    first that nothing is stored for (then `stored_ids` ends there).
    """

    num_hit_tokens: int  # in memory when the request started, in whole pages
    num_matching_tokens: int  # of the nearest stored prefix, expired ones included
    stored_start: int  # index of the first of `stored_ids`
    stored_ids: tuple[int, ...]  # of the nearest stored prefix, around index `num_matching_tokens`
    expired_ago_s: float | None  # since the nearest prefix expired; None: it has not, and is no reason


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A run of stored pages; at the top a namespace, which has none itself."""

    namespace: str
    start: int  # index of its first token in the sequence
    num_tokens: int
    num_pages: int
    first_ids: tuple[int, ...]  # tokens of its first page
    num_users: int  # running requests that use it
    num_hits: int
    last_used_ago_s: float | None  # None: at the top
    expires_in_s: float | None  # below 0: it has, and is not matched any more; None: it does not expire
    children: tuple[TreeNode, ...]


def snapshot(tree: RadixTree, now: float) -> list[TreeNode]:
    """One entry per namespace."""
    return [_entry(root, tree.page_size, now) for root in tree.roots()]


def _entry(top: Node, page_size: int, now: float) -> TreeNode:
    """Without recursion over the depth, which can be that of a long conversation's branches."""
    entries: dict[Node, TreeNode] = {}
    for node in reversed(list(top.subtree())):
        is_root = node.parent is None
        expires = not is_root and node.num_locks == 0 and node.expires_s < math.inf
        entries[node] = TreeNode(
            namespace=node.namespace,
            start=node.start * page_size,
            num_tokens=len(node.pages) * page_size,
            num_pages=len(node.pages),
            first_ids=tuple(decode(node.tokens[: page_size * TOKEN_BYTES])),
            num_users=node.num_locks,
            num_hits=node.num_hits,
            last_used_ago_s=None if is_root else now - node.last_used_s,
            expires_in_s=node.expires_s - now if expires else None,
            children=tuple(entries.pop(child) for child in node.children.values()),
        )
    return entries[top]


def nearest(tree: RadixTree, namespace: str, token_ids: Sequence[int], now: float) -> MissReport:
    page_size = tree.page_size
    tokens = encode(token_ids)
    root = tree.root(namespace)
    hit = tree.match(root, encode(token_ids[: len(token_ids) - 1]))
    match = tree.match(root, tokens, expired_too=True)
    at = len(match.pages) * page_size * TOKEN_BYTES
    following, num_common = _best_continuation(match.node, match.num_in_node, tokens[at:], page_size)
    num_matching = len(match.pages) * page_size + num_common
    stored = decode(tokens[:at] + following)
    start = max(0, num_matching - NUM_TOKENS_AROUND)
    expired_s = None if hit.expired is None else hit.expired.expires_s
    return MissReport(
        num_hit_tokens=len(hit.pages) * page_size,
        num_matching_tokens=num_matching,
        stored_start=start,
        stored_ids=tuple(stored[start : num_matching + NUM_TOKENS_AROUND]),
        expired_ago_s=None if expired_s is None else now - expired_s,
    )


def _best_continuation(node: Node, num_in_node: int, tokens: bytes, page_size: int) -> tuple[bytes, int]:
    """The stored run after a match that has most tokens in common with what the prompt goes on with, and how many."""
    page_bytes = page_size * TOKEN_BYTES
    if node.parent is not None and num_in_node < len(node.pages):
        runs = [node.tokens[num_in_node * page_bytes :]]
    else:
        runs = [child.tokens for child in itertools.islice(node.children.values(), MAX_SIBLINGS)]
    runs = [run[: 2 * page_bytes] for run in runs]  # they differ within the first page
    counted = [(run, _num_common_tokens(run, tokens)) for run in runs]
    return max(counted, key=lambda pair: pair[1], default=(b"", 0))


def _num_common_tokens(a: bytes, b: bytes) -> int:
    for index, (x, y) in enumerate(zip(decode(a[: len(b)]), decode(b[: len(a)]), strict=True)):
        if x != y:
            return index
    return min(len(a), len(b)) // TOKEN_BYTES
