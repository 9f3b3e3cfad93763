"""Every way in which a page file can be wrong is told apart, and none of them gives bytes."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from pathlib import Path

import numpy as np
import pytest

from page_memory import PAGE_BYTES
from ridgeline.engine.page_file import (
    PageChain,
    PageFileError,
    PageIdentity,
    file_bytes,
    read_page_file,
    write_page_file,
)

IDENTITY = PageIdentity(bytes(range(32)), "salt:blue", bytes(32), (1, 2, 3, 70_000))
PAYLOAD = np.arange(PAGE_BYTES, dtype=np.uint16).astype(np.uint8)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "a.page"
    write_page_file(str(path), str(tmp_path / "a.tmp"), IDENTITY, PAYLOAD, math.inf)
    return path


def read(path: Path, identity: PageIdentity = IDENTITY) -> np.ndarray:
    return read_page_file(str(path), identity, PAGE_BYTES)


def test_round_trip(page: Path) -> None:
    assert np.array_equal(read(page), PAYLOAD)
    assert page.stat().st_size == file_bytes(IDENTITY, PAGE_BYTES)
    assert page.stat().st_mode & 0o777 == 0o600
    assert os.listdir(page.parent) == ["a.page"]


def test_every_changed_byte_and_every_cut_is_damage(page: Path) -> None:
    sound = page.read_bytes()
    for i in range(len(sound)):
        page.write_bytes(sound[:i] + bytes([sound[i] ^ 0x10]) + sound[i + 1 :])
        with pytest.raises(PageFileError) as caught:
            read(page)
        assert caught.value.kind == "damaged", i
    for length in range(len(sound)):
        page.write_bytes(sound[:length])
        with pytest.raises(PageFileError) as caught:
            read(page)
        assert caught.value.kind == "damaged", length
    page.write_bytes(sound + b"x")
    with pytest.raises(PageFileError, match="damaged"):
        read(page)


@pytest.mark.parametrize(
    "other",
    [
        {"fingerprint": bytes(32)},
        {"namespace": "salt:red"},
        {"namespace": "salt:bluf"},
        {"parent": bytes([1]) * 32},
        {"tokens": (1, 2, 3, 70_001)},
        {"tokens": (1, 2, 3)},
    ],
)
def test_a_sound_page_of_another_prefix_is_foreign(page: Path, other: dict[str, object]) -> None:
    with pytest.raises(PageFileError) as caught:
        read(page, dataclasses.replace(IDENTITY, **other))
    assert caught.value.kind == "foreign"


def test_a_page_of_another_format_version_is_no_page(page: Path) -> None:
    page.write_bytes(page.read_bytes().replace(b"RIDGEKV1", b"RIDGEKV0"))
    with pytest.raises(PageFileError, match="no header of this version"):
        read(page)


def test_use_puts_the_end_of_a_page_off(page: Path) -> None:
    write_page_file(str(page), str(page) + ".tmp", IDENTITY, PAYLOAD, 60.0)
    assert np.array_equal(read(page), PAYLOAD)
    now = time.time()
    os.utime(page, (now - 61, now - 61))
    with pytest.raises(PageFileError, match="last used 61 s ago, kept for 60 s"):
        read(page)
    os.utime(page, (now, now))
    assert np.array_equal(read(page), PAYLOAD)


def test_keys_cover_everything_before() -> None:
    def keys(fingerprint: bytes, namespace: str, token_ids: list[int]) -> list[bytes]:
        return [key for key, _ in PageChain(fingerprint, 4).pages(namespace, token_ids, 99)]

    base = keys(bytes(32), "", list(range(12)))
    assert len(set(base)) == 3
    assert keys(bytes(32), "", list(range(15))) == base
    first_differs = keys(bytes(32), "", [99, *range(1, 12)])
    last_differs = keys(bytes(32), "", [*range(11), 99])
    assert not set(base) & set(first_differs)
    assert last_differs[:2] == base[:2]
    assert last_differs[2] != base[2]
    assert not set(base) & set(keys(bytes(32), "salt", list(range(12))))
    assert not set(base) & set(keys(bytes([1]) * 32, "", list(range(12))))


def test_a_chain_remembers_without_mixing_up() -> None:
    chain = PageChain(bytes(32), 4)
    one, two = list(range(20)), [*range(8), *range(50, 62)]
    plain = [("", one, 2), ("", one, 5), ("", one, 1), ("", two, 4), ("", one, 5), ("", two[:9], 5), ("", [], 3)]
    for namespace, token_ids, count in [*plain[:3], ("a", one, 5), *plain[3:]]:
        assert chain.pages(namespace, token_ids, count) == PageChain(bytes(32), 4).pages(namespace, token_ids, count)
