"""Packed weights as a file (`*.ridge`): written once, mapped by every later start and by every process.

The sections of an executor's weights (its matrices and vectors, in the kernels' own order) stand in the file as they
stand in memory, so a start maps them and is done. Several processes share one copy, which the system may drop and read
again. All bytes are verified at every start, by a checksum that runs at the speed of memory: it reads no more than the
first decode step does, and brings into memory what that step needs.

    0  magic and version, 8 bytes
    8  crc32 of the header from byte 12 to its end
   12  number of sections
   16  identity, 32 bytes: everything that the bytes depend on
   48  per section: bytes, checksum (8 each); zeros up to a page

Numbers are little-endian; each section begins at a whole page. A file is written under another name and renamed, so
it is whole or not there, and never written in place afterwards, so a mapped one does not change. Its modification time
does: it tells when a start last mapped it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import mmap
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ridgeline import _native  # type: ignore[attr-defined]

Bytes = NDArray[np.uint8]

MAGIC = b"RIDGEPK1"
IDENTITY_BYTES = 32
ALIGNMENT = 4096
SUFFIX = ".ridge"
UNFINISHED_SUFFIX = ".tmp"
DEFAULT_MAX_BYTES = 50 * 10**9
FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
_CRC_END = 12
_COUNT = struct.Struct("<I")


class PackedFileError(Exception):
    """A file that is not the wanted one: `damaged`, or `outdated` (sound, but of another checkpoint, format or
    packing)."""

    def __init__(self, kind: Literal["damaged", "outdated"], problem: str) -> None:
        super().__init__(f"{kind}: {problem}")
        self.kind = kind


class BusyError(Exception):
    """Another process is writing the file."""


@dataclass(frozen=True)
class PackedFile:
    """Where the weights of one executor are kept. `identity` stands for all that their bytes depend on; `max_bytes` is
    what all files of the directory may take."""

    path: Path
    identity: bytes
    max_bytes: int = DEFAULT_MAX_BYTES

    def holding(self, contents: str) -> PackedFile:
        """The same file, known also by how its contents are made of the weights."""
        identity = hashlib.blake2b(self.identity + contents.encode(), digest_size=IDENTITY_BYTES).digest()
        return dataclasses.replace(self, identity=identity)

    def map(self, threads: int, *, verify: bool = True) -> list[Bytes]:
        """The sections; unverified only by whoever wrote them just now. Raises PackedFileError, or OSError when the
        file cannot be opened (FileNotFoundError: there is none yet)."""
        with open(self.path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise PackedFileError("damaged", "it is empty")
            _will_need(file.fileno())
            data = np.frombuffer(mmap.mmap(file.fileno(), size, mmap.MAP_SHARED, mmap.PROT_READ), np.uint8)
        sizes, stored = self._checked_header(data)
        sections = [data[start : start + length] for start, length in zip(_starts(sizes), sizes, strict=False)]
        if verify and (found := _native.checksums(sections, threads)) != stored:
            wrong = [i for i, pair in enumerate(zip(found, stored, strict=True)) if len(set(pair)) > 1]
            raise PackedFileError("damaged", f"{len(wrong)} of {len(sizes)} sections have another checksum")
        with contextlib.suppress(OSError):  # another user's, or a disk that is read-only: nobody cleans up there
            os.utime(self.path)
        return sections

    def write(self, sections: Sequence[Bytes], threads: int, progress: Callable[[float], None]) -> None:
        """Stores them; `progress` gets the written share. Raises BusyError, or OSError, and then nothing changed."""
        sizes = [section.nbytes for section in sections]
        starts = _starts(sizes)
        header = self._header(sizes, _native.checksums(list(sections), threads))
        self.path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        with self._temporary() as (descriptor, temporary):
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, 0, starts[-1])  # a full disk shows itself here, not half-way
            _write_at(descriptor, 0, header)
            for section, start in zip(sections, starts, strict=False):
                progress(start / starts[-1])
                _write_at(descriptor, start, section.data)
            os.ftruncate(descriptor, starts[-1])
            os.rename(temporary, self.path)
        progress(1.0)

    def _header(self, sizes: Sequence[int], sums: Sequence[int]) -> bytes:
        numbers = [number for pair in zip(sizes, sums, strict=True) for number in pair]
        body = _COUNT.pack(len(sizes)) + self.identity + struct.pack(f"<{len(numbers)}Q", *numbers)
        body += bytes(-(_CRC_END + len(body)) % ALIGNMENT)
        return MAGIC + struct.pack("<I", zlib.crc32(body)) + body

    def _checked_header(self, data: Bytes) -> tuple[list[int], list[int]]:
        """Sizes and checksums of the sections of a file whose header and length are as they must be."""
        start = data[: _CRC_END + _COUNT.size].tobytes()
        if len(start) < _CRC_END + _COUNT.size or not start.startswith(MAGIC[:-1]):
            raise PackedFileError("damaged", "it does not begin as a packed file does")
        if not start.startswith(MAGIC):
            raise PackedFileError("outdated", "it is of another version")
        (count,) = _COUNT.unpack_from(start, _CRC_END)
        header = data[: _header_bytes(count)].tobytes()
        if zlib.crc32(header[_CRC_END:]) != int.from_bytes(header[len(MAGIC) : _CRC_END], "little"):
            raise PackedFileError("damaged", "the header's checksum differs")
        numbers = struct.unpack_from(f"<{2 * count}Q", header, _CRC_END + _COUNT.size + IDENTITY_BYTES)
        sizes, sums = list(numbers[::2]), list(numbers[1::2])
        if self._header(sizes, sums) != header:
            raise PackedFileError("outdated", "the checkpoint, the format or the way of packing has changed")
        if len(data) != _starts(sizes)[-1]:
            raise PackedFileError("damaged", f"it has {len(data):,} bytes instead of {_starts(sizes)[-1]:,}")
        return sizes, sums

    @contextlib.contextmanager
    def _temporary(self) -> Iterator[tuple[int, Path]]:
        """A locked file to write, gone afterwards unless renamed. What a killed process leaves is written over."""
        temporary = self.path.with_suffix(UNFINISHED_SUFFIX)
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT, FILE_MODE)
        try:
            _lock(descriptor, temporary)
            os.ftruncate(descriptor, 0)
            try:
                yield descriptor, temporary
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
        finally:
            os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    """Raises BusyError when another process has the lock, or had it and renamed the file in the meantime."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BusyError from None
    try:
        is_ours = os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        is_ours = False
    if not is_ours:
        raise BusyError


def file_bytes(sections: Sequence[Bytes]) -> int:
    """The size of a file that holds them."""
    return _starts([section.nbytes for section in sections])[-1]


def _header_bytes(count: int) -> int:
    size = _CRC_END + _COUNT.size + IDENTITY_BYTES + 16 * count
    return size + -size % ALIGNMENT


def _starts(sizes: Sequence[int]) -> list[int]:
    """Where each section begins, then where the file ends."""
    return list(accumulate((size + -size % ALIGNMENT for size in sizes), initial=_header_bytes(len(sizes))))


def _write_at(descriptor: int, offset: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def _will_need(descriptor: int) -> None:
    """Lets the system fetch the file from the disk in one go, where it can be told to."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
