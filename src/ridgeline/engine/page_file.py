"""One KV page as a file: whose page it is, which tokens it holds, and its bytes.

A file is named by a hash chain: the key of a page covers the namespace, the key of the page before it and its own
tokens, so equal keys mean equal prefixes. The header repeats what the key was made of and is compared whole with what
the reader expects; header and payload have checksums of their own. So a file is either exactly the wanted page or a
PageFileError that says why it is none: `damaged` (cut off, changed bytes), `foreign` (sound, but of another model,
format, namespace or prefix) or `expired`.

    0  magic and version, 8 bytes
    8  crc32 of the header from byte 12 to its end
   12  payload: crc32 (4), length in bytes (8)
   24  seconds that the page outlives its last use, which is the file's modification time (float64; infinity: for ever)
   32  lengths: tokens, namespace (4 each)
   40  fingerprint, key of the page before (32 bytes each)
  104  tokens (int32), namespace (UTF-8), zeros up to a multiple of 64; the payload follows

Numbers are little-endian. The reader maps the file; nothing is ever written in place, so a mapped file cannot change.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import struct
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

MAGIC = b"RIDGEKV1"
KEY_BYTES = 32
ALIGNMENT = 64
ROOT_KEY = bytes(KEY_BYTES)  # stands before the first page
FILE_MODE = 0o600
_PAYLOAD = struct.Struct("<IQd")
_CRC = struct.Struct("<I")
_CRC_END = 12
_MAPPING = {"flags": mmap.MAP_PRIVATE | getattr(mmap, "MAP_POPULATE", 0), "prot": mmap.PROT_READ}

Bytes = NDArray[np.uint8]


class PageFileError(Exception):
    """A file that is not the wanted page."""

    def __init__(self, kind: Literal["damaged", "foreign", "expired"], problem: str) -> None:
        super().__init__(f"{kind}: {problem}")
        self.kind = kind


@dataclass(frozen=True, slots=True)
class PageIdentity:
    """What makes two pages the same: all that K and V depend on. `fingerprint` stands for model, arithmetic and layout
    (32 bytes), `parent` is the key of the page before."""

    fingerprint: bytes
    namespace: str
    parent: bytes
    tokens: tuple[int, ...]

    @property
    def key(self) -> bytes:
        return hashlib.blake2b(self._encoded(), digest_size=KEY_BYTES).digest()

    def header(self, payload_crc: int, payload_bytes: int, ttl_s: float) -> bytes:
        body = _PAYLOAD.pack(payload_crc, payload_bytes, ttl_s) + self._encoded()
        body += bytes(-(_CRC_END + len(body)) % ALIGNMENT)
        return MAGIC + _CRC.pack(zlib.crc32(body)) + body

    def _encoded(self) -> bytes:
        name = self.namespace.encode()
        numbers = struct.pack(f"<{len(self.tokens)}i", *self.tokens)
        lengths = struct.pack("<II", len(self.tokens), len(name))
        return lengths + self.fingerprint + self.parent + numbers + name


class PageChain:
    """The hash chain of the sequence asked for last: calls come in runs over one sequence, whole, cut or longer."""

    def __init__(self, fingerprint: bytes, page_size: int) -> None:
        if len(fingerprint) != KEY_BYTES:  # a directory of another name's length would never be found again
            raise ValueError(f"a fingerprint of {len(fingerprint)} bytes, where {KEY_BYTES} are needed")
        self._fingerprint = fingerprint
        self._page_size = page_size
        self._namespace = ""
        self._token_ids: list[int] = []  # of full pages
        self._pages: list[tuple[bytes, PageIdentity]] = []

    def pages(self, namespace: str, token_ids: Sequence[int], count: int) -> list[tuple[bytes, PageIdentity]]:
        """Key and identity of the first `count` pages of `token_ids`, or of as many as are full."""
        count = min(count, len(token_ids) // self._page_size)
        wanted = list(token_ids[: count * self._page_size])
        num_common = min(len(wanted), len(self._token_ids))
        if namespace != self._namespace or wanted[:num_common] != self._token_ids[:num_common]:
            self._namespace, self._token_ids, self._pages = namespace, [], []
        for start in range(len(self._token_ids), len(wanted), self._page_size):
            parent = self._pages[-1][0] if self._pages else ROOT_KEY
            tokens = tuple(wanted[start : start + self._page_size])
            identity = PageIdentity(self._fingerprint, namespace, parent, tokens)
            self._pages.append((identity.key, identity))
            self._token_ids += tokens
        return self._pages[:count]


def file_bytes(identity: PageIdentity, payload_bytes: int) -> int:
    return len(identity.header(0, payload_bytes, math.inf)) + payload_bytes


def write_page_file(path: str, temporary: str, identity: PageIdentity, payload: Bytes, ttl_s: float) -> None:
    """Writes `temporary` and renames it, so that `path` is whole or not there. Raises OSError."""
    header = identity.header(zlib.crc32(payload.data), payload.nbytes, ttl_s)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
    with open(descriptor, "wb", buffering=0) as file:
        for part in (memoryview(header), payload.data):
            while part:
                part = part[file.write(part) :]
    os.rename(temporary, path)


def read_page_file(path: str, identity: PageIdentity, payload_bytes: int) -> Bytes:
    """The payload, mapped: uint8 [payload_bytes]. Raises PageFileError, or OSError when it cannot be opened."""
    with open(path, "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        if status.st_size < _CRC_END + _PAYLOAD.size:
            raise PageFileError("damaged", f"{status.st_size} bytes are less than a header")
        data = np.frombuffer(mmap.mmap(file.fileno(), status.st_size, **_MAPPING), np.uint8)
    payload_crc, ttl_s = _check_header(data, identity, payload_bytes)
    idle_s = time.time() - status.st_mtime
    if idle_s > ttl_s:
        raise PageFileError("expired", f"last used {idle_s:.0f} s ago, kept for {ttl_s:.0f} s")
    payload: Bytes = data[len(data) - payload_bytes :]
    if zlib.crc32(payload.data) != payload_crc:
        raise PageFileError("damaged", "the payload's checksum differs")
    return payload


def _check_header(data: Bytes, identity: PageIdentity, payload_bytes: int) -> tuple[int, float]:
    """The payload's stored checksum and the time to live, of a file whose header and size are as they must be."""
    payload_crc, stored_bytes, ttl_s = _PAYLOAD.unpack_from(data.data, _CRC_END)
    expected = identity.header(payload_crc, payload_bytes, ttl_s)
    if data[: len(expected)].tobytes() == expected:
        if len(data) != len(expected) + payload_bytes:
            raise PageFileError("damaged", f"{len(data)} bytes instead of {len(expected) + payload_bytes}")
        return payload_crc, ttl_s
    header_bytes = len(data) - stored_bytes
    if not _CRC_END <= header_bytes <= len(data) or data[: len(MAGIC)].tobytes() != MAGIC:
        raise PageFileError("damaged", "no header of this version, or cut off")
    (stored_crc,) = _CRC.unpack_from(data.data, len(MAGIC))
    if zlib.crc32(data[_CRC_END:header_bytes].data) != stored_crc:
        raise PageFileError("damaged", "the header's checksum differs")
    raise PageFileError("foreign", "another model, format, namespace or prefix")
