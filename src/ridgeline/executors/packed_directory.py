"""The directory of packed files is a cache with a bound: who writes a file deletes others, those first that nobody has
used for the longest time, until all fit.

A file is used when it is mapped, and its modification time tells when. So files of checkpoints that are gone, and of
packings that no release reads any more, are the first to go, without anybody knowing whose they were. What killed
processes left half written counts too. A process that runs on a deleted file keeps it to its end; the next start packs
again. Files that do not begin as packed ones do are not ours, and are neither counted nor deleted.
"""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ridgeline.executors.packed_file import MAGIC, SUFFIX, UNFINISHED_SUFFIX


@dataclass(frozen=True)
class StoredFile:
    path: Path
    num_bytes: int
    used_at: float  # seconds since the epoch


def make_room(place: Path, num_bytes: int, max_bytes: int) -> list[StoredFile]:
    """Deletes files beside `place` until `num_bytes` written there keep the directory within `max_bytes`; what it
    deleted. It does not touch `place` itself, which the writing replaces. Raises OSError."""
    others = sorted(_stored_files(place), key=lambda file: file.used_at)
    excess = sum(file.num_bytes for file in others) + num_bytes - max_bytes
    deleted: list[StoredFile] = []
    while excess > 0 and len(deleted) < len(others):
        oldest = others[len(deleted)]
        oldest.path.unlink(missing_ok=True)
        excess -= oldest.num_bytes
        deleted.append(oldest)
    return deleted


def _stored_files(place: Path) -> Iterator[StoredFile]:
    """The packed files beside `place`, finished or not; none where there is no directory yet."""
    own = {place, place.with_suffix(UNFINISHED_SUFFIX)}
    with contextlib.suppress(FileNotFoundError):
        for path in place.parent.iterdir():
            if path.suffix not in (SUFFIX, UNFINISHED_SUFFIX) or path in own:
                continue
            with contextlib.suppress(OSError):  # it is gone by now, or not ours to read
                status = path.lstat()
                if stat.S_ISREG(status.st_mode) and _begins_as_packed(path):
                    yield StoredFile(path, status.st_size, status.st_mtime)


def _begins_as_packed(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(len(MAGIC) - 1) == MAGIC[:-1]  # of any version
