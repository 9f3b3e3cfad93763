"""The op program in plain PyTorch: the oracle that the native executor is tested against.

Clarity over speed: every op is the textbook formula, attention gathers a sequence's whole K and V and takes a plain
softmax. In fp32 and fp64 it defines what is right. In bf16 it computes in fp32 and rounds at the points that
`model/program.py` names, and in quantized formats it multiplies dequantized weights with inputs that went through the
same 8-bit codes, so that a native step differs by accumulation order alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ridgeline.config import nearest
from ridgeline.engine.plan import MAX_TOP_LOGPROBS, NO_TOKEN, StepPlan, StepResult
from ridgeline.errors import ConfigError, ExecutionError
from ridgeline.executors.sampling import Choice, SamplerSlots, score
from ridgeline.model.program import (
    Attention,
    Embed,
    GatherRows,
    Logits,
    Matmul,
    Norm,
    Op,
    Program,
    RopeStore,
    weight_shapes,
)
from ridgeline.model.rope import inverse_frequencies
from ridgeline.quant.rotation import rotate

if TYPE_CHECKING:
    from ridgeline.model.weights import Weights

DTYPES = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.float32}


@dataclass(frozen=True)
class _Step:
    """A plan's arrays as tensors, with what every layer needs of them."""

    token_ids: Tensor  # [tokens]
    positions: Tensor  # [tokens]
    slots: Tensor  # [tokens]
    logit_rows: Tensor  # [logit rows]
    cos: Tensor  # [tokens, 1, head_dim / 2]
    sin: Tensor
    sequences: list[tuple[slice, Tensor]]  # rows of a sequence, and the slots of its context in order


@dataclass(frozen=True)
class _Done:
    result: StepResult

    def wait(self) -> StepResult:
        return self.result


class TorchExecutor:
    """Implements `engine.plan.Executor` on CPU; a step is computed within `submit`."""

    batch_invariant = False  # a library matmul picks its order of accumulation by shape
    notices: tuple[str, ...] = ()

    def __init__(
        self,
        program: Program,
        weights: Weights,
        *,
        dtype: str = "fp32",
        kv_dtype: str | None = None,
        num_pages: int,
        page_size: int = 16,
        max_step_tokens: int = 2048,
        num_sampler_slots: int = 64,
        threads: int | None = None,
        progress: Callable[[str, float], None] | None = None,
    ) -> None:
        self._groups = _quantized_groups(program, weights)
        is_quantized = bool(self._groups) and dtype not in DTYPES
        kv_dtype = kv_dtype or ("bf16" if is_quantized else dtype)
        compute_dtype = "fp32" if is_quantized else dtype
        for what, name in (("dtype", compute_dtype), ("kv_dtype", kv_dtype)):
            if name not in DTYPES:
                raise ConfigError(f"the torch executor has no {what} {name!r}", hint=nearest(name, list(DTYPES)))
        if threads is not None:
            torch.set_num_threads(threads)
        self.program = program
        self.num_pages, self.page_size, self.max_step_tokens = num_pages, page_size, max_step_tokens
        self.num_sampler_slots = num_sampler_slots
        self.vocab_size = program.spec.vocab_size
        self.arithmetic_id = f"torch-{torch.__version__}-{dtype}"
        self._dtype = DTYPES[compute_dtype]
        self._rounds, self._rounds_kv = compute_dtype == "bf16", kv_dtype == "bf16"
        self._weights = self._load(weights, progress)
        self._takes_hadamard = weights.takes_hadamard
        self._frequencies = torch.tensor(inverse_frequencies(program.spec), dtype=self._dtype)
        self._kv = self._allocate_pages()  # [K or V, layers, slots, kv_heads, head_dim]
        self._samplers = SamplerSlots(self.vocab_size)

    def _load(self, weights: Weights, progress: Callable[[str, float], None] | None) -> dict[str, Tensor]:
        names = weight_shapes(self.program.spec)
        loaded: dict[str, Tensor] = {}
        for name in names:
            values = weights.read_groups(name).dequantize() if name in self._groups else weights.read(name)
            weight = torch.tensor(values, dtype=self._dtype)
            loaded[name] = self._round(weight) if weight.ndim == 2 else weight  # norms and biases stay fp32
            if progress:
                progress("loading weights", len(loaded) / len(names))
        return loaded

    def _allocate_pages(self) -> Tensor:
        spec, num_slots = self.program.spec, self.num_pages * self.page_size
        return torch.zeros(2, spec.num_layers, num_slots, spec.num_kv_heads, spec.head_dim, dtype=self._dtype)

    def _round(self, values: Tensor) -> Tensor:
        return values.bfloat16().to(self._dtype) if self._rounds else values

    def _round_kv(self, values: Tensor) -> Tensor:
        return values.bfloat16().to(self._dtype) if self._rounds_kv else values

    @torch.inference_mode()
    def submit(self, plan: StepPlan) -> _Done:
        if plan.num_tokens > self.max_step_tokens:
            raise ExecutionError(f"a step of {plan.num_tokens} tokens, the executor takes {self.max_step_tokens}")
        start = time.perf_counter()
        for source, destination in plan.copy_pages:
            self._kv[:, :, self._page(destination)] = self._kv[:, :, self._page(source)]
        for setup in plan.setups:
            self._samplers.open(setup)
        step, buffers = self._prepare(plan), dict[str, Tensor]()
        for op in self.program.ops:
            self._run(op, step, buffers)
        result = self._choose(plan, buffers["logits"].to(torch.float32).numpy())
        result.duration_s = time.perf_counter() - start
        return _Done(result)

    def close(self) -> None:
        self._weights.clear()

    def _page(self, page: int) -> slice:
        """The slots of a page."""
        return slice(page * self.page_size, (page + 1) * self.page_size)

    def _prepare(self, plan: StepPlan) -> _Step:
        positions = torch.from_numpy(plan.positions).long()
        angles = positions.to(self._dtype)[:, None, None] * self._frequencies
        sequences = []
        for s in range(plan.num_sequences):
            tokens = np.arange(plan.context_len[s])
            slots = plan.block_tables[s, tokens // self.page_size] * self.page_size + tokens % self.page_size
            rows = slice(int(plan.query_start[s]), int(plan.query_start[s + 1]))
            sequences.append((rows, torch.from_numpy(slots).long()))
        token_ids, slots, logit_rows = (
            torch.from_numpy(array).long() for array in (plan.token_ids, plan.slots, plan.logit_rows)
        )
        return _Step(token_ids, positions, slots, logit_rows, angles.cos(), angles.sin(), sequences)

    def _run(self, op: Op, step: _Step, buffers: dict[str, Tensor]) -> None:
        match op:
            case Embed():
                buffers[op.out] = self._weights[op.weight][step.token_ids]
            case Norm():
                buffers[op.out] = self._round(self._norm(buffers[op.source], op.weight))
            case Matmul():
                buffers[op.out] = self._matmul(op, buffers)
            case RopeStore():
                buffers[op.out] = self._rope_store(op, step, buffers[op.source])
            case Attention():
                buffers[op.out] = self._attention(op, step, buffers[op.source])
            case GatherRows():
                buffers[op.out] = buffers[op.source][step.logit_rows]
            case Logits():
                buffers[op.out] = self._product(buffers[op.source], op.weight)

    def _norm(self, x: Tensor, weight: str) -> Tensor:
        mean_square = x.square().mean(-1, keepdim=True)
        return x * torch.rsqrt(mean_square + self.program.spec.norm_eps) * self._weights[weight]

    def _product(self, x: Tensor, weight: str) -> Tensor:
        if self._takes_hadamard(weight):
            x = torch.from_numpy(rotate(x.numpy()))
        if weight in self._groups:
            x = _through_codes(x, self._groups[weight])
        return x @ self._weights[weight].T

    def _matmul(self, op: Matmul, buffers: dict[str, Tensor]) -> Tensor:
        product = torch.cat([self._product(buffers[op.source], name) for name in op.weights], dim=-1)
        if op.biases:
            product = product + torch.cat([self._weights[name] for name in op.biases])
        if op.epilogue == "add":
            return buffers[op.out] + product
        if op.epilogue == "silu_mul":
            gate, value = product.chunk(2, dim=-1)
            return self._round(functional.silu(gate) * value)
        return product

    def _rope_store(self, op: RopeStore, step: _Step, qkv: Tensor) -> Tensor:
        spec = self.program.spec
        heads = qkv.view(len(qkv), -1, spec.head_dim)
        q, k, v = heads.split([spec.num_heads, spec.num_kv_heads, spec.num_kv_heads], dim=1)
        if op.q_norm and op.k_norm:
            q, k = self._norm(q, op.q_norm), self._norm(k, op.k_norm)
        q, k = _rotate(q, step), _rotate(k, step)
        for pages, rows in zip(self._kv, (k, v), strict=True):
            pages[op.layer, step.slots] = self._round_kv(rows)
        return self._round_kv(q).flatten(1)

    def _attention(self, op: Attention, step: _Step, q: Tensor) -> Tensor:
        spec = self.program.spec
        queries = q.view(len(q), spec.num_heads, spec.head_dim)
        out = torch.empty_like(queries)
        for rows, slots in step.sequences:
            # Query head h reads KV head h // (num_heads / num_kv_heads): [context, num_heads, head_dim].
            keys, values = self._kv[:, op.layer, slots].repeat_interleave(spec.num_heads // spec.num_kv_heads, dim=2)
            scores = torch.einsum("thd,chd->htc", queries[rows], keys) * spec.head_dim**-0.5
            age = step.positions[rows, None] - torch.arange(len(slots))  # [tokens, context]
            visible = (age >= 0) if op.window is None else (age >= 0) & (age < op.window)
            scores = scores.masked_fill(~visible, -torch.inf)
            weights = torch.exp(scores - scores.amax(-1, keepdim=True))
            mixed = torch.einsum("htc,chd->thd", self._round_kv(weights), values)
            out[rows] = mixed / weights.sum(-1).T[..., None]
        return self._round(out).flatten(1)

    def _choose(self, plan: StepPlan, logits: np.ndarray) -> StepResult:
        choices: list[Choice] = []
        for r, row in enumerate(plan.logit_rows):
            slot = int(plan.sampler_slots[r])
            if slot >= 0:
                choices.append(self._samplers.sample(slot, logits[r], int(plan.positions[row]) + 1))
            else:
                choices.append(score(logits[r], int(plan.score_ids[r]), int(plan.score_top[r])))
        result = _collect(choices, plan.sampler_slots >= 0)
        result.logits = logits if plan.want_logits else None
        return result


def _quantized_groups(program: Program, weights: Weights) -> dict[str, int]:
    """The length of a group of every quantized matrix."""
    forms = {name: weights.group_form(name) for name, shape in weight_shapes(program.spec).items() if len(shape) == 2}
    return {name: form.group for name, form in forms.items() if form}


def _through_codes(x: Tensor, group: int) -> Tensor:
    """What is left of each row after codes -127..127 and a scale per group."""
    groups = functional.pad(x, (0, -x.shape[-1] % group)).unflatten(-1, (-1, group))
    largest = groups.abs().amax(-1, keepdim=True)
    codes = torch.where(largest == 0, 0, groups * (127 / largest)).round()
    return (codes * (largest / 127)).flatten(-2)[..., : x.shape[-1]]


def _rotate(heads: Tensor, step: _Step) -> Tensor:
    """Rotary embedding of [tokens, heads, head_dim], half-split pairs."""
    a, b = heads.chunk(2, dim=-1)
    return torch.cat([a * step.cos - b * step.sin, b * step.cos + a * step.sin], dim=-1)


def _collect(choices: list[Choice], sampled: np.ndarray) -> StepResult:
    top_ids = np.full((len(choices), MAX_TOP_LOGPROBS), NO_TOKEN, np.int32)
    top_logprobs = np.full((len(choices), MAX_TOP_LOGPROBS), np.nan, np.float32)
    for r, choice in enumerate(choices):
        for i, (token_id, logprob) in enumerate(choice.top):
            top_ids[r, i], top_logprobs[r, i] = token_id, logprob
    chosen = np.array([choice.token_id for choice in choices], np.int32)
    return StepResult(
        token_ids=np.where(sampled, chosen, NO_TOKEN).astype(np.int32),
        logprobs=np.array([choice.logprob for choice in choices], np.float32),
        top_ids=top_ids,
        top_logprobs=top_logprobs,
        finite=np.array([choice.finite for choice in choices], np.bool_),
    )
