"""What a step's results mean for a request: whether it has ended, and the logprobs that it asked for.

Pure functions over one row of a StepResult; `loop.py` applies them, `delivery.py` brings an Outcome to its sink.
"""

from __future__ import annotations

from typing import NamedTuple

from ridgeline.engine.plan import StepResult
from ridgeline.engine.request import FinishReason, Request, TokenLogprob
from ridgeline.errors import RidgelineError


class Outcome(NamedTuple):
    """What one step, an abort or a failure means for a request."""

    request: Request
    time_s: float
    token_id: int | None = None
    logprob: TokenLogprob | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None  # the stop token's id
    error: RidgelineError | None = None


def is_ending(request: Request, token_id: int, eos_ids: frozenset[int]) -> bool:
    """Whether a token ends the request that samples it."""
    params = request.params
    return token_id in params.stop_token_ids or (token_id in eos_ids and not params.ignore_eos)


def token_outcome(
    request: Request, token_id: int, result: StepResult, i: int, eos_ids: frozenset[int], now: float
) -> Outcome:
    """Of the token that row `i` sampled, which has just become the request's last one."""
    wanted = request.params.logprobs
    logprob = None if wanted is None else row_logprob(token_id, result, i, wanted)
    reason = stop_reason = None
    if is_ending(request, token_id, eos_ids):
        reason = FinishReason.STOP
        stop_reason = token_id if token_id in request.params.stop_token_ids else None
    elif len(request.output_ids) == request.max_tokens:
        reason = FinishReason.LENGTH
    return Outcome(request, now, token_id, logprob, reason, stop_reason)


def row_logprob(token_id: int, result: StepResult, i: int, num_top: int) -> TokenLogprob:
    """Row `i`'s logprob of `token_id`, with its `num_top` best alternatives."""
    top = zip(result.top_ids[i, :num_top].tolist(), result.top_logprobs[i, :num_top].tolist(), strict=True)
    return TokenLogprob(token_id, float(result.logprobs[i]), tuple(top))
