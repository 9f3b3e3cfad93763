"""What packed weights, and what stored K and V depend on, as one hash each.

Other weights, another number format, other kernels or another page layout give other K and V for the same tokens, and
have to give another fingerprint. Reading all weights at each start would take longer than a cache saves, so a weight
file is known by its size, its modification time and samples of its contents: a copy that keeps the time of another
file, and a fine-tuned twin of the same size, still differ in the samples.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from ridgeline.model.gguf_parts import part_paths
from ridgeline.model.resolve import ModelFiles

if TYPE_CHECKING:
    from ridgeline.engine.plan import Executor

READING = 2  # counts the times that the same files came to be read as another model (an output matrix, a rotation)
SAMPLES = 512
SAMPLE_BYTES = 4096
HEAD_BYTES = 1 << 20  # read whole: names, shapes, and a GGUF file's metadata


def kv_fingerprint(files: ModelFiles, weights: str, executor: Executor, page_bytes: int) -> bytes:
    """32 bytes for what `executor` computes from `files`, in pages of `page_bytes`; `weights` as in ModelConfig."""
    layout = (executor.arithmetic_id, executor.page_size, page_bytes)
    return hashlib.blake2b(repr(layout).encode() + weights_fingerprint(files, weights), digest_size=32).digest()


def weights_fingerprint(files: ModelFiles, weights: str) -> bytes:
    """32 bytes for the weights and the description of `files`; `weights` as in ModelConfig."""
    digest = hashlib.blake2b(f"{READING} {weights}".encode(), digest_size=32)
    for path in _files(files, weights):
        digest.update(path.name.encode() + _identity(path))
    return digest.digest()


def _files(files: ModelFiles, weights: str) -> list[Path]:
    if files.kind == "gguf":
        return [part for part in part_paths(files.path) if part.exists()]
    if files.kind == "config":
        return [files.path]
    shards = sorted(files.path.glob("*.safetensors")) if weights == "checkpoint" else []
    return [files.path / "config.json", *shards]


def _identity(path: Path) -> bytes:
    status = path.stat()
    digest = hashlib.blake2b(f"{status.st_size} {status.st_mtime_ns}".encode())
    with open(path, "rb") as file:
        digest.update(file.read(HEAD_BYTES))
        for i in range(1, SAMPLES + 1):
            file.seek(max(0, status.st_size - SAMPLE_BYTES) * i // SAMPLES)
            digest.update(file.read(SAMPLE_BYTES))
    return digest.digest()
