"""GGUF files in several parts: any part stands for the whole, and what is missing or foreign is named."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest

from checkpoints import make_gguf, make_hf
from ridgeline.cli import main
from ridgeline.cli.inspect import inspect_model
from ridgeline.config import ModelConfig
from ridgeline.cost.facts import load_facts
from ridgeline.errors import CheckpointError, ConfigError
from ridgeline.model.fingerprint import kv_fingerprint
from ridgeline.model.gguf_parts import part_paths, whole_name
from ridgeline.model.packed import packed_file
from ridgeline.model.resolve import load_spec, resolve_model
from ridgeline.model.tokenizer import load_tokenizer
from ridgeline.model.weights import open_weights

NAMES = [f"big-0000{i}-of-00003.gguf" for i in (1, 2, 3)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same checkpoint, whole and in three parts that the gguf package writes."""
    root = tmp_path_factory.mktemp("parts")
    directory = make_hf(root / "hf", "llama")
    make_gguf(directory, root / "whole.gguf")
    (root / "parts").mkdir()
    make_gguf(directory, root / "parts" / "big.gguf", part_tensors=8)
    assert sorted(path.name for path in (root / "parts").iterdir()) == NAMES
    return root


@pytest.fixture
def parts(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "parts", tmp_path / "parts"))


def test_names_of_parts():
    assert [path.name for path in part_paths(Path("d/big-00002-of-00003.gguf"))] == NAMES
    for other in ("big.gguf", "big-00004-of-00003.gguf", "big-0001-of-0003.gguf"):
        assert part_paths(Path(other)) == [Path(other)]
    assert whole_name(Path("big-00002-of-00003.gguf")) == "big"


@pytest.mark.parametrize("given", ["", *NAMES], ids=["directory", "first", "second", "third"])
def test_any_part_stands_for_the_whole(made, given):
    files, whole = resolve_model(str(made / "parts" / given)), resolve_model(str(made / "whole.gguf"))
    assert (files.name, files.path.name) == ("big", NAMES[0])
    spec = load_spec(files)
    assert spec == load_spec(whole)
    assert load_tokenizer(files).encode("the fox") == load_tokenizer(whole).encode("the fox")
    weights, expected = open_weights(files, spec), open_weights(whole, spec)
    for name in expected.shapes:
        np.testing.assert_array_equal(weights.read(name), expected.read(name))


def test_planning_inspecting_and_answering(made, capsys):
    part, whole = str(made / "parts" / NAMES[1]), str(made / "whole.gguf")
    facts, expected = load_facts(part), load_facts(whole)
    assert (facts.parameters, facts.weight_bytes("stored")) == (expected.parameters, expected.weight_bytes("stored"))
    assert inspect_model(part)["formats"] == inspect_model(whole)["formats"]
    answers = []
    for model in (part, whole):
        args = ["--raw", "--max-tokens", "5", "--temperature", "0", "--no-packed-file"]
        assert main(["generate", model, "the quick", *args]) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1]


def fingerprint(path: Path) -> bytes:
    executor: Any = SimpleNamespace(arithmetic_id="native-1", page_size=16)
    return kv_fingerprint(resolve_model(str(path)), "checkpoint", executor, 64)


def test_every_part_counts_for_the_identity_and_the_given_one_does_not(parts):
    before = {fingerprint(parts / name) for name in NAMES}
    config = ModelConfig(executor="native")
    packed = {packed_file(resolve_model(str(parts / name)), config, "bf16").path for name in NAMES}
    assert (len(before), len(packed)) == (1, 1)
    data = bytearray((parts / NAMES[2]).read_bytes())
    data[-1] ^= 1
    (parts / NAMES[2]).write_bytes(data)
    assert fingerprint(parts / NAMES[0]) not in before


@pytest.mark.parametrize("missing", NAMES)
@pytest.mark.parametrize("command", ["plan", "inspect"])
def test_a_missing_part_is_named(parts, missing, command, capsys):
    (parts / missing).unlink()
    given = NAMES[1] if missing == NAMES[0] else NAMES[0]
    assert main([command, str(parts / given)]) == 1
    assert f"1 of its 3 parts are missing: {missing}" in capsys.readouterr().err


def test_a_part_without_its_number_is_told_how_to_be_named(parts):
    (parts / NAMES[0]).rename(parts / "model.gguf")
    with pytest.raises(CheckpointError, match=r"split\.count is 3") as caught:
        resolve_model(str(parts / "model.gguf")).gguf  # noqa: B018
    assert "00001-of-00003" in str(caught.value.hint)


def test_a_part_of_another_place_or_split_is_named(parts, made, tmp_path):
    shutil.copy(parts / NAMES[1], parts / NAMES[2])
    with pytest.raises(CheckpointError, match=r"00003-of-00003\.gguf: split\.no is 1, must be 2"):
        load_spec(resolve_model(str(parts)))
    make_gguf(make_hf(tmp_path / "other", "llama", num_hidden_layers=1), parts / "big.gguf", part_tensors=5)
    shutil.copy(made / "parts" / NAMES[0], parts / NAMES[0])
    with pytest.raises(CheckpointError, match=r"split\.tensors\.count is 12, must be 21"):
        load_spec(resolve_model(str(parts)))


def write_part(path: Path, number: int, tensors: list[str], *, num_tensors: int, architecture: str = "llama") -> None:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_uint16("split.no", number)
    writer.add_uint16("split.count", 2)
    writer.add_int32("split.tensors.count", num_tensors)
    for name in tensors:
        writer.add_tensor(name, np.zeros(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    ("second", "num_tensors", "message"),
    [(["b"], 3, "split.tensors.count is 3, the 2 parts hold 2"), (["a"], 2, "tensor 'a' is in .*00001-of-00002")],
)
def test_the_sum_of_the_parts_is_checked(second, num_tensors, message, tmp_path):
    for number, tensors in enumerate((["a"], second)):
        write_part(tmp_path / f"m-0000{number + 1}-of-00002.gguf", number, tensors, num_tensors=num_tensors)
    with pytest.raises(CheckpointError, match=message):
        resolve_model(str(tmp_path)).gguf  # noqa: B018


def test_two_splits_in_a_directory_must_be_told_apart(parts):
    shutil.copy(parts / NAMES[0], parts / "small-00001-of-00001.gguf")
    with pytest.raises(ConfigError, match=r"holds 4 \.gguf files"):
        resolve_model(str(parts))
