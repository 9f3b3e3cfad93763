"""DiskTier: KV pages that survive their eviction from memory and the end of the process (`--cache-dir`).

`store` writes nothing itself: it queues a copy, and a thread writes at a bounded rate, so a step never waits
for a disk. Queued pages are found by `lookup` and `load` like written ones. A queue that is full drops the page: a
cache may forget, it must not hold up. `close` writes what is queued.

Whatever is wrong with a file makes its page, and so all pages behind it, a miss and a count in `stats`. Only
`page_file.py` decides that a file is right, and only by comparing all of it.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ridgeline.engine.page_directory import PageDirectory
from ridgeline.engine.page_file import Bytes, PageChain, PageFileError, PageIdentity
from ridgeline.engine.tier import TierStats
from ridgeline.errors import ConfigError
from ridgeline.units import format_bytes

_log = logging.getLogger(__name__)

WRITE_BYTES_PER_S = 200e6
MAX_HEADER_BYTES = 1024  # of a page file, usually
MAX_PENDING_BYTES = 256 << 20
FLUSH_TIMEOUT_S = 60.0


class PageMemory(Protocol):
    """An executor whose pages can be read and written between steps."""

    page_size: int
    arithmetic_id: str

    @property
    def page_bytes(self) -> int: ...

    def read_page(self, page_id: int) -> Bytes: ...

    def write_page(self, page_id: int, data: Bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class _Offer:
    """A page on its way to disk."""

    identity: PageIdentity
    payload: Bytes
    ttl_s: float


class DiskTier:
    """A Tier over page files. `fingerprint` stands for all that K and V depend on beside tokens and namespace.

    Raises ConfigError when the directory cannot be used or `max_bytes` holds no two pages. `lookup`, `load` and `store`
    belong to the engine's thread, the others to any.
    """

    def __init__(
        self,
        path: Path,
        memory: PageMemory,
        *,
        fingerprint: bytes,
        max_bytes: int,
        write_bytes_per_s: float = WRITE_BYTES_PER_S,
        max_pending_bytes: int = MAX_PENDING_BYTES,
    ) -> None:
        page_bytes = memory.page_bytes
        if max_bytes < 2 * page_bytes:
            raise ConfigError(
                f"cache_disk of {format_bytes(max_bytes)} holds no two KV pages of {format_bytes(page_bytes)}",
                hint=f"a token takes {page_bytes // memory.page_size:,} bytes; give room for some thousands",
            )
        self._memory = memory
        self._fingerprint = fingerprint
        self._chain = PageChain(fingerprint, memory.page_size)
        self._directory = PageDirectory(path, fingerprint, max_bytes=max_bytes)
        self._num_foreign_pages = self._directory.num_foreign_pages()
        self._write_pause_s = page_bytes / write_bytes_per_s
        self._max_pending = max(1, max_pending_bytes // page_bytes)
        self._writing = threading.Lock()  # held while the directory changes; taken before `_changed`
        self._changed = threading.Condition()  # guards the fields below
        self._pending: OrderedDict[bytes, _Offer] = OrderedDict()  # oldest first
        self._used: list[bytes] = []  # keys to mark as used, most recent last
        self._counts: Counter[str] = Counter()
        self._hurried = False  # no more pauses between writes
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="ridgeline-disk-tier", daemon=True)
        self._thread.start()

    # -- the engine's thread ------------------------------------------------------------------------------------------

    def lookup(self, namespace: str, token_ids: Sequence[int], start_page: int, max_pages: int) -> int:
        """How many pages from `start_page` on are queued or on disk, at most `max_pages`."""
        if not self._pending and not self._directory.num_pages:
            return 0
        pages = self._chain.pages(namespace, token_ids, start_page + max_pages)[start_page:]
        return sum(1 for _ in itertools.takewhile(self._has, (key for key, _ in pages)))

    def load(self, namespace: str, token_ids: Sequence[int], pages: Sequence[tuple[int, int]]) -> int:
        """Fills executor pages, given as (page index, page id) in order; how many, from the first on, are right."""
        chain = self._chain.pages(namespace, token_ids, pages[-1][0] + 1 if pages else 0)
        self._directory.will_read(chain[index][0] for index, _ in pages)
        num_loaded = 0
        for index, page_id in pages:
            payload = self._read(*chain[index])
            if payload is None:
                break
            self._memory.write_page(page_id, payload)
            num_loaded += 1
        with self._changed:
            self._counts["num_read"] += num_loaded
            if num_loaded:  # heads most recent: no page is worth keeping without those before it
                last = pages[num_loaded - 1][0]
                self._used += [key for key, _ in reversed(chain[: last + 1])]
            self._changed.notify_all()
        return num_loaded

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
        """Queues a page for writing. A queue that is full drops it, or with `wait` is written at full speed first."""
        key, identity = self._chain.pages(namespace, token_ids, page_index + 1)[page_index]
        with self._changed:
            if wait:
                self._hurried = True
                self._changed.notify_all()
                self._changed.wait_for(self._has_room, FLUSH_TIMEOUT_S)
            if self._has(key):
                self._used.append(key)
            elif self._has_room():
                self._pending[key] = _Offer(identity, self._memory.read_page(page_id), ttl_s)
            else:
                self._counts["num_dropped"] += 1
            self._changed.notify_all()

    def _has_room(self) -> bool:
        return len(self._pending) < self._max_pending

    def _has(self, key: bytes) -> bool:
        return key in self._pending or key in self._directory

    def _read(self, key: bytes, identity: PageIdentity) -> Bytes | None:
        """A page's bytes; None: it is not there, or not what it should be."""
        offer = self._pending.get(key)
        if offer is not None:
            return offer.payload
        try:
            return self._directory.read(key, identity, self._memory.page_bytes)
        except PageFileError as error:
            if error.kind != "expired":
                _log.warning("page %s of the disk cache is not used and deleted: %s", key.hex()[:16], error)
            self._count(f"num_{error.kind}")
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                self._count("num_failed")
        return None

    # -- any thread ---------------------------------------------------------------------------------------------------

    def stats(self) -> TierStats:
        with self._changed:
            return TierStats(
                num_pages=self._directory.num_pages,
                num_bytes=self._directory.num_bytes,
                max_bytes=self._directory.max_bytes,
                max_pages=self._directory.max_bytes // (self._memory.page_bytes + MAX_HEADER_BYTES),
                num_pending=len(self._pending),
                num_foreign_pages=self._num_foreign_pages,
                **self._counts,
            )

    def clear(self) -> int:
        """Forgets and deletes all pages of this model; how many there were."""
        with self._writing:
            with self._changed:
                num_pending = len(self._pending)
                self._pending.clear()
            return num_pending + self._directory.clear()

    def flush(self, timeout_s: float = FLUSH_TIMEOUT_S) -> bool:
        """Waits until all that was queued is written; whether it was in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._pending and not self._used, timeout_s)

    def close(self) -> None:
        """Writes what is queued, at full speed, and lets other processes use the directory."""
        with self._changed:
            self._hurried = self._closing = True
            self._changed.notify_all()
        self._thread.join(FLUSH_TIMEOUT_S)
        if self._thread.is_alive():
            _log.error("the disk does not keep up: %d KV pages are not written", len(self._pending))
        self._directory.close()

    def _count(self, name: str, number: int = 1) -> None:
        with self._changed:
            self._counts[name] += number

    # -- the thread that writes ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._used or self._closing)
                if not self._pending and not self._used:
                    return
            with self._writing:
                self._mark_used()
                self._write_oldest()
            with self._changed:
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._hurried, self._write_pause_s)

    def _mark_used(self) -> None:
        with self._changed:
            used = list(self._used)
        self._directory.touch(used)
        with self._changed:
            del self._used[: len(used)]

    def _write_oldest(self) -> None:
        """A page stays queued until it is written: at no moment is it in neither place."""
        with self._changed:
            if not self._pending:
                return
            key, offer = next(iter(self._pending.items()))
        try:
            num_evicted = self._directory.write(key, offer.identity, offer.payload, offer.ttl_s)
            self._count("num_written")
            self._count("num_evicted", num_evicted)
        except Exception as error:  # whatever it is, the thread goes on with the next page
            _log.warning("a KV page cannot be written: %r", error)
            self._count("num_failed")
        with self._changed:
            self._pending.pop(key, None)
