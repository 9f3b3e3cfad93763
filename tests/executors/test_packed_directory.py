"""Packed files stay within their bound: the longest unused go first, and nothing that is not ours."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from ridgeline.executors.packed_directory import make_room
from ridgeline.executors.packed_file import ALIGNMENT, PackedFile, file_bytes

SECTIONS = [np.arange(200, dtype=np.uint8)]
SIZE = file_bytes(SECTIONS)


def stored(directory: Path, name: str, used_at: float) -> PackedFile:
    file = PackedFile(directory / name, bytes(32))
    file.write(SECTIONS, 1, lambda share: None)
    os.utime(file.path, (used_at, used_at))
    return file


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


@pytest.fixture
def files(tmp_path: Path) -> list[PackedFile]:
    return [stored(tmp_path, f"{name}.ridge", used_at) for name, used_at in (("a", 30), ("b", 10), ("c", 20))]


def test_a_file_has_the_size_that_is_foretold(files: list[PackedFile]) -> None:
    assert files[0].path.stat().st_size == SIZE == 2 * ALIGNMENT


@pytest.mark.parametrize(("room_for", "left"), [(9, "abc"), (4, "abc"), (3, "ac"), (2, "a"), (1, ""), (0, "")])
def test_the_longest_unused_go_first(files: list[PackedFile], tmp_path: Path, room_for: int, left: str) -> None:
    deleted = make_room(tmp_path / "new.ridge", SIZE, room_for * SIZE)
    assert names(tmp_path) == [f"{name}.ridge" for name in left]
    assert [file.path.stem for file in deleted] == [name for name in "bca" if name not in left]
    assert all(file.num_bytes == SIZE for file in deleted)


def test_one_byte_too_much_is_too_much(files: list[PackedFile], tmp_path: Path) -> None:
    assert make_room(tmp_path / "new.ridge", SIZE, 4 * SIZE) == []
    assert len(make_room(tmp_path / "new.ridge", SIZE, 4 * SIZE - 1)) == 1


def test_mapping_a_file_is_using_it(files: list[PackedFile], tmp_path: Path) -> None:
    files[1].map(1)
    make_room(tmp_path / "new.ridge", SIZE, 2 * SIZE)
    assert names(tmp_path) == ["b.ridge"]


def test_the_file_that_is_written_anew_does_not_count(files: list[PackedFile], tmp_path: Path) -> None:
    assert make_room(files[1].path, SIZE, 3 * SIZE) == []


def test_what_a_killed_process_left_goes_and_what_is_not_ours_stays(files: list[PackedFile], tmp_path: Path) -> None:
    os.rename(files[0].path, tmp_path / "a.tmp")
    (tmp_path / "notes.tmp").write_bytes(bytes(100))
    (tmp_path / "weights.ridge").write_bytes(b"RIDGE" + bytes(100_000))
    (tmp_path / "link.ridge").symlink_to(files[1].path)
    (tmp_path / "directory.ridge").mkdir()
    make_room(tmp_path / "new.ridge", SIZE, 0)
    assert names(tmp_path) == ["directory.ridge", "link.ridge", "notes.tmp", "weights.ridge"]


def test_there_is_room_where_there_is_no_directory(tmp_path: Path) -> None:
    assert make_room(tmp_path / "none" / "new.ridge", SIZE, SIZE) == []
