"""Runs that the benchmarks share: greedy continuations by the engine, and logits of given tokens by an executor."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ridgeline import __version__, _native
from ridgeline.config import EngineConfig
from ridgeline.cost.cores import usable_cores
from ridgeline.engine.loop import Engine
from ridgeline.engine.plan import NO_TOKEN, Executor, StepPlan
from ridgeline.engine.request import Delta, Request, SamplingParams
from ridgeline.model.runtime import ModelRuntime


def generate(
    runtime: ModelRuntime, prompts: Sequence[Sequence[int]], num_tokens: int, config: EngineConfig | None = None
) -> list[list[int]]:
    """Greedy continuations of `num_tokens` tokens each, past end tokens; all prompts are submitted at once."""
    config = config or EngineConfig()
    engine = Engine(runtime.executor, runtime.tokenizer, config, context_len=runtime.context_len)
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    deltas: list[list[Delta]] = [[] for _ in prompts]
    for i, prompt in enumerate(prompts):
        engine.submit(Request(str(i), list(prompt), params, deltas[i].append))
    engine.run_until_idle()
    for error in (delta.error for received in deltas for delta in received if delta.error):
        raise error
    return [[token_id for delta in received for token_id in delta.token_ids] for received in deltas]


@dataclass(frozen=True)
class Timed:
    """A greedy continuation: its tokens, and the seconds from submitting the prompt to each of them."""

    token_ids: list[int]
    seconds: list[float]

    @property
    def ttft_s(self) -> float:
        return self.seconds[0]

    def tpot_s(self, first: int = 0, last: int = -1) -> float:
        """Mean time from a token to the next, between the tokens of these indices."""
        return (self.seconds[last] - self.seconds[first]) / (range(len(self.seconds))[last] - first)


def timed_generate(runtime: ModelRuntime, prompt: Sequence[int], num_tokens: int, config: EngineConfig) -> Timed:
    """As `generate`, for one prompt, with the time of every token."""
    engine = Engine(runtime.executor, runtime.tokenizer, config, context_len=runtime.context_len)
    arrived: list[tuple[float, Delta]] = []
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    start = time.perf_counter()
    engine.submit(Request("0", list(prompt), params, lambda delta: arrived.append((time.perf_counter(), delta))))
    engine.run_until_idle()
    for _, delta in arrived:
        if delta.error is not None:
            raise delta.error
    tokens = [(token_id, moment - start) for moment, delta in arrived for token_id in delta.token_ids]
    return Timed([token_id for token_id, _ in tokens], [seconds for _, seconds in tokens])


def this_machine() -> str:
    """What a figure of speed depends on beside the code."""
    cpu_info = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":")[1].strip() for line in cpu_info if line.startswith("model name")), platform.machine())
    threads = f"{usable_cores()} threads, ISA path {_native.isa()}, Python {platform.python_version()}"
    return f"ridgeline {__version__}, {cpu}, {threads}"


def split_evenly(num_tokens: int, chunk: int) -> list[int]:
    return [min(chunk, num_tokens - start) for start in range(0, num_tokens, chunk)]


@dataclass(frozen=True)
class Rows:
    """A sequence's part of a step: `token_ids` at positions `start` and after, in its pages."""

    token_ids: Sequence[int]
    start: int
    pages: np.ndarray  # int32, those of the whole sequence


def plan_of(sequences: Sequence[Rows], page_size: int, *, all_logits: bool) -> StepPlan:
    """A step that returns logits of every row (`all_logits`), or only scores each sequence's last row."""
    lens = [len(rows.token_ids) for rows in sequences]
    ends = np.cumsum([0, *lens])
    positions = [rows.start + np.arange(num_rows) for rows, num_rows in zip(sequences, lens, strict=True)]
    slots = [
        rows.pages[where // page_size] * page_size + where % page_size
        for rows, where in zip(sequences, positions, strict=True)
    ]
    tables = np.zeros((len(sequences), max(len(rows.pages) for rows in sequences)), np.int32)
    for table, rows in zip(tables, sequences, strict=True):
        table[: len(rows.pages)] = rows.pages
    logit_rows = np.arange(ends[-1]) if all_logits else ends[1:] - 1
    return StepPlan(
        token_ids=np.concatenate([np.asarray(rows.token_ids, np.int32) for rows in sequences]),
        positions=np.concatenate(positions).astype(np.int32),
        slots=np.concatenate(slots).astype(np.int32),
        query_start=ends.astype(np.int32),
        context_len=np.array([rows.start + num for rows, num in zip(sequences, lens, strict=True)], np.int32),
        block_tables=tables,
        logit_rows=logit_rows.astype(np.int32),
        sampler_slots=np.full(len(logit_rows), -1, np.int32),
        score_ids=np.full(len(logit_rows), NO_TOKEN, np.int32),
        score_top=np.zeros(len(logit_rows), np.int32),
        want_logits=all_logits,
    )


def forced_logits(executor: Executor, token_ids: Sequence[int], chunk_lens: Sequence[int]) -> np.ndarray:
    """Logits of every position, [tokens, vocab], a chunk a step, in the first pages of the pool."""
    pages = 1 + np.arange(-(-len(token_ids) // executor.page_size), dtype=np.int32)
    blocks, start = [], 0
    for num_rows in chunk_lens:
        rows = Rows(token_ids[start : start + num_rows], start, pages)
        blocks.append(np.array(executor.submit(plan_of([rows], executor.page_size, all_logits=True)).wait().logits))
        start += num_rows
    return np.concatenate(blocks)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities in fp64."""
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return weights / weights.sum()
