"""From a schedule to the executor's arrays: chunks of requests become one StepPlan.

Rows of a chunk stand together, in the order of the schedule. A chunk gets a logit row for its last token when that
samples, and one for each prompt position whose logprob is wanted: position p is predicted by the row of p - 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from ridgeline.engine.plan import NO_LOGPROBS, NO_TOKEN, NULL_PAGE, Int32, SamplerSetup, StepPlan
from ridgeline.engine.request import Request
from ridgeline.engine.scheduler import Chunk

NO_SLOT = -1


@dataclass(frozen=True, slots=True)
class LogitRow:
    """What one logit row of a plan is for: the next token, or the logprob of the prompt's token at `scores`."""

    request: Request
    row: int  # of the plan's token rows
    scores: int | None = None


def build_plan(chunks: Sequence[Chunk], page_size: int, eos_ids: frozenset[int]) -> tuple[StepPlan, list[LogitRow]]:
    """The plan of one step, and what its logit rows are for, in their order."""
    query_len = np.array([chunk.num_tokens for chunk in chunks], np.int32)  # [S]
    query_start = np.concatenate([[0], np.cumsum(query_len)]).astype(np.int32)  # [S + 1]
    sequence = np.repeat(np.arange(len(chunks)), query_len)  # [T]
    starts = np.array([chunk.start for chunk in chunks], np.int32)  # [S]
    positions = (np.arange(query_start[-1]) + (starts - query_start[:-1])[sequence]).astype(np.int32)  # [T]
    tables = _block_tables(chunks)
    pages = tables[sequence, positions // page_size]
    rows = [row for i, chunk in enumerate(chunks) for row in _logit_rows(chunk, int(query_start[i]))]
    plan = StepPlan(
        token_ids=_int32(t for chunk in chunks for t in chunk.request.tokens(chunk.start, chunk.stop)),
        positions=positions,
        slots=pages * page_size + positions % page_size,
        query_start=query_start,
        context_len=starts + query_len,
        block_tables=tables,
        logit_rows=_int32(row.row for row in rows),
        sampler_slots=_int32(_sampler_slot(row) for row in rows),
        score_ids=_int32(NO_TOKEN if row.scores is None else row.request.prompt_ids[row.scores] for row in rows),
        score_top=_int32(0 if row.scores is None else row.request.params.prompt_logprobs or 0 for row in rows),
        setups=[_setup(chunk.request, eos_ids) for chunk in chunks if chunk.request.needs_setup],
    )
    for chunk in chunks:
        chunk.request.needs_setup = False
    return plan, rows


def continued_plan(plan: StepPlan, chunks: Sequence[Chunk], page_size: int) -> StepPlan:
    """The plan of `chunks`, which decode the sequences of `plan`, all decodes too, one token further. Its `token_ids`
    are those that `plan` samples; what its logit rows are for stays the same."""
    positions, tables = plan.positions + 1, _block_tables(chunks)
    pages = tables[np.arange(len(chunks)), positions // page_size]
    return replace(
        plan,
        positions=positions,
        slots=pages * page_size + positions % page_size,
        context_len=plan.context_len + 1,
        block_tables=tables,
        setups=[],
        copy_pages=[],
    )


def _int32(values: Iterable[int]) -> Int32:
    return np.fromiter(values, np.int32)


def _block_tables(chunks: Sequence[Chunk]) -> Int32:
    pages = [chunk.request.pages for chunk in chunks]
    num_pages = np.array(list(map(len, pages)))  # [S]
    tables = np.full((len(chunks), num_pages.max()), NULL_PAGE, np.int32)
    tables[np.arange(tables.shape[1]) < num_pages[:, None]] = _int32(chain.from_iterable(pages))
    return tables


def _logit_rows(chunk: Chunk, first_row: int) -> Iterator[LogitRow]:
    request = chunk.request
    if request.params.prompt_logprobs is not None:
        first = max(chunk.start + 1, len(request.prompt_logprobs))  # after a preemption: not those scored before
        for position in range(first, min(chunk.stop + 1, len(request.prompt_ids))):
            yield LogitRow(request, first_row + position - 1 - chunk.start, scores=position)
    if chunk.samples:
        yield LogitRow(request, first_row + chunk.num_tokens - 1)


def _sampler_slot(row: LogitRow) -> int:
    if row.scores is not None:
        return NO_SLOT
    assert row.request.sampler_slot is not None
    return row.request.sampler_slot


def _setup(request: Request, eos_ids: frozenset[int]) -> SamplerSetup:
    params = request.params
    assert request.sampler_slot is not None
    ending = set(params.stop_token_ids) | (set() if params.ignore_eos else eos_ids)
    return SamplerSetup(
        slot=request.sampler_slot,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        seed=request.seed,
        choice=request.choice,
        min_tokens=params.min_tokens,
        banned_ids=tuple(sorted(ending)) if params.min_tokens else (),
        logit_bias=params.logit_bias,
        top_logprobs=NO_LOGPROBS if params.logprobs is None else params.logprobs,
        prompt_ids=tuple(request.prompt_ids),
        output_ids=tuple(request.output_ids),
    )
