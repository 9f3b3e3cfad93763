"""A fixed text in windows of tokens, Ridgeline's predictions on it, and the fp32 ones that all others are held against.

Of each window the second half is scored, so that every scored token has at least 512 tokens before it. llama.cpp's
perplexity tool does the same, and its rows compare one to one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from divergence import Quality, log_softmax, score, summarize
from novels import HELD_OUT, held_out_text
from ridgeline.config import ModelConfig, nearest
from ridgeline.engine.plan import Executor
from ridgeline.errors import ConfigError
from ridgeline.model.fingerprint import kv_fingerprint
from ridgeline.model.resolve import resolve_model
from ridgeline.model.runtime import ModelRuntime, load_runtime
from ridgeline.model.tokenizer import load_tokenizer
from runs import Rows, plan_of

WINDOW = 1024
NUM_WINDOWS = 16
SCORED_FROM = WINDOW // 2  # logits of positions SCORED_FROM .. WINDOW - 2 predict the tokens after them
OPTIONS = {"head": "head_dtype", "kv": "kv_dtype"}  # what may follow a dtype in a format's name


@dataclass(frozen=True)
class HeldOut:
    """`windows`: int32 [windows, WINDOW], tokens of `model`."""

    model: str
    name: str  # of the text
    windows: np.ndarray

    @property
    def targets(self) -> np.ndarray:
        """The scored tokens, [windows, scored]."""
        return self.windows[:, SCORED_FROM + 1 :]

    @property
    def key(self) -> str:
        """Another text or tokenizer, another key."""
        return hashlib.blake2b(self.windows.tobytes(), digest_size=8).hexdigest()


def cut(model: str, file: Path | None = None, num_windows: int = NUM_WINDOWS) -> HeldOut:
    """The first windows of `file`, of the held-out novel when there is none. No BOS token, even where a model wants it:
    the windows follow each other in the text."""
    text, name = (file.read_text(), file.name) if file else (held_out_text(), HELD_OUT)
    tokenizer = load_tokenizer(resolve_model(model))
    if tokenizer is None:
        raise ConfigError(f"{model} has no tokenizer", hint="put tokenizer.json beside the weights")
    token_ids = np.array(tokenizer.encode(text), np.int32)
    if len(token_ids) < num_windows * WINDOW:
        raise ConfigError(f"{name}: {len(token_ids):,} tokens, {num_windows} windows need {num_windows * WINDOW:,}")
    return HeldOut(model, name, token_ids[: num_windows * WINDOW].reshape(num_windows, WINDOW))


def parse_format(name: str, threads: int | None = None) -> ModelConfig:
    """`DTYPE[+head=DTYPE][+kv=DTYPE]`, as `int4-g32+head=int8-g32`."""
    dtype, *options = name.split("+")
    settings: dict[str, Any] = {"dtype": dtype}
    for option in options:
        key, _, value = option.partition("=")
        if key not in OPTIONS or not value:
            raise ConfigError(f"format {name!r}: what is {option!r}?", hint=nearest(key, list(OPTIONS)))
        settings[OPTIONS[key]] = value
    return ModelConfig(context=WINDOW, threads=threads, packed_file=False, **settings)


def window_logits(executor: Executor, token_ids: np.ndarray) -> np.ndarray:
    """Logits that predict a window's scored tokens, fp32 [scored, vocab]: a prefill in two chunks."""
    pages = 1 + np.arange(-(-WINDOW // executor.page_size), dtype=np.int32)
    for start, stop in ((0, SCORED_FROM), (SCORED_FROM, WINDOW - 1)):
        rows = Rows(token_ids[start:stop], start, pages)
        scored = start == SCORED_FROM
        result = executor.submit(plan_of([rows], executor.page_size, all_logits=scored)).wait()
    assert result.logits is not None
    return result.logits


class Reference:
    """fp32 predictions as log-probabilities, in a file of `scratch`: more than a gigabyte for a large vocabulary. One
    that is there already, of the same text, weights and arithmetic, is taken. `threads` changes no figure of ours."""

    def __init__(self, text: HeldOut, scratch: Path, threads: int | None = None) -> None:
        self.text, self.threads = text, threads
        runtime = load_runtime(text.model, parse_format("fp32", threads), num_sampler_slots=1)
        try:
            self.name = runtime.name
            self.facts = facts(runtime.executor)
            identity = kv_fingerprint(runtime.files, "checkpoint", runtime.executor, runtime.executor.page_bytes)
            self.stem = f"{runtime.name}-{identity.hex()[:16]}"
            path = scratch / f"{self.stem}-{text.key}.logprobs"
            if not path.exists():
                write_logprobs(path, text, runtime)
            shape = (*text.targets.shape, runtime.spec.vocab_size)
            self._logprobs = np.memmap(path, np.float32, "r", shape=shape)
        finally:
            runtime.close()
        self.quality = self.compare(iter(self._logprobs))

    def compare(self, windows: Iterable[np.ndarray]) -> Quality:
        """Of logits or log-probabilities, [scored, vocab] per window."""
        expected = zip(self._logprobs, windows, self.text.targets, strict=True)
        return summarize([score(reference, logits, targets) for reference, logits, targets in expected])


def write_logprobs(path: Path, text: HeldOut, runtime: ModelRuntime) -> None:
    """[windows, scored, vocab], fp32; in place when it is whole."""
    making = path.with_suffix(".making")
    with making.open("wb") as file:
        for window in text.windows:
            file.write(log_softmax(window_logits(runtime.executor, window)).astype(np.float32).tobytes())
    making.rename(path)


def evaluate(model: str, name: str, reference: Reference) -> tuple[Quality, dict[str, Any]]:
    """A format's quality and facts; `model` may be another file of the reference's weights."""
    runtime = load_runtime(model, parse_format(name, reference.threads), num_sampler_slots=1)
    try:
        logits: Iterator[np.ndarray] = (window_logits(runtime.executor, window) for window in reference.text.windows)
        return reference.compare(logits), facts(runtime.executor)
    finally:
        runtime.close()


def facts(executor: Executor) -> dict[str, Any]:
    return {"weight_bytes": executor.weight_bytes, "arithmetic": executor.arithmetic_id}
