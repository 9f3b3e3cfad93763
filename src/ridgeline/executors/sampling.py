"""The sampler, in numpy: what the torch executor uses, and the slow obvious twin of the native one.

Both choose the same token for the same logits. This is the specification that both implement; the native one adds
sums over all ids by blocks of 128, so that a draw within some 1e-14 of the edge between two ids may differ.

State. A slot holds one sequence's setup, the set of prompt ids, a count per output id and the number of output tokens.
Opening a slot counts `output_ids`; sampling a token counts it.

Refusal. A row with a NaN, a +inf or nothing but -inf among its raw logits is not finite: NO_TOKEN, nothing counted.
The same when no adjusted logit is finite (every id banned).

Adjusted logits `l`, in fp32, every operation rounded on its own (no fused multiply-add), in this order:

1. l[id] += bias, for each pair of `logit_bias`;
2. l[id] = -inf for `banned_ids`, while fewer than `min_tokens` tokens are output;
3. repetition penalty r, for each id of prompt or output, once: l > 0 ? l / r : l * r;
4. for each id of the output: l -= presence + frequency * count.

Choice. Temperature 0: the largest l, ties to the lowest id. Else in fp64, where *sorted* means by l descending, then id
ascending, and every sum runs sequentially in candidate order:

5. w = exp((l - max l) / temperature), so that the best candidate has w = 1;
6. min_p > 0 keeps w >= min_p; top_k > 0 keeps the first top_k of the sorted candidates;
7. top_p < 1 keeps the shortest sorted prefix whose sum of w is >= top_p * (the sum over what 6 kept, in id order);
8. u is one Philox draw for (seed, choice, position, PURPOSE_TARGET), where `position` is the index in the sequence of
   the token being sampled, that is one more than its logit row's position; t = u * (the sum of w); the first candidate
   whose running sum exceeds t is chosen, or the last one with w > 0 when rounding leaves none. Candidates stand in id
   order when none of min_p, top_k and top_p is on, else sorted.

Reported logprobs are of the raw distribution: logit - logsumexp, max-shifted and in fp64, rounded to fp32. The
alternatives are the largest raw logits, ties to the lowest id.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ridgeline.engine.plan import NO_LOGPROBS, NO_TOKEN, Float32, SamplerSetup
from ridgeline.executors.philox import uniform

Float64 = NDArray[np.float64]
TopLogprobs = tuple[tuple[int, float], ...]  # (token id, logprob), best first


@dataclass(frozen=True, slots=True)
class Choice:
    """A sampled or scored token. `finite` False: the logits were unusable and `token_id` is NO_TOKEN."""

    token_id: int
    logprob: float
    top: TopLogprobs = ()
    finite: bool = True


NOT_FINITE = Choice(NO_TOKEN, float("nan"), (), False)


@dataclass(slots=True)
class _Slot:
    setup: SamplerSetup
    in_prompt: NDArray[np.bool_]  # [vocab]
    output_counts: NDArray[np.int32]  # [vocab]
    num_outputs: int


@dataclass(slots=True)
class SamplerSlots:
    """Persistent sampler state of the running sequences, addressed by slot number."""

    vocab_size: int
    _slots: dict[int, _Slot] = field(default_factory=dict)

    def open(self, setup: SamplerSetup) -> None:
        """Fills a slot, forgetting what it held."""
        in_prompt = np.zeros(self.vocab_size, np.bool_)
        in_prompt[list(setup.prompt_ids)] = True
        output_counts = np.bincount(np.array(setup.output_ids, np.int64), minlength=self.vocab_size).astype(np.int32)
        self._slots[setup.slot] = _Slot(setup, in_prompt, output_counts, len(setup.output_ids))

    def sample(self, slot: int, logits: Float32, position: int) -> Choice:
        """Chooses and counts the token at `position` of the slot's sequence, from raw logits [vocab]."""
        state = self._slots[slot]
        token_id = NO_TOKEN
        if is_finite(logits):
            adjusted = _adjust(logits, state)
            token_id = _choose(adjusted, state.setup, position) if np.isfinite(adjusted.max()) else NO_TOKEN
        if token_id == NO_TOKEN:
            return NOT_FINITE
        state.output_counts[token_id] += 1
        state.num_outputs += 1
        num_top = state.setup.top_logprobs
        return Choice(token_id, float("nan")) if num_top == NO_LOGPROBS else score(logits, token_id, num_top)


def is_finite(logits: Float32) -> bool:
    """-inf is a probability of zero; NaN, +inf and a row of nothing but -inf have no distribution."""
    return bool(np.isfinite(logits.max()))  # the maximum of anything with a NaN is a NaN


def score(logits: Float32, token_id: int, num_top: int) -> Choice:
    """The log-probability of `token_id` (NO_TOKEN: only the alternatives) and of the `num_top` likeliest tokens."""
    if not is_finite(logits):
        return NOT_FINITE
    shifted = logits.astype(np.float64) - float(logits.max())
    logprobs = (shifted - np.log(np.exp(shifted).sum())).astype(np.float32)  # [vocab]
    top = tuple((int(i), float(logprobs[i])) for i in _sorted_by_logit(logits)[:num_top]) if num_top else ()
    return Choice(token_id, float("nan") if token_id == NO_TOKEN else float(logprobs[token_id]), top)


def _adjust(logits: Float32, state: _Slot) -> Float32:
    """Steps 1 to 4."""
    setup = state.setup
    adjusted = logits.copy()
    for token_id, bias in setup.logit_bias:
        adjusted[token_id] += np.float32(bias)
    if state.num_outputs < setup.min_tokens:
        adjusted[list(setup.banned_ids)] = -np.inf
    if setup.repetition_penalty != 1:
        penalty = np.float32(setup.repetition_penalty)
        seen = state.in_prompt | (state.output_counts > 0)
        adjusted[seen] = np.where(adjusted[seen] > 0, adjusted[seen] / penalty, adjusted[seen] * penalty)
    if setup.presence_penalty or setup.frequency_penalty:
        used = state.output_counts > 0
        counts = state.output_counts[used].astype(np.float32)
        adjusted[used] -= np.float32(setup.presence_penalty) + np.float32(setup.frequency_penalty) * counts
    return adjusted


def _choose(adjusted: Float32, setup: SamplerSetup, position: int) -> int:
    """Steps 5 to 8; the token id."""
    if setup.temperature == 0:
        return int(adjusted.argmax())  # the first of equals
    with np.errstate(over="ignore"):  # at the smallest temperatures: to -infinity, whose weight is 0
        weights = np.exp((adjusted.astype(np.float64) - float(adjusted.max())) / setup.temperature)
    candidates = np.arange(len(adjusted))
    if setup.min_p > 0 or setup.top_k > 0 or setup.top_p < 1:
        candidates = _keep(_sorted_by_logit(adjusted), weights, setup)
    sums = np.cumsum(weights[candidates])  # sequential, unlike np.sum
    threshold = uniform(setup.seed, setup.choice, position) * sums[-1]
    above = np.flatnonzero(sums > threshold)
    chosen = above[0] if len(above) else np.flatnonzero(weights[candidates])[-1]
    return int(candidates[chosen])


def _keep(candidates: NDArray[np.int64], weights: Float64, setup: SamplerSetup) -> NDArray[np.int64]:
    """Steps 6 and 7, on sorted candidates."""
    if setup.min_p > 0:
        candidates = candidates[weights[candidates] >= setup.min_p]
    if setup.top_k > 0:
        candidates = candidates[: setup.top_k]
    if setup.top_p < 1:
        total = np.cumsum(weights[np.sort(candidates)])[-1]
        reached = np.flatnonzero(np.cumsum(weights[candidates]) >= setup.top_p * total)
        candidates = candidates[: reached[0] + 1] if len(reached) else candidates
    return candidates


def _sorted_by_logit(logits: Float32) -> NDArray[np.int64]:
    """Ids by logit descending, ties by id ascending."""
    return np.argsort(-logits, kind="stable")
