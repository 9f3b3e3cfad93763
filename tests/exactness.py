"""Runs a set of prompts through a real engine under a chosen schedule, and keeps what invariant 5 compares: every
request's tokens and the digest of the logits that each token was chosen from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine_runs import Client
from ridgeline.config import EngineConfig, ModelConfig
from ridgeline.cost.memory import PAGE_SIZE
from ridgeline.engine.disk_tier import DiskTier
from ridgeline.engine.loop import Engine
from ridgeline.engine.plan import Executor, StepHandle, StepPlan, StepResult
from ridgeline.engine.request import Request, SamplingParams
from ridgeline.engine.tier import Tier
from ridgeline.model.runtime import ModelRuntime, load_runtime

MODEL = "smollm2-135m"
NUM_PROMPTS = 20

Digests = dict[tuple[int, int], bytes]  # (request, position of the token) -> digest of its logits


@dataclass(frozen=True)
class Schedule:
    """One way to run the prompts. `pool_tokens` that do not hold them all force preemption."""

    chunk: int | None = None  # tokens in a step; None: as many as there are
    alone: bool = False  # one request at a time
    kv_cache: bool = True
    prefix_cache: bool = True
    scheduler: str = "continuous"
    max_requests: int = 32
    pool_tokens: int = 8192
    threads: int = 2

    @property
    def is_tight(self) -> bool:
        return self.pool_tokens < 8192

    def __str__(self) -> str:
        parts = [f"chunk {self.chunk or 'all'}", "alone" if self.alone else "together", f"{self.threads} threads"]
        parts += [] if self.kv_cache else ["no KV cache"]
        parts += [] if self.prefix_cache else ["no prefix cache"]
        parts += [] if self.scheduler == "continuous" else [f"static, {self.max_requests} at once"]
        parts += [] if not self.is_tight else [f"pool of {self.pool_tokens} tokens"]
        return ", ".join(parts)


@dataclass
class Outcome:
    token_ids: list[list[int]]
    digests: Digests
    num_preemptions: int
    reused: list[tuple[int, int]]  # tokens of each prompt found in memory, in whole pages, and loaded from disk
    num_copied: int  # tokens found in pages that others were filling


class RecordingExecutor:
    """An executor that asks for all logits and keeps their digests; it shows only `pool_tokens` worth of its pages. A
    request is known by its seed."""

    def __init__(self, executor: Executor, pool_tokens: int) -> None:
        self._executor = executor
        self.num_pages = pool_tokens // executor.page_size + 1  # and the null page
        self._seeds: dict[int, int] = {}  # sampler slot -> seed
        self.digests: Digests = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def submit(self, plan: StepPlan) -> StepHandle:
        plan.want_logits = True
        self._seeds |= {setup.slot: setup.seed for setup in plan.setups}
        return _RecordingHandle(self, plan, self._executor.submit(plan))

    def record(self, plan: StepPlan, result: StepResult) -> None:
        for row, slot, logits in zip(plan.logit_rows, plan.sampler_slots, result.logits, strict=True):
            if slot >= 0:
                key = self._seeds[int(slot)], int(plan.positions[row]) + 1
                self.digests[key] = hashlib.blake2b(logits.tobytes(), digest_size=16).digest()


@dataclass
class _RecordingHandle:
    executor: RecordingExecutor
    plan: StepPlan
    handle: StepHandle

    def wait(self) -> StepResult:
        result = self.handle.wait()
        self.executor.record(self.plan, result)
        return result


def open_runtime(formats: str, threads: int) -> ModelRuntime:
    """`formats` is a dtype, and a KV format where that has its own: `bf16+int8`."""
    dtype, _, kv_dtype = formats.partition("+")
    config = ModelConfig(dtype=dtype, kv_dtype=kv_dtype or None, threads=threads, kv_memory=1 << 30)
    return load_runtime(MODEL, config)


def run(runtime: ModelRuntime, prompts: Sequence[Sequence[int]], num_tokens: int, schedule: Schedule) -> Outcome:
    """Greedy continuations of `num_tokens` tokens each under `schedule`."""
    executor = RecordingExecutor(runtime.executor, schedule.pool_tokens)
    return serve(make_engine(runtime, executor, schedule), executor, prompts, num_tokens, schedule)


def run_cold_warm_restarted(
    runtime: ModelRuntime, prompts: Sequence[Sequence[int]], num_tokens: int, schedule: Schedule, cache_dir: Path
) -> tuple[Outcome, Outcome, Outcome]:
    """The same prompts on a fresh engine, again on that engine, and after it has left its pages in `cache_dir`."""
    executor = RecordingExecutor(runtime.executor, schedule.pool_tokens)
    engine = make_engine(runtime, executor, schedule, open_tier(cache_dir, executor))
    cold = serve(engine, executor, prompts, num_tokens, schedule)
    warm = serve(engine, executor, prompts, num_tokens, schedule)
    engine.shutdown(0)
    nothing = np.zeros(executor.page_bytes, np.uint8)
    for page in range(1, executor.num_pages):
        executor.write_page(page, nothing)
    engine = make_engine(runtime, executor, schedule, open_tier(cache_dir, executor))
    restarted = serve(engine, executor, prompts, num_tokens, schedule)
    engine.shutdown(0)
    return cold, warm, restarted


def open_tier(path: Path, executor: RecordingExecutor) -> DiskTier:
    fingerprint = hashlib.blake2b(executor.arithmetic_id.encode(), digest_size=32).digest()
    return DiskTier(path, executor, fingerprint=fingerprint, max_bytes=1 << 30)


def make_engine(
    runtime: ModelRuntime, executor: RecordingExecutor, schedule: Schedule, tier: Tier | None = None
) -> Engine:
    config = EngineConfig(
        max_batch_tokens=schedule.chunk or runtime.executor.max_step_tokens,
        max_requests=schedule.max_requests,
        scheduler=schedule.scheduler,
        static_wait_s=0.0,
        kv_cache=schedule.kv_cache,
        prefix_cache=schedule.prefix_cache,
        admission="optimistic" if schedule.is_tight else "reserve",
    )
    context_len = min(1024, schedule.pool_tokens)
    return Engine(executor, runtime.tokenizer, config, context_len=context_len, tier=tier)


def serve(
    engine: Engine,
    executor: RecordingExecutor,
    prompts: Sequence[Sequence[int]],
    num_tokens: int,
    schedule: Schedule,
) -> Outcome:
    executor.digests = {}
    clients = [Client() for _ in prompts]
    for i, (prompt, client) in enumerate(zip(prompts, clients, strict=True)):
        params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, seed=i)
        engine.submit(Request(f"request-{i}", list(prompt), params, client))
        if schedule.alone:
            engine.run_until_idle()
    engine.run_until_idle()
    ends = [client.deltas[-1].metrics for client in clients]
    reused = [(end.num_cached_tokens, end.num_loaded_tokens) for end in ends if end is not None]
    return Outcome(
        token_ids=[client.token_ids for client in clients],
        digests=executor.digests,
        num_preemptions=engine.stats().num_preemptions,
        reused=reused,
        num_copied=sum(end.num_copied_tokens for end in ends if end is not None),
    )


def prompts_of(runtime: ModelRuntime, count: int = NUM_PROMPTS) -> list[list[int]]:
    """Texts of many lengths, so that chunks and pages end at different places: 4 to 65 tokens."""
    text = (
        "The lighthouse keeper wrote every evening: wind from the north-west, 14 knots; two ships, one of them late. "
        "Nobody read the book. def area(r): return 3.14159 * r ** 2  # units? Nobody asked. Dès l'aube, à l'heure où "
        "blanchit la campagne, the keeper's daughter counted 1, 2, 3, 5, 8, 13 gulls and gave each of them a name."
    )
    tokens = runtime.tokenizer.encode(text)
    lengths = [31, 32, 33, 64, 65, 4, 15, 16, 48, 49, *range(5, 65, 6)][:count]
    return [tokens[i : i + length] for i, length in enumerate(lengths)]


def related_prompts_of(runtime: ModelRuntime, count: int) -> list[list[int]]:
    """Texts that share their beginnings four by four, as chats do, and end around the edges of pages: 32 to 112 tokens.
    Each fourth one is exactly as long as some pages."""
    texts = prompts_of(runtime, NUM_PROMPTS)
    longest = max(texts, key=len)
    prompts = []
    for i in range(count):
        family, member = divmod(i, 4)
        begin = longest[family % 16 :][: 31 + 7 * (family % 6)] + texts[family % len(texts)][: family + 1]
        end = longest[member * 9 :][: 12 * member]
        prompt = begin + end
        prompts.append(prompt[: len(prompt) // PAGE_SIZE * PAGE_SIZE] if member == 3 else prompt)
    return prompts
