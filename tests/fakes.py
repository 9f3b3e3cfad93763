"""Stand-ins for tests of what lies above them: an executor without a model, a tokenizer without a vocabulary file."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable

import numpy as np

from ridgeline.engine.plan import MAX_TOP_LOGPROBS, NO_TOKEN, NULL_PAGE, Int32, StepPlan, StepResult
from ridgeline.errors import ExecutionError

PRIME = 2_147_483_629


def letter_after(context: Int32) -> int:
    """A letter that depends on every token before it and on its position."""
    weights = np.arange(1, len(context) + 1, dtype=np.int64) ** 2 % 10_007
    return 97 + int(np.dot(context + 1, weights) % PRIME % 26)


class FakeExecutor:
    """The next token is a function of the tokens that stand in the sequence's pages, read through its block table.

    K and V of a token are here the token and its position. So a wrong page, slot, position, length or sampler slot
    either fails an assertion or changes the output. Faults on demand: `fail_steps` (counted from 0), `is_nan` (of the
    context before a row) and `gate` (a step is done when it is set).
    """

    arithmetic_id = "fake"
    batch_invariant = True

    def __init__(
        self,
        *,
        num_pages: int = 64,
        page_size: int = 4,
        max_step_tokens: int = 64,
        num_sampler_slots: int = 64,
        vocab_size: int = 258,
        next_token: Callable[[Int32], int] = letter_after,
        fail_steps: frozenset[int] = frozenset(),
        is_nan: Callable[[Int32], bool] | None = None,
        gate: threading.Event | None = None,
        step_s: float = 0.0,
    ) -> None:
        self.num_pages, self.page_size, self.max_step_tokens = num_pages, page_size, max_step_tokens
        self.num_sampler_slots, self.vocab_size = num_sampler_slots, vocab_size
        self.next_token, self.fail_steps, self.is_nan, self.gate = next_token, fail_steps, is_nan, gate
        self.step_s = step_s  # what steps claim to have taken
        self.plans: list[StepPlan] = []
        self.closed = False
        self._tokens = np.full(num_pages * page_size, NO_TOKEN, np.int32)
        self._positions = np.full(num_pages * page_size, -1, np.int32)
        self._order = np.arange(num_pages * page_size, dtype=np.int32)
        self._num_known: dict[int, int] = {}  # sampler slot -> prompt and output tokens that it has seen

    def submit(self, plan: StepPlan) -> FakeHandle:
        self.plans.append(plan)
        return FakeHandle(self, plan, len(self.plans) - 1)

    def close(self) -> None:
        self.closed = True

    def run(self, plan: StepPlan, index: int) -> StepResult:
        assert 0 < plan.num_tokens <= self.max_step_tokens
        if index in self.fail_steps:
            raise ExecutionError(f"step {index} was told to fail")
        for source, destination in plan.copy_pages:
            for slots in (self._tokens, self._positions):
                slots[self._page(destination)] = slots[self._page(source)]
        self._store(plan)
        for setup in plan.setups:
            self._num_known[setup.slot] = len(setup.prompt_ids) + len(setup.output_ids)
        return self._sample(plan)

    def _store(self, plan: StepPlan) -> None:
        assert len(set(plan.slots.tolist())) == plan.num_tokens, "two rows of a step share a slot"
        assert plan.slots.min() >= self.page_size, "a row writes to the null page"
        for s in range(plan.num_sequences):
            rows = slice(plan.query_start[s], plan.query_start[s + 1])
            positions = plan.positions[rows]
            length = plan.context_len[s]
            assert np.array_equal(positions, np.arange(length - len(positions), length))
            pages = plan.block_tables[s][positions // self.page_size]
            assert np.array_equal(plan.slots[rows], pages * self.page_size + positions % self.page_size)
        self._tokens[plan.slots] = plan.token_ids
        self._positions[plan.slots] = plan.positions

    def _page(self, page: int) -> slice:
        assert page != NULL_PAGE, "the null page is copied"
        return slice(page * self.page_size, (page + 1) * self.page_size)

    def _context(self, plan: StepPlan, s: int, length: int) -> Int32:
        """The first `length` tokens of sequence `s`, from its pages."""
        pages = plan.block_tables[s, : -(-length // self.page_size)]
        assert NULL_PAGE not in pages, "the block table ends before the sequence does"
        slots = (pages[:, None] * self.page_size + self._order[: self.page_size]).ravel()[:length]
        assert np.array_equal(self._positions[slots], self._order[:length]), "a page holds another sequence's positions"
        return self._tokens[slots]

    def _sample(self, plan: StepPlan) -> StepResult:
        num_rows = len(plan.logit_rows)
        token_ids = np.full(num_rows, NO_TOKEN, np.int32)
        logprobs = np.zeros(num_rows, np.float32)
        finite = np.ones(num_rows, np.bool_)
        for i, row in enumerate(plan.logit_rows):
            s = int(np.searchsorted(plan.query_start, row, side="right")) - 1
            context = self._context(plan, s, int(plan.positions[row]) + 1)
            finite[i] = self.is_nan is None or not self.is_nan(context)
            slot = int(plan.sampler_slots[i])
            if slot < 0:
                assert plan.score_ids[i] != NO_TOKEN, "a row neither samples nor scores"
                logprobs[i] = fake_logprob(context, int(plan.score_ids[i]))
                continue
            assert self._num_known[slot] == len(context), "the sampler slot is another sequence's"
            self._num_known[slot] += 1
            if finite[i]:
                token_ids[i] = self.next_token(context)
                logprobs[i] = fake_logprob(context, int(token_ids[i]))
        top_ids = np.tile(np.arange(MAX_TOP_LOGPROBS, dtype=np.int32), (num_rows, 1))
        top_logprobs = np.tile(-np.arange(MAX_TOP_LOGPROBS, dtype=np.float32), (num_rows, 1))
        return StepResult(token_ids, logprobs, top_ids, top_logprobs, finite, duration_s=self.step_s)


def fake_logprob(context: Int32, token_id: int) -> float:
    return -float((int(context.sum()) + token_id) % 97) / 8  # exact in float32


@dataclasses.dataclass(slots=True)
class FakeHandle:
    executor: FakeExecutor
    plan: StepPlan
    index: int

    def wait(self) -> StepResult:
        if self.executor.gate is not None:
            assert self.executor.gate.wait(30), "nobody opened the gate"
        return self.executor.run(self.plan, self.index)


class FakeTokenizer:
    """A token per byte of UTF-8, and two control tokens, spelled <bos> and <eos>."""

    vocab_size = 258
    bos_token_id = 256
    eos_token_ids = frozenset({257})
    adds_bos = False
    strips_leading_space = False
    _controls = ("<bos>", "<eos>")

    def encode(self, text: str, *, control: bool = False, bos: bool = False) -> list[int]:
        ids = [self.bos_token_id] if bos else []
        while text:
            found = [i for i, name in enumerate(self._controls) if control and text.startswith(name)]
            if found:
                ids.append(256 + found[0])
                text = text[len(self._controls[found[0]]) :]
            else:
                ids += text[0].encode()
                text = text[1:]
        return ids

    def decode(self, ids: list[int], skip_special: bool = True) -> str:
        pieces = [self.token_text(i).encode() if self.is_control(i) else bytes([i]) for i in ids]
        kept = [p for i, p in zip(ids, pieces, strict=True) if not (skip_special and self.is_control(i))]
        return b"".join(kept).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return b"" if self.is_control(token_id) else bytes([token_id])

    def token_text(self, token_id: int) -> str:
        if self.is_control(token_id):
            return self._controls[token_id - 256]
        return bytes([token_id]).decode(errors="replace")

    def is_control(self, token_id: int) -> bool:
        return token_id >= 256
