"""Runs that the benchmarks share: greedy continuations by the engine, and logits of given tokens by an executor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ridgeline.config import EngineConfig
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


def split_evenly(num_tokens: int, chunk: int) -> list[int]:
    return [min(chunk, num_tokens - start) for start in range(0, num_tokens, chunk)]


def forced_logits(executor: Executor, token_ids: Sequence[int], chunk_lens: Sequence[int]) -> np.ndarray:
    """Logits of every position, [tokens, vocab], a chunk a step, in the first pages of the pool."""
    pages = 1 + np.arange(-(-len(token_ids) // executor.page_size), dtype=np.int32)
    blocks, start = [], 0
    for num_rows in chunk_lens:
        positions = np.arange(start, start + num_rows, dtype=np.int32)
        slots = pages[positions // executor.page_size] * executor.page_size + positions % executor.page_size
        plan = StepPlan(
            token_ids=np.array(token_ids, np.int32)[positions],
            positions=positions,
            slots=slots.astype(np.int32),
            query_start=np.array([0, num_rows], np.int32),
            context_len=np.array([start + num_rows], np.int32),
            block_tables=pages[None],
            logit_rows=np.arange(num_rows, dtype=np.int32),
            sampler_slots=np.full(num_rows, -1, np.int32),
            score_ids=np.full(num_rows, NO_TOKEN, np.int32),
            score_top=np.zeros(num_rows, np.int32),
            want_logits=True,
        )
        blocks.append(np.array(executor.submit(plan).wait().logits))
        start += num_rows
    return np.concatenate(blocks)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities in fp64."""
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return weights / weights.sum()
