"""What the prefix tree costs: a 32,768-token prompt matched and inserted, and evictions from 100,000 pages.

Run it as `.venv/bin/python benchmarks/prefix_cache.py`. Pure Python and no model; times are the median of the runs.
"""

from __future__ import annotations

import platform
import random
import statistics
import time

from ridgeline.engine.prefix import Node, Use, encode
from ridgeline.engine.radix import RadixTree

PAGE_SIZE = 16
PROMPT_TOKENS = 32_768
TREE_PAGES = 100_000
PAGES_PER_PROMPT = 5
VOCAB_SIZE = 49_152
REPEATS = 11


def insert(tree: RadixTree, tokens: bytes, first_page: int) -> Node:
    """As a request does it that finds nothing."""
    node = tree.lock(tree.match(tree.root(""), tokens))
    count = len(tokens) // (PAGE_SIZE * 4)
    node, _ = tree.insert(node, tokens, list(range(first_page, first_page + count)), Use())
    return node


def time_long_prompt(rng: random.Random) -> tuple[float, float, float]:
    """Seconds to encode a prompt, to match it in vain and insert it, and to match it then."""
    encoding, inserting, matching = [], [], []
    token_ids = [rng.randrange(VOCAB_SIZE) for _ in range(PROMPT_TOKENS)]
    for _ in range(REPEATS):
        tree = RadixTree(PAGE_SIZE, time.monotonic)
        times = [time.perf_counter()]
        tokens = encode(token_ids)
        times.append(time.perf_counter())
        tree.unlock(insert(tree, tokens, 1))
        times.append(time.perf_counter())
        assert len(tree.match(tree.root(""), tokens).pages) == PROMPT_TOKENS // PAGE_SIZE
        times.append(time.perf_counter())
        for spent, start, end in zip((encoding, inserting, matching), times, times[1:], strict=False):
            spent.append(end - start)
    return statistics.median(encoding), statistics.median(inserting), statistics.median(matching)


def time_evictions(rng: random.Random) -> list[float]:
    """Seconds of each eviction of one page, until a full tree is empty, in ascending order."""
    tree = RadixTree(PAGE_SIZE, time.monotonic)
    for first_page in range(1, TREE_PAGES, PAGES_PER_PROMPT):
        tokens = encode(rng.randrange(VOCAB_SIZE) for _ in range(PAGES_PER_PROMPT * PAGE_SIZE))
        tree.unlock(insert(tree, tokens, first_page))
    assert tree.size == TREE_PAGES
    times = []
    while tree.size:
        start = time.perf_counter()
        tree.evict(1)
        times.append(time.perf_counter() - start)
    return sorted(times)


def main() -> None:
    rng = random.Random(0)
    encode_s, insert_s, match_s = time_long_prompt(rng)
    evictions = time_evictions(rng)
    print(f"Python {platform.python_version()} on {platform.processor() or platform.machine()}, one thread")
    print(f"{PROMPT_TOKENS:,}-token prompt: encode {encode_s * 1e3:.3f} ms, once and off the engine's thread;")
    print(f"  match + insert {insert_s * 1e3:.3f} ms (limit 1 ms); match when cached {match_s * 1e3:.3f} ms")
    mean_s, p99_s = statistics.fmean(evictions), evictions[len(evictions) * 99 // 100]
    mean, p99 = f"{mean_s * 1e6:.1f} us", f"{p99_s * 1e6:.1f} us"
    print(f"{TREE_PAGES:,} pages: eviction of one {mean} on average (limit 20 us), p99 {p99}")


if __name__ == "__main__":
    main()
