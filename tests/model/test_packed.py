"""Packed files from the outside: a start with one gives the same bits and reads no weights; whatever is wrong with it
is told in a line and mended, and never stops a start."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoints import make_hf
from ridgeline import _native
from ridgeline.config import ModelConfig
from ridgeline.errors import ConfigError
from ridgeline.executors.native import PACKING_VERSION, NativeExecutor
from ridgeline.executors.packed_file import ALIGNMENT, PackedFile
from ridgeline.model.program import build
from ridgeline.model.quantized import in_format, served_spec
from ridgeline.model.resolve import load_spec, resolve_model
from ridgeline.model.runtime import ModelRuntime, load_runtime
from ridgeline.model.weights import CheckpointWeights, Weights
from step_plans import Stepper

PROMPT = list(range(3, 60))
DTYPES = ("fp32", "bf16", "int8", "int4", "int4-g32-zp")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Qwen3: with norms of q and k; llama3 adds biases."""
    return str(make_hf(tmp_path_factory.mktemp("qwen3"), "qwen3"))


@contextmanager
def runtime(model: str, directory: Path | None, progress: Any = None, **options: Any) -> Iterator[ModelRuntime]:
    place = None if directory is None else str(directory)
    settings = {"dtype": "fp32", "packed_dir": place, "kv_memory": 1_000_000, "threads": 2} | options
    loaded = load_runtime(model, ModelConfig(**settings), progress=progress)
    try:
        yield loaded
    finally:
        loaded.close()


def outcome(model: str, directory: Path, **options: Any) -> tuple[np.ndarray, tuple[str, ...]]:
    """Logits of PROMPT, and what was told."""
    with runtime(model, directory, **options) as loaded:
        return Stepper(loaded.executor).logits([PROMPT])[0], loaded.notices


def only_file(directory: Path) -> Path:
    [path] = directory.iterdir()
    return path


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["qwen3", "llama3"])
def test_mapped_weights_give_the_bits_of_packed_ones(
    family: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = str(make_hf(tmp_path / "model", family))
    expected, told = outcome(model, tmp_path, dtype=dtype, packed_file=False, packed_dir=None)
    first, (*others, notice) = outcome(model, tmp_path / "packed", dtype=dtype)
    assert str(only_file(tmp_path / "packed")) in notice
    assert tuple(others) == told

    def read(self: CheckpointWeights, name: str) -> np.ndarray:
        raise AssertionError(f"{name} was read, though there is a packed file")

    monkeypatch.setattr(CheckpointWeights, "read", read)
    monkeypatch.setattr(CheckpointWeights, "read_bf16", read)
    second, notices = outcome(model, tmp_path / "packed", dtype=dtype)
    assert notices == told
    np.testing.assert_array_equal(first, expected)
    np.testing.assert_array_equal(second, expected)


def test_the_first_packing_tells_progress_size_and_place(model: str, tmp_path: Path) -> None:
    stages: dict[str, list[float]] = {}
    with runtime(model, tmp_path, lambda stage, share: stages.setdefault(stage, []).append(share)) as loaded:
        size = loaded.executor.weight_bytes
        if Path("/proc/self/maps").exists():
            assert str(only_file(tmp_path)) in Path("/proc/self/maps").read_text(), (
                "the first start ends on the file too"
            )
    [keeping] = [stage for stage in stages if "keeping the packed weights" in stage]
    assert str(only_file(tmp_path)) in keeping
    assert stages[keeping][-1] == 1.0
    assert only_file(tmp_path).stat().st_size >= size


@pytest.mark.parametrize("damage", ["changed", "cut off", "emptied"])
def test_a_damaged_file_is_told_and_replaced(model: str, tmp_path: Path, damage: str) -> None:
    expected, _ = outcome(model, tmp_path)
    path = only_file(tmp_path)
    sound = path.read_bytes()
    one_bit = bytes([sound[ALIGNMENT] ^ 1])  # of the first weight
    path.unlink()
    path.write_bytes(
        {"changed": sound[:ALIGNMENT] + one_bit + sound[ALIGNMENT + 1 :], "cut off": sound[:-1], "emptied": b""}[damage]
    )
    logits, notices = outcome(model, tmp_path)
    np.testing.assert_array_equal(logits, expected)
    [notice] = notices
    assert "damaged" in notice
    assert "packed anew" in notice
    assert only_file(tmp_path).read_bytes() == sound
    assert outcome(model, tmp_path)[1] == ()


def test_another_checkpoint_at_the_same_place_is_packed_anew(model: str, tmp_path: Path) -> None:
    place, packed = tmp_path / "model", tmp_path / "packed"
    shutil.copytree(model, place)
    before, _ = outcome(str(place), packed)
    make_hf(place, "qwen3", seed=1)
    after, notices = outcome(str(place), packed)
    [notice] = notices
    assert "outdated" in notice
    assert "packed anew" in notice
    assert not np.array_equal(after, before)
    np.testing.assert_array_equal(after, outcome(str(place), tmp_path, packed_file=False, packed_dir=None)[0])
    assert len(os.listdir(packed)) == 1, "the old one is gone"


def test_formats_models_and_random_weights_have_files_of_their_own(model: str, tmp_path: Path) -> None:
    packed, copy = tmp_path / "packed", tmp_path / Path(model).name
    shutil.copytree(model, copy)
    for source, options in [(model, {}), (model, {"dtype": "bf16"}), (str(copy), {}), (model, {"weights": "random"})]:
        assert len(outcome(source, packed, **options)[1]) == 1
    assert len(os.listdir(packed)) == 4
    assert outcome(model, packed, weights="random")[1] == ()


def test_a_directory_that_cannot_be_written_stops_nobody(model: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    logits, notices = outcome(model, tmp_path / "file" / "directory")
    assert any("stay in memory" in notice and "Not a directory" in notice for notice in notices)
    np.testing.assert_array_equal(logits, outcome(model, tmp_path / "packed")[0])


def test_a_full_disk_stops_nobody_and_leaves_nothing(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    logits, notices = outcome(model, tmp_path / "packed")
    assert any("stay in memory" in notice and "No space left" in notice for notice in notices)
    assert os.listdir(tmp_path / "packed") == []
    monkeypatch.undo()
    np.testing.assert_array_equal(logits, outcome(model, tmp_path / "packed")[0])


def test_two_processes_that_start_together(model: str, tmp_path: Path) -> None:
    """Whoever comes second packs for itself; both answer alike, and one sound file is left."""
    program = (
        "import sys; from ridgeline import LLM, SamplingParams\n"
        "with LLM(sys.argv[1], packed_dir=sys.argv[2], kv_memory=1_000_000, threads=1) as llm:\n"
        "    print(llm.generate([list(range(3, 60))], SamplingParams(temperature=0, max_tokens=8))[0].token_ids)\n"
    )
    command = [sys.executable, "-c", program, model, str(tmp_path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=100)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert outputs[0] == outputs[1] != ""
    assert outcome(model, tmp_path)[1] == ()
    assert only_file(tmp_path).suffix == ".ridge"


def test_old_files_make_room_for_new_ones_and_that_is_told(model: str, tmp_path: Path) -> None:
    outcome(model, tmp_path)
    old = only_file(tmp_path)
    bound = old.stat().st_size
    logits, notices = outcome(model, tmp_path, dtype="bf16", packed_disk=bound)
    deleted, kept = notices
    assert old.name in deleted
    assert "--packed-disk" in deleted
    assert only_file(tmp_path).name in kept
    assert old.name not in os.listdir(tmp_path)
    np.testing.assert_array_equal(logits, outcome(model, tmp_path, dtype="bf16", packed_disk=bound)[0])


def test_a_file_above_the_bound_is_not_kept_and_costs_no_other(model: str, tmp_path: Path) -> None:
    outcome(model, tmp_path, dtype="bf16")
    kept = only_file(tmp_path)
    expected, _ = outcome(model, tmp_path, packed_file=False, packed_dir=None)
    logits, [notice] = outcome(model, tmp_path, packed_disk=kept.stat().st_size)
    assert "stay in memory, and the next start packs again: --packed-disk allows" in notice
    assert only_file(tmp_path) == kept
    np.testing.assert_array_equal(logits, expected)


@pytest.mark.parametrize("options", [{"packed_file": False}, {"executor": "torch"}])
def test_a_place_for_a_file_that_nobody_wants_is_refused(model: str, tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="packed_dir"), runtime(model, tmp_path, **options):
        pass
    with pytest.raises(ConfigError, match="packed_disk"), runtime(model, None, packed_disk=1, **options):
        pass


def test_without_a_packed_file_nothing_is_written(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert outcome(model, tmp_path, packed_file=False, packed_dir=None)[1] == ()
    assert os.listdir(tmp_path) == []
    outcome(model, tmp_path, packed_dir=None)
    assert only_file(tmp_path / "ridgeline" / "packed").suffix == ".ridge"


# --- what the bytes depend on


class Fractions(Weights):
    """Weights that are the same on every machine: multiples of 2^-12 in [-1, 1)."""

    def read(self, name: str) -> np.ndarray:
        shape = self.shapes[name]
        numbers = np.arange(int(np.prod(shape)), dtype=np.uint32) * np.uint32(2654435761) >> np.uint32(19)
        return (numbers.astype(np.float32) / np.float32(4096) - np.float32(1)).reshape(shape)

    def stored_type(self, name: str) -> str:
        return "F32"


GOLDEN = {
    "fp32": 0xE8CC586FA745B490,
    "bf16": 0x5B0DC6E0231BA2B6,
    "int8": 0xF7F4D5C74CEFDB22,
    "int8-g32": 0xA141832FD2B328D7,
}


@pytest.mark.parametrize("dtype", GOLDEN)
def test_whoever_packs_differently_raises_the_packing_version(model: str, tmp_path: Path, dtype: str) -> None:
    spec = load_spec(resolve_model(model))
    program, packed = build(served_spec(spec, dtype)), PackedFile(tmp_path / "a.ridge", bytes(32))
    weights = in_format(Fractions(spec), spec, dtype)
    NativeExecutor(program, weights, dtype=dtype, num_pages=4, threads=1, packed=packed).close()
    [found] = _native.checksums([np.fromfile(packed.path, np.uint8)[ALIGNMENT:]], 1)
    assert (PACKING_VERSION, hex(found)) == (4, hex(GOLDEN[dtype])), "raise PACKING_VERSION and renew GOLDEN"
