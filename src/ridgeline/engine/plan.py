"""StepPlan and StepResult: all that crosses from the engine to an executor and back.

Both are flat and serializable: numpy arrays, plain numbers, no references to requests. Page 0 is the null page:
it pads block tables and is never owned by a request.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]

NULL_PAGE = 0
NO_TOKEN = -1
NO_LOGPROBS = -1
MAX_TOP_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class SamplerSetup:
    """Fills one persistent sampler slot, before the step runs. The executor keeps the token counts from then on.

    `output_ids` is not empty when a preempted request comes back.
    """

    slot: int
    temperature: float  # 0: greedy
    top_k: int  # 0: off
    top_p: float  # 1: off
    min_p: float  # 0: off
    repetition_penalty: float  # 1: off; over prompt and output
    presence_penalty: float  # over output
    frequency_penalty: float  # over output
    seed: int  # 64 bits, unsigned
    choice: int  # index among the `n` choices of one request
    min_tokens: int  # `banned_ids` cannot be sampled before so many output tokens
    banned_ids: tuple[int, ...]
    logit_bias: tuple[tuple[int, float], ...]
    top_logprobs: int  # alternatives to report per sampled token, 0..MAX_TOP_LOGPROBS; NO_LOGPROBS: nor its own
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]


@dataclass(slots=True)
class StepPlan:
    """One step over T token rows of S sequences, with logits for R of the rows.

    Sequence s owns the rows query_start[s] .. query_start[s+1]; its tokens have consecutive positions, and the last one
    stands at context_len[s] - 1. K and V of a row are written to its slot before any row attends.
    """

    token_ids: Int32  # [T]
    positions: Int32  # [T]
    slots: Int32  # [T]: page * page_size + offset
    query_start: Int32  # [S + 1]
    context_len: Int32  # [S]: tokens whose K and V are in the pages after this step
    block_tables: Int32  # [S, max pages], padded with NULL_PAGE
    logit_rows: Int32  # [R]: rows of token_ids
    sampler_slots: Int32  # [R]: the slot to sample with, or -1: the row is only scored
    score_ids: Int32  # [R]: a token whose logprob is wanted (prompt logprobs), or NO_TOKEN
    score_top: Int32  # [R]: alternatives wanted for a scored row
    setups: list[SamplerSetup] = field(default_factory=list)
    copy_pages: list[tuple[int, int]] = field(default_factory=list)  # (source, destination), before rows are stored
    want_logits: bool = False  # return all logits: for tests and audits

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_sequences(self) -> int:
        return len(self.context_len)


@dataclass(slots=True)
class StepResult:
    """What a step computed, one entry per logit row.

    Logprobs are of the model's own distribution: log-softmax of the raw logits, before penalties and temperature.
    A row whose logits are not finite has `token_ids` NO_TOKEN and `finite` False; other rows are not affected.
    """

    token_ids: Int32  # [R]: sampled tokens; NO_TOKEN for rows that are only scored
    logprobs: Float32  # [R]: of the sampled token, or of the scored one; NaN where nobody wants it
    top_ids: Int32  # [R, MAX_TOP_LOGPROBS], best first, ties to the lowest id, padded with NO_TOKEN
    top_logprobs: Float32  # [R, MAX_TOP_LOGPROBS]
    finite: NDArray[np.bool_]  # [R]
    logits: Float32 | None = None  # [R, vocab]
    duration_s: float = 0.0


class StepHandle(Protocol):
    """A step under way."""

    def wait(self) -> StepResult:
        """Blocks without the GIL until the step is done. Raises ExecutionError when it failed as a whole."""
        ...


class Executor(Protocol):
    """Runs steps. One step is under way at a time."""

    page_size: int
    num_pages: int  # the null page included
    max_step_tokens: int
    num_sampler_slots: int
    vocab_size: int
    batch_invariant: bool
    arithmetic_id: str  # kernel arithmetic version and ISA path: what invariant 5 holds within

    def submit(self, plan: StepPlan) -> StepHandle: ...

    def close(self) -> None: ...
