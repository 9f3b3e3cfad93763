"""The page files of a cache directory: found at start, bounded in bytes, the least recently used deleted first.

    DIR/lock                       held while a process uses the directory
    DIR/<fingerprint>/<key>.page   one page; a directory per model and arithmetic
    DIR/<fingerprint>/<key>.tmp    being written; what a killed process leaves is deleted at the next start

The modification time of a file is its last use, so the order survives a restart. Pages of other fingerprints are never
read; they count against the bound until they are the least recently used. Files with other names are left alone.

Invariant: the files known here take at most `max_bytes`. One thread writes, clears and touches; any thread reads.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from ridgeline.engine.page_file import (
    FILE_MODE,
    Bytes,
    PageFileError,
    PageIdentity,
    file_bytes,
    read_page_file,
    write_page_file,
)
from ridgeline.errors import ConfigError

_DIRECTORY_MODE = 0o700
_DIRECTORY_NAME = re.compile(r"[0-9a-f]{64}")
_PAGE_NAME = re.compile(r"[0-9a-f]{64}\.page")


class PageDirectory:
    """Raises ConfigError when the directory cannot be used, or another process uses it."""

    def __init__(self, path: Path, fingerprint: bytes, *, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        own = path / fingerprint.hex()
        self._prefix = f"{own}{os.sep}"
        self._sizes: OrderedDict[str, int] = OrderedDict()  # least recently used first
        self._mutex = threading.Lock()
        try:
            path.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
            own.mkdir(mode=_DIRECTORY_MODE, exist_ok=True)
            self._lock_file = _locked(path)
            self._scan(path)
        except OSError as error:
            raise ConfigError(f"the cache directory {path} cannot be used: {error.strerror}") from error
        self._make_room(0)

    @property
    def num_pages(self) -> int:
        return len(self._sizes)

    def num_foreign_pages(self) -> int:
        """Pages of other models, formats or kernels."""
        with self._mutex:
            return sum(not path.startswith(self._prefix) for path in self._sizes)

    def __contains__(self, key: bytes) -> bool:
        return self._path(key) in self._sizes

    def will_read(self, keys: Iterable[bytes]) -> None:
        """Lets the system fetch files at once that `read` will take one by one, where it can be told to."""
        if not hasattr(os, "posix_fadvise"):
            return
        for key in keys:
            with contextlib.suppress(OSError):  # `read` will tell
                descriptor = os.open(self._path(key), os.O_RDONLY)
                try:
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
                finally:
                    os.close(descriptor)

    def read(self, key: bytes, identity: PageIdentity, payload_bytes: int) -> Bytes:
        """The mapped payload. Raises PageFileError, and deletes the file, or OSError when it cannot be opened."""
        path = self._path(key)
        try:
            return read_page_file(path, identity, payload_bytes)
        except (PageFileError, FileNotFoundError):
            self._delete(path)
            raise

    def write(self, key: bytes, identity: PageIdentity, payload: Bytes, ttl_s: float) -> int:
        """Stores a page; how many others had to be deleted. Raises OSError, and then nothing was stored."""
        path = self._path(key)
        temporary = path.removesuffix(".page") + ".tmp"
        size = file_bytes(identity, payload.nbytes)
        num_deleted = self._make_room(size)
        try:
            write_page_file(path, temporary, identity, payload, ttl_s)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        with self._mutex:
            self._forget(path)
            self._sizes[path] = size
            self.num_bytes += size
        return num_deleted

    def touch(self, keys: Iterable[bytes]) -> None:
        """Marks pages as used just now, the last one as the most recent."""
        now_ns = time.time_ns()
        for i, path in enumerate(map(self._path, keys)):
            with self._mutex:
                if path not in self._sizes:
                    continue
                self._sizes.move_to_end(path)
            with contextlib.suppress(OSError):  # somebody deleted it: a read will notice
                os.utime(path, ns=(now_ns + i, now_ns + i))

    def clear(self) -> int:
        """Deletes all pages of this fingerprint; how many there were."""
        with self._mutex:
            own = [path for path in self._sizes if path.startswith(self._prefix)]
        for path in own:
            self._delete(path)
        return len(own)

    def close(self) -> None:
        """Lets other processes use the directory."""
        self._lock_file.close()

    def _path(self, key: bytes) -> str:
        return f"{self._prefix}{key.hex()}.page"

    def _scan(self, path: Path) -> None:
        """Finds what earlier processes left, oldest use first."""
        found = []
        for directory in path.iterdir():
            if not (_DIRECTORY_NAME.fullmatch(directory.name) and directory.is_dir()):
                continue
            for entry in os.scandir(directory):
                if entry.name.endswith(".tmp"):
                    os.unlink(entry.path)
                elif _PAGE_NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    found.append((status.st_mtime_ns, entry.path, status.st_size))
        for _, file, size in sorted(found):
            self._sizes[file] = size
            self.num_bytes += size

    def _make_room(self, size: int) -> int:
        """Deletes the least recently used until `size` more bytes fit; how many."""
        num_deleted = 0
        while self.num_bytes + size > self.max_bytes:
            with self._mutex:
                oldest = next(iter(self._sizes), None)
            if oldest is None:
                break
            self._delete(oldest)
            num_deleted += 1
        return num_deleted

    def _delete(self, path: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(path)
        with self._mutex:
            self._forget(path)

    def _forget(self, path: str) -> None:
        self.num_bytes -= self._sizes.pop(path, 0)


def _locked(path: Path) -> IO[str]:
    """The directory's lock file, locked: a kill releases it as well as `close` does."""
    descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT, FILE_MODE)
    file = os.fdopen(descriptor, "r+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        hint = "give each server a --cache-dir of its own"
        raise ConfigError(f"the cache directory {path} is in use by another process", hint=hint) from None
    return file
