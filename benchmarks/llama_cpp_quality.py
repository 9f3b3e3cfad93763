"""llama.cpp's own formats on the same weights and tokens, by its own tools: llama-quantize, then llama-perplexity.

llama-perplexity writes the log-probabilities of the scored tokens to a file, from which our own formulas take the
figures: "_logits_", then int32 window length, vocabulary, number of windows, the tokens; then a row per scored token:
fp32 step and lowest value, and 16-bit multiples of the step. Its row F32 shows what the 16 bits and another engine's
arithmetic change: next to nothing.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from divergence import Quality
from held_out import WINDOW, HeldOut, Reference
from peerlib.environment import Environment
from peerlib.weights import write_gguf
from ridgeline.errors import ConfigError
from ridgeline.model.gguf import open_gguf
from ridgeline.model.resolve import resolve_model
from ridgeline.model.tokenizer import load_tokenizer

UNQUANTIZED = "F32"
FORMATS = ("Q8_0", "Q4_0", "Q4_0 pure", "Q4_K", UNQUANTIZED)
MAGIC = b"_logits_"
HEADER_BYTES = len(MAGIC) + 3 * 4
STEP_AND_LOWEST = 4  # 16-bit numbers that two fp32 ones take


class Peer:
    """`environment` has the two tools; files are made in `scratch`, named after the weights that they hold."""

    def __init__(self, environment: Environment, reference: Reference, scratch: Path) -> None:
        self._environment, self._reference, self._scratch = environment, reference, scratch
        self._prompt = scratch / "text.txt"
        tokenizer = load_tokenizer(resolve_model(reference.text.model))
        assert tokenizer is not None
        self._prompt.write_text(tokenizer.decode(reference.text.windows.ravel().tolist()))

    def evaluate(self, name: str) -> tuple[Quality, dict[str, Any]]:
        """`name` is one of llama-quantize's types, perhaps followed by `pure`."""
        weights, logits = self.file(name), self._scratch / "logits.bin"
        options = ["-m", weights, "-f", self._prompt, "-c", WINDOW, "-b", WINDOW, "--save-all-logits", logits]
        no_bos = ["--override-kv", "tokenizer.ggml.add_bos_token=bool:false"]
        threads = ["-t", self._reference.threads] if self._reference.threads else []
        self._run("llama-perplexity", *options, *no_bos, *threads)
        try:
            quality = self._reference.compare(read_logprobs(logits, self._reference.text))
        finally:
            logits.unlink()
        tensors = open_gguf(weights).tensors.values()
        return quality, {"weight_bytes": sum(tensor.data.nbytes for tensor in tensors), "arithmetic": "llama.cpp"}

    def file(self, name: str) -> Path:
        """The GGUF file of `name`, made when it is not there."""
        path = self._scratch / f"{self._reference.stem}-{name.replace(' ', '-')}.gguf"
        if not path.exists():
            making = path.with_suffix(".making")
            self._make(name, making)
            making.rename(path)
        return path

    def _make(self, name: str, path: Path) -> None:
        kind, *options = name.split()
        if kind != UNQUANTIZED:
            self._run("llama-quantize", *(f"--{option}" for option in options), self.file(UNQUANTIZED), path, kind)
            return
        files = resolve_model(self._reference.text.model)
        source = files.path
        if files.kind == "directory":
            source = self._scratch / "checkpoint.gguf"
            write_gguf(source, files.path)
        self._run("llama-quantize", "--allow-requantize", source, path, UNQUANTIZED)

    def _run(self, program: str, *arguments: object) -> None:
        command = [str(self._environment.llama_cpp(program)), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            tail = "\n".join((done.stdout + done.stderr).splitlines()[-5:])
            raise ConfigError(f"{' '.join(command)}: exit status {done.returncode}: {tail}")


def read_logprobs(path: Path, text: HeldOut) -> Iterator[np.ndarray]:
    """Per window [scored, vocab], fp32. Raises ConfigError when the tool saw other tokens than we did."""
    data = np.memmap(path, np.uint8, "r")
    if data[: len(MAGIC)].tobytes() != MAGIC:
        raise ConfigError(f"{path}: begins with {data[: len(MAGIC)].tobytes()!r}, not with {MAGIC!r}")
    window, vocab, count = data[len(MAGIC) : HEADER_BYTES].view(np.int32).tolist()
    if (count, window) != text.windows.shape:
        raise ConfigError(f"{path}: {count} windows of {window} tokens, {text.windows.shape} were given")
    end = HEADER_BYTES + 4 * window * count
    tokens = data[HEADER_BYTES:end].view(np.int32).reshape(count, window)
    if not np.array_equal(tokens, text.windows):
        first = np.argmax(tokens != text.windows)
        raise ConfigError(f"{path}: llama.cpp cuts the text into other tokens from {first} on")
    rows = data[end:].view(np.uint16).reshape(*text.targets.shape, -1)
    for block in rows:
        step, lowest = np.ascontiguousarray(block[:, :STEP_AND_LOWEST]).view(np.float32).T[..., None]
        yield lowest + step * block[:, STEP_AND_LOWEST : STEP_AND_LOWEST + vocab].astype(np.float32)
