"""Runs token sequences straight through an executor, without an engine: StepPlans built by hand."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ridgeline.engine.plan import NO_TOKEN, Executor, SamplerSetup, StepPlan, StepResult

GREEDY: dict[str, Any] = {
    "temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0,
    "frequency_penalty": 0.0, "seed": 0, "choice": 0, "min_tokens": 0, "banned_ids": (), "logit_bias": (),
    "top_logprobs": 0, "prompt_ids": (), "output_ids": (),
}  # fmt: skip


def sampler_setup(slot: int = 0, **given: Any) -> SamplerSetup:
    """Greedy and neutral, but for what is given."""
    return SamplerSetup(slot=slot, **(GREEDY | given))


@dataclass
class Context:
    """A sequence's pages, and how many of its tokens have K and V in them."""

    pages: list[int]
    length: int = 0


class Stepper:
    """Hands out pages in a scrambled order, so that nothing works by pages being neighbours."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self._free = list(range(1, executor.num_pages))  # 0 is the null page
        random.Random(0).shuffle(self._free)

    def open(self, max_len: int) -> Context:
        num_pages = -(-max_len // self.executor.page_size)
        return Context([self._free.pop() for _ in range(num_pages)])

    def close(self, context: Context) -> None:
        self._free += context.pages

    def plan(self, feeds: Sequence[tuple[Context, Sequence[int]]], **fields: Any) -> StepPlan:
        """A step that appends tokens to each context, with logits of every row; `fields` replace the plan's own."""
        page_size = self.executor.page_size
        positions = [np.arange(c.length, c.length + len(tokens)) for c, tokens in feeds]
        slots = [
            np.array(c.pages)[where // page_size] * page_size + where % page_size
            for (c, _), where in zip(feeds, positions, strict=True)
        ]
        tables = np.zeros((len(feeds), max(len(c.pages) for c, _ in feeds)), np.int32)
        for row, (context, tokens) in zip(tables, feeds, strict=True):
            row[: len(context.pages)] = context.pages
            context.length += len(tokens)
        num_rows = sum(len(tokens) for _, tokens in feeds)
        defaults = {
            "token_ids": np.concatenate([np.asarray(tokens, np.int32) for _, tokens in feeds]),
            "positions": np.concatenate(positions).astype(np.int32),
            "slots": np.concatenate(slots).astype(np.int32),
            "query_start": np.cumsum([0, *(len(tokens) for _, tokens in feeds)]).astype(np.int32),
            "context_len": np.array([c.length for c, _ in feeds], np.int32),
            "block_tables": tables,
            "logit_rows": np.arange(num_rows, dtype=np.int32),
            "sampler_slots": np.full(num_rows, -1, np.int32),
            "score_ids": np.full(num_rows, NO_TOKEN, np.int32),
            "score_top": np.zeros(num_rows, np.int32),
            "want_logits": True,
        }
        return StepPlan(**(defaults | fields))

    def run(self, feeds: Sequence[tuple[Context, Sequence[int]]], **fields: Any) -> StepResult:
        return self.executor.submit(self.plan(feeds, **fields)).wait()

    def logits(self, prompts: Sequence[Sequence[int]], chunk: int | None = None) -> list[np.ndarray]:
        """Logits of every position of every prompt, [tokens, vocab] each; all prompts go on together, `chunk` tokens a
        step. A prompt that is shorter than another ends earlier."""
        contexts = [self.open(len(prompt)) for prompt in prompts]
        rows: list[list[np.ndarray]] = [[] for _ in prompts]
        chunk = chunk or max(len(prompt) for prompt in prompts)
        for start in range(0, max(len(prompt) for prompt in prompts), chunk):
            active = [i for i, prompt in enumerate(prompts) if start < len(prompt)]
            feeds = [(contexts[i], prompts[i][start : start + chunk]) for i in active]
            ends = np.cumsum([len(tokens) for _, tokens in feeds])[:-1]
            for i, block in zip(active, np.split(self.run(feeds).logits, ends), strict=True):
                rows[i].append(block)
        for context in contexts:
            self.close(context)
        return [np.concatenate(blocks) for blocks in rows]

    def greedy(self, prompt: Sequence[int], num_tokens: int, chunk: int | None = None) -> list[int]:
        """The argmax continuation of one prompt, by prefill in chunks and decode steps."""
        context = self.open(len(prompt) + num_tokens)
        chunk = chunk or len(prompt)
        for start in range(0, len(prompt), chunk):
            result = self.run([(context, prompt[start : start + chunk])])
        output = [int(result.logits[-1].argmax())]
        while len(output) < num_tokens:
            output.append(int(self.run([(context, output[-1:])]).logits[-1].argmax()))
        self.close(context)
        return output
