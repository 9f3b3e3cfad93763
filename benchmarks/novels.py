"""Six public-domain novels by Jane Austen: text to train the small model on, and text that it never saw.

They come with Debian's package r-cran-janeaustenr (MIT), fetched by apt into a directory of our own; nothing is
installed. Its data is an R lazy-load database: for each novel four bytes with the unpacked length, then a zlib stream
that holds a character vector, one string per printed line, in R's XDR serialization.

    .venv/bin/python benchmarks/novels.py        # fetches, and prints what there is
"""

from __future__ import annotations

import os
import struct
import subprocess
import zlib
from pathlib import Path

from ridgeline.errors import ConfigError

PACKAGE = "r-cran-janeaustenr"
DATABASE = Path("usr/lib/R/site-library/janeaustenr/data/Rdata.rdb")
HELD_OUT = "persuasion"  # never trained on
CHARACTER_VECTOR, STRING = 16, 9  # R's type numbers


def cache_directory() -> Path:
    """Where the benchmarks keep what they fetched or made: texts, models, reference logits."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "ridgeline" / "benchmarks"


def held_out_text() -> str:
    return _novels()[HELD_OUT]


def training_text() -> str:
    return "\n\n".join(text for title, text in sorted(_novels().items()) if title != HELD_OUT)


def _novels() -> dict[str, str]:
    """Title in lower case -> text."""
    directory = cache_directory() / "novels"
    if not (directory / DATABASE).exists():
        _fetch(directory)
    novels = {}
    for lines in unpack_database((directory / DATABASE).read_bytes()):
        novels[lines[0].strip().lower()] = "\n".join(lines) + "\n"
    if HELD_OUT not in novels:
        raise ConfigError(f"{directory / DATABASE}: no novel {HELD_OUT!r} among {sorted(novels)}")
    return novels


def _fetch(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run(["apt-get", "download", "-qq", PACKAGE], cwd=directory, check=True)
        for archive in directory.glob("*.deb"):
            subprocess.run(["dpkg", "-x", archive, directory], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        hint = f"needs Debian or Ubuntu; elsewhere unpack {PACKAGE} so that {directory / DATABASE} exists"
        raise ConfigError(f"cannot fetch {PACKAGE}: {error}", hint=hint) from error


def unpack_database(data: bytes) -> list[list[str]]:
    """The character vectors of an R lazy-load database."""
    vectors, start = [], 0
    while start < len(data):
        stream = zlib.decompressobj()
        serialized = stream.decompress(data[start + 4 :])
        (expected,) = struct.unpack_from(">I", data, start)
        if len(serialized) != expected:
            raise ConfigError(f"R database: {len(serialized):,} bytes at {start}, {expected:,} expected")
        vectors.append(_character_vector(serialized))
        start = len(data) - len(stream.unused_data)
    return vectors


def _character_vector(data: bytes) -> list[str]:
    """R's serialization: a header that names the encoding, then the vector's type, length and strings."""
    (encoding_len,) = struct.unpack_from(">i", data, 14)
    at = 18 + encoding_len
    kind, count = struct.unpack_from(">ii", data, at)
    if data[:2] != b"X\n" or kind != CHARACTER_VECTOR:
        raise ConfigError(f"R database: type {kind} where a character vector was expected")
    at, strings = at + 8, []
    for _ in range(count):
        flags, length = struct.unpack_from(">ii", data, at)
        if flags & 0xFF != STRING or length < 0:
            raise ConfigError(f"R database: flags {flags:#x}, length {length} where a string was expected")
        strings.append(data[at + 8 : at + 8 + length].decode())
        at += 8 + length
    return strings


if __name__ == "__main__":
    print(f"held out: {HELD_OUT}, {len(held_out_text()):,} characters; training: {len(training_text()):,} characters")
