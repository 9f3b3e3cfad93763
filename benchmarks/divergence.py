"""How far one format's predictions are from the reference's: negative log-likelihood, KL divergence, top-1 agreement.

Errors are standard errors over windows of text, not over tokens: neighbouring tokens share a context, and what goes
wrong in one goes wrong in the next. Two formats see the same windows, so their difference is taken window by window
(paired), which cancels what makes one passage harder than another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
BLOCK = 64  # rows in fp64 at once


@dataclass(frozen=True)
class TokenScores:
    """One entry per scored token. Natural logarithms."""

    nll: Float64  # -log p(token)
    kl: Float64  # KL(reference || format) of the distribution that predicts it
    same_top: NDArray[np.bool_]  # both find the same token likeliest


@dataclass(frozen=True)
class Quality:
    """One format on one text. Lists have one entry per window."""

    nll: list[float]  # means over the window's tokens
    kl: list[float]
    kl_p999: float  # 99.9th percentile over all tokens
    same_top: list[float]  # shares
    num_tokens: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Estimate:
    value: float
    error: float  # standard error


def log_softmax(logits: NDArray[Any]) -> Float64:
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted


def score(reference: NDArray[Any], logits: NDArray[Any], targets: NDArray[Any]) -> TokenScores:
    """Of log-probabilities and raw logits, both [tokens, vocab]; `targets` are the tokens that came.

    Raises ValueError for logits that are not finite: their format failed, and no mean should hide it.
    """
    if not np.isfinite(logits).all():
        raise ValueError(f"{np.count_nonzero(~np.isfinite(logits)):,} of {logits.size:,} logits are not finite")
    blocks = []
    for begin in range(0, len(targets), BLOCK):
        rows = slice(begin, begin + BLOCK)
        expected, got = reference[rows].astype(np.float64), log_softmax(logits[rows])
        nll = -np.take_along_axis(got, np.asarray(targets[rows], np.int64)[:, None], axis=1)[:, 0]
        kl = (np.exp(expected) * (expected - got)).sum(axis=1)
        blocks.append((nll, kl, expected.argmax(axis=1) == got.argmax(axis=1)))
    return TokenScores(*(np.concatenate(values) for values in zip(*blocks, strict=True)))


def summarize(windows: Sequence[TokenScores]) -> Quality:
    return Quality(
        nll=[float(window.nll.mean()) for window in windows],
        kl=[float(window.kl.mean()) for window in windows],
        kl_p999=float(np.percentile(np.concatenate([window.kl for window in windows]), 99.9)),
        same_top=[float(window.same_top.mean()) for window in windows],
        num_tokens=sum(len(window.nll) for window in windows),
    )


def mean(windows: Sequence[float]) -> Estimate:
    """Of at least two windows of equal length."""
    values = np.asarray(windows, np.float64)
    return Estimate(float(values.mean()), float(values.std(ddof=1) / len(values) ** 0.5))


def perplexity(nll: Sequence[float]) -> Estimate:
    logarithm = mean(nll)
    value = float(np.exp(logarithm.value))
    return Estimate(value, value * logarithm.error)


def relative_perplexity(nll: Sequence[float], base: Sequence[float]) -> Estimate:
    """perplexity / base's - 1, of the same windows."""
    logarithm = mean(np.subtract(nll, base).tolist())
    ratio = float(np.exp(logarithm.value))
    return Estimate(ratio - 1, ratio * logarithm.error)
