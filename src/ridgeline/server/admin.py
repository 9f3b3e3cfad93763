"""`/cache/tree` and `/cache/flush`: what the prefix cache holds, for people and the UI, and emptying it.

`auth.py` guards both: a tree quotes what all clients have sent.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from ridgeline.engine.reports import TreeNode
from ridgeline.server.cache import Speller
from ridgeline.server.state import Served


def cache_tree(served: Served) -> dict[str, Any]:
    """All stored prefixes as a flat list, parents before their children: a long conversation makes a deep tree."""
    stats, tier = served.engine.stats(), served.engine.tier_stats()
    return {
        "model": served.names[0],
        "page_size": served.runtime.executor.page_size,
        "num_pages": stats.num_pages,
        "num_pages_cached": stats.num_pages_cached,
        "disk": None if tier is None else dataclasses.asdict(tier),
        "nodes": list(_nodes(served.engine.cache_tree(), served.runtime.tokenizer)),
    }


def flush_cache(served: Served) -> dict[str, Any]:
    """Forgets every prefix that no running request uses, in memory and on disk."""
    return {"flushed_pages": served.engine.flush_cache()}


def _nodes(tops: list[TreeNode], speller: Speller | None) -> Iterator[dict[str, Any]]:
    """`text` is that of a node's first page; `salt` is the namespace's."""
    stack: list[tuple[TreeNode, int | None]] = [(top, None) for top in reversed(tops)]
    number = 0
    while stack:
        node, parent = stack.pop()
        yield {
            "id": number,
            "parent": parent,
            "salt": json.loads(node.namespace)[-1],
            "start": node.start,
            "tokens": node.num_tokens,
            "pages": node.num_pages,
            "users": node.num_users,
            "hits": node.num_hits,
            "last_used_ago_s": node.last_used_ago_s,
            "expires_in_s": node.expires_in_s,
            "text": None if speller is None else speller.decode(list(node.first_ids), False),
        }
        stack += [(child, number) for child in reversed(node.children)]
        number += 1
