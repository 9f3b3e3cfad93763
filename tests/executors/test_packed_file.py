"""A packed file gives exactly the bytes that were written, or says why it cannot."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import numpy as np
import pytest

from ridgeline import _native
from ridgeline.executors.packed_file import ALIGNMENT, MAGIC, BusyError, PackedFile, PackedFileError

IDENTITY = bytes(range(32))
SIZES = (1, 64, 4096, 5000, 300)
SECTIONS = [np.random.default_rng(size).integers(0, 256, size, np.uint8) for size in SIZES]


@pytest.fixture
def packed(tmp_path: Path) -> PackedFile:
    file = PackedFile(tmp_path / "new" / "a.ridge", IDENTITY)
    file.write(SECTIONS, 1, lambda share: None)
    return file


def problem(packed: PackedFile) -> str:
    with pytest.raises(PackedFileError) as caught:
        packed.map(1)
    return caught.value.kind


def test_round_trip(packed: PackedFile) -> None:
    for ours, expected in zip(packed.map(2), SECTIONS, strict=True):
        np.testing.assert_array_equal(ours, expected)
        assert ours.ctypes.data % 64 == 0, "the kernels read whole cache lines"
        assert not ours.flags.writeable
    assert packed.path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(packed.path.parent) == ["a.ridge"]


def test_every_changed_byte_is_damage(packed: PackedFile) -> None:
    sound = packed.path.read_bytes()
    ends = [ALIGNMENT]  # of the header; behind a section stand zeros that nobody reads
    for size in SIZES:
        ends.append(ends[-1] + size + -size % ALIGNMENT)
    spans = [range(160), *(range(start, start + size, 61) for start, size in zip(ends, SIZES, strict=False))]
    for i in (i for span in spans for i in span if i != len(MAGIC) - 1):
        packed.path.write_bytes(sound[:i] + bytes([sound[i] ^ 0x10]) + sound[i + 1 :])
        assert problem(packed) == "damaged", i


def test_every_length_but_the_right_one_is_damage(packed: PackedFile) -> None:
    sound = packed.path.read_bytes()
    for length in (*range(0, 200, 7), *range(4000, len(sound), 1000), len(sound) - 1):
        packed.path.write_bytes(sound[:length])
        assert problem(packed) == "damaged", length
    packed.path.write_bytes(sound + b"x")
    assert problem(packed) == "damaged"


def test_sound_files_of_something_else_are_outdated(packed: PackedFile) -> None:
    assert problem(PackedFile(packed.path, IDENTITY[::-1])) == "outdated"
    assert problem(packed.holding("other contents")) == "outdated"
    assert packed.holding("a").identity == packed.holding("a").identity != packed.holding("b").identity
    sound = packed.path.read_bytes()
    packed.path.write_bytes(MAGIC[:-1] + b"0" + sound[len(MAGIC) :])
    assert problem(packed) == "outdated"


def test_an_interrupted_write_changes_nothing(packed: PackedFile) -> None:
    def interrupt(share: float) -> None:
        if share > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        packed.write([np.zeros(9000, np.uint8), np.zeros(70, np.uint8)], 1, interrupt)
    assert os.listdir(packed.path.parent) == ["a.ridge"]
    assert len(packed.map(1)) == len(SECTIONS)


def test_what_a_killed_process_left_is_written_over(packed: PackedFile) -> None:
    sound = packed.path.read_bytes()
    packed.path.with_suffix(".tmp").write_bytes(b"x" * 100_000)
    packed.write(SECTIONS, 1, lambda share: None)
    assert packed.path.read_bytes() == sound
    assert os.listdir(packed.path.parent) == ["a.ridge"]


def test_only_one_process_writes(packed: PackedFile, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(packed.path.with_suffix(".tmp"), "wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(BusyError):
            packed.write(SECTIONS, 1, lambda share: None)
        assert packed.path.with_suffix(".tmp").exists(), "it belongs to the other process"


def test_a_file_that_another_process_finished_meanwhile_is_left_alone(
    packed: PackedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was renamed between our opening and our locking it: what we hold then is the finished file."""
    lock = fcntl.flock

    def rename_first(descriptor: int, operation: int) -> None:
        os.rename(packed.path.with_suffix(".tmp"), packed.path)
        lock(descriptor, operation)

    packed.path.with_suffix(".tmp").write_bytes(packed.path.read_bytes())
    monkeypatch.setattr(fcntl, "flock", rename_first)
    with pytest.raises(BusyError):
        packed.write(SECTIONS, 1, lambda share: None)
    assert len(packed.map(1)) == len(SECTIONS)


# --- the checksum


def scalar_checksum(data: bytes) -> int:
    """The twin of native/checksum.cpp, a word at a time."""
    mask, piece = 2**64 - 1, 4 << 20

    def mixed(total: int, word: int) -> int:
        product = (total ^ word) * 0x9E3779B97F4A7C15 & mask
        return (product << 29 | product >> 35) & mask

    def of_piece(part: bytes) -> int:
        whole = len(part) // 64 * 64
        words = np.frombuffer(part[:whole], "<u8").reshape(-1, 8).tolist()
        streams = [0] * 8
        for row in words:
            streams = [mixed(stream, word) for stream, word in zip(streams, row, strict=True)]
        total = len(part)
        for word in np.frombuffer(part[whole:].ljust(64, b"\0"), "<u8").tolist() + streams:
            total = mixed(total, word)
        return total

    total = len(data)
    for start in range(0, len(data), piece):
        total = mixed(total, of_piece(data[start : start + piece]))
    return total


def test_checksums_are_those_of_the_scalar_twin() -> None:
    rng = np.random.default_rng(0)
    sections = [rng.integers(0, 256, size, np.uint8) for size in (0, 1, 63, 64, 65, 1000, (4 << 20) + 77)]
    sections.append(sections[-1][1:2000])  # unaligned
    expected = [scalar_checksum(section.tobytes()) for section in sections]
    for threads in (1, 3):
        assert _native.checksums(sections, threads) == expected
