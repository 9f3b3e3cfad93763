import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import CheckpointError
from ridgeline.model.gguf import open_gguf
from ridgeline.model.resolve import resolve_model

TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"]


def write_gguf(path: Path) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("a.u8", 255)
    writer.add_int8("a.i8", -128)
    writer.add_uint16("a.u16", 65535)
    writer.add_int16("a.i16", -32768)
    writer.add_uint32("a.u32", 2**32 - 1)
    writer.add_int32("a.i32", -(2**31))
    writer.add_uint64("a.u64", 2**64 - 1)
    writer.add_int64("a.i64", -(2**63))
    writer.add_float32("a.f32", 0.1)
    writer.add_float64("a.f64", 0.1)
    writer.add_bool("a.bool", True)
    writer.add_string("a.string", "ďábelské 삼겹살 👋")
    writer.add_array("a.strings", ["", "two", "👋"])
    writer.add_array("a.floats", [0.5, -1.5])
    writer.add_array("a.ints", [1, -2, 3])
    rng = np.random.default_rng(0)
    for i, name in enumerate(TYPES):
        values = rng.standard_normal((3 + i, 64), np.float32)
        kind = gguf.GGMLQuantizationType[name]
        writer.add_tensor(f"t.{name}", gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "small.gguf")


def assert_equals_gguf_package(path: Path) -> None:
    ours, theirs = open_gguf(path), gguf.GGUFReader(path)
    expected = {key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert ours.metadata == expected
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert (mine.type, mine.shape) == (tensor.tensor_type.name, tuple(tensor.shape.tolist()[::-1]))
        np.testing.assert_array_equal(mine.data, tensor.data.reshape(-1).view(np.uint8))


def test_fields_and_tensors_equal_the_gguf_package(small):
    assert_equals_gguf_package(small)


def test_the_bundled_model_equals_the_gguf_package():
    assert_equals_gguf_package(resolve_model("smollm2-135m").path)


def test_every_truncation_names_the_file(small, tmp_path):
    whole = small.read_bytes()
    cut = tmp_path / "cut.gguf"
    last_data_byte = whole.rstrip(b"\0")
    for size in range(0, len(last_data_byte), 23):
        cut.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=r"cut\.gguf"):
            open_gguf(cut)


def test_truncated_data_names_the_tensor_and_the_numbers(small, tmp_path):
    cut = tmp_path / "cut.gguf"
    size = small.stat().st_size - 200
    cut.write_bytes(small.read_bytes()[:size])
    with pytest.raises(CheckpointError, match=r"'t\.Q4_1' ends at byte [\d,]+, the file has " + f"{size:,}"):
        open_gguf(cut)


@given(st.data())
def test_a_damaged_file_opens_or_names_itself(small, tmp_path_factory, data):
    damaged = bytearray(small.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(damaged)
    error = None
    try:
        open_gguf(path)
    except CheckpointError as caught:
        error = caught
    assert error is None or "damaged.gguf" in error.message


def header(*, magic: bytes = b"GGUF", version: int = 3, tensors: int = 0, pairs: int = 0, body: bytes = b"") -> bytes:
    return magic + struct.pack("<IQQ", version, tensors, pairs) + body


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def tensor_info(name: str, shape: list[int], type_id: int = 0, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, type_id, offset)


KEY_TWICE = (string("k") + struct.pack("<IB", 0, 1)) * 2
DAMAGE = {
    "not a GGUF file": header(magic=b"PK\3\4"),
    "version 1": header(version=1),
    "big-endian": header(version=3 << 24),
    "key 'k' appears twice": header(pairs=2, body=KEY_TWICE),
    "key 'k' has the unknown type 77": header(pairs=1, body=string("k") + struct.pack("<I", 77)),
    "key 'k' is an array of arrays": header(pairs=1, body=string("k") + struct.pack("<IIQ", 9, 9, 1)),
    "key 'k' needs 4,000,000,000,000 bytes": header(pairs=1, body=string("k") + struct.pack("<IIQ", 9, 4, 10**12)),
    "element 0 of 1,000,000,000,000": header(pairs=1, body=string("k") + struct.pack("<IIQ", 9, 8, 10**12)),
    "tensor 't' has 5 dimensions": header(tensors=1, body=tensor_info("t", [1] * 5)),
    "not a multiple of the alignment 32": header(tensors=1, body=tensor_info("t", [1], offset=4)),
    "rows of 33 weights are not whole Q8_0 blocks": header(tensors=1, body=tensor_info("t", [33, 2], type_id=8)),
}


@pytest.mark.parametrize("message", DAMAGE)
def test_what_is_wrong_is_said(message, tmp_path):
    path = tmp_path / "bad.gguf"
    path.write_bytes(DAMAGE[message])
    with pytest.raises(CheckpointError, match=r"bad\.gguf") as caught:
        open_gguf(path)
    assert message in caught.value.message


def test_a_missing_and_an_empty_file_are_said(tmp_path):
    with pytest.raises(CheckpointError, match=r"none\.gguf: cannot be read: No such file"):
        open_gguf(tmp_path / "none.gguf")
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(CheckpointError, match=r"empty\.gguf: cannot be read: the file is empty"):
        open_gguf(tmp_path / "empty.gguf")
