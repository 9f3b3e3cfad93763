"""Whatever changes K and V for the same tokens changes the fingerprint; what does not leaves it alone."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from checkpoints import make_hf
from ridgeline.model import fingerprint as fingerprint_module
from ridgeline.model.fingerprint import kv_fingerprint
from ridgeline.model.resolve import resolve_model


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_hf(tmp_path_factory.mktemp("original"), "llama")


@pytest.fixture
def copy(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "copy"))  # with the times of the originals


def fingerprint(path: Path, weights: str = "checkpoint", page_bytes: int = 64, **executor: Any) -> bytes:
    stand_in: Any = SimpleNamespace(**({"arithmetic_id": "native-1", "page_size": 16} | executor))
    return kv_fingerprint(resolve_model(str(path)), weights, stand_in, page_bytes)


def test_the_same_model_at_another_place_is_the_same(original: Path, copy: Path) -> None:
    assert len(fingerprint(original)) == 32
    assert fingerprint(copy) == fingerprint(original)


def test_arithmetic_and_layout_count(original: Path) -> None:
    variants = [{}, {"arithmetic_id": "native-2"}, {"page_size": 32}, {"page_bytes": 128}, {"weights": "random"}]
    assert len({fingerprint(original, **variant) for variant in variants}) == len(variants)  # type: ignore[arg-type]


def test_files_that_came_to_be_read_as_another_model_differ(original: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(original)
    monkeypatch.setattr(fingerprint_module, "READING", fingerprint_module.READING + 1)
    assert fingerprint(original) != before


def test_other_weights_of_the_same_size_and_time_differ(original: Path, copy: Path) -> None:
    file = copy / "model.safetensors"
    times, data = file.stat(), bytearray(file.read_bytes())
    for i in range(len(data) // 2, len(data)):
        data[i] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert fingerprint(copy) != fingerprint(original)


def test_a_newer_file_differs(original: Path, copy: Path) -> None:
    os.utime(copy / "model.safetensors", (1, 1))
    assert fingerprint(copy) != fingerprint(original)


def test_the_config_counts(original: Path, copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] = 77.0
    (copy / "config.json").write_text(json.dumps(config))
    assert fingerprint(copy) != fingerprint(original)


def test_a_config_alone_has_one(original: Path) -> None:
    assert fingerprint(original / "config.json", "random") != fingerprint(original, "random", 128)
