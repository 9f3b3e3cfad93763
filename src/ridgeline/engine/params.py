"""What a SamplingParams may hold, checked once, before a request reaches the scheduler.

The Python API, the command line and the server check with `checked`, so a value that one of them refuses is refused
by all, with the same words. Every refusal is a RequestError with `param` set to the field at fault.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ridgeline.engine.plan import MAX_TOP_LOGPROBS
from ridgeline.engine.request import SamplingParams
from ridgeline.errors import RequestError, shown


@dataclass(frozen=True)
class _Range:
    low: float
    high: float = math.inf
    low_allowed: bool = True
    whole: bool = False
    optional: bool = False

    def __str__(self) -> str:
        start = f"at least {self.low}" if self.low_allowed else f"above {self.low}"
        return start if self.high == math.inf else f"{start} and at most {self.high}"

    def check(self, param: str, value: Any) -> None:
        if value is None and self.optional:
            return
        if isinstance(value, bool) or not isinstance(value, int if self.whole else (int, float)):
            raise _refusal(param, f"must be {'a whole number' if self.whole else 'a number'}, not {shown(value)}")
        if not (self.low <= value <= self.high) or (value == self.low and not self.low_allowed):  # refuses NaN too
            raise _refusal(param, f"is {shown(value)}, it must be {self}")


_RANGES = {
    "max_tokens": _Range(0, whole=True, optional=True),
    "temperature": _Range(0, 100),
    "top_k": _Range(0, whole=True),
    "top_p": _Range(0, 1, low_allowed=False),
    "min_p": _Range(0, 1),
    "repetition_penalty": _Range(0.01, 100),  # far below, a logit divided by it is infinite
    "presence_penalty": _Range(-2, 2),
    "frequency_penalty": _Range(-2, 2),
    "seed": _Range(-(2**63), 2**64 - 1, whole=True, optional=True),
    "min_tokens": _Range(0, whole=True),
    "logprobs": _Range(0, MAX_TOP_LOGPROBS, whole=True, optional=True),
    "prompt_logprobs": _Range(0, MAX_TOP_LOGPROBS, whole=True, optional=True),
}
_BIAS = _Range(-100, 100)


def checked(params: SamplingParams, *, vocab_size: int | None = None) -> SamplingParams:
    """`params` in its plain form, or a RequestError that names the field.

    `stop` and `stop_token_ids` may come as one value or a list, `logit_bias` as a dict whose keys may be strings (JSON
    has no other), `seed` as a negative number. Token ids are compared with `vocab_size` when it is given.
    """
    params = dataclasses.replace(
        params,
        stop=_sequence("stop", params.stop),
        stop_token_ids=_sequence("stop_token_ids", params.stop_token_ids),
        logit_bias=_bias_pairs(params.logit_bias),
    )
    for name, allowed in _RANGES.items():
        allowed.check(name, getattr(params, name))
    if params.max_tokens == 0 and params.prompt_logprobs is None:
        raise _refusal("max_tokens", "is 0, it must be at least 1 unless the prompt's logprobs are asked for")
    for text in params.stop:
        if not isinstance(text, str) or not text:
            raise _refusal("stop", f"holds {shown(text)}; each stop must be a string of at least one character")
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise _refusal("min_tokens", f"is {params.min_tokens}, above max_tokens = {params.max_tokens}")
    for token_id in params.stop_token_ids:
        _check_token_id("stop_token_ids", token_id, vocab_size)
    for token_id, bias in params.logit_bias:
        _check_token_id("logit_bias", token_id, vocab_size)
        _BIAS.check("logit_bias", bias)
    if vocab_size is not None and params.top_k >= vocab_size:
        params = dataclasses.replace(params, top_k=0)  # all tokens are among the `top_k` likeliest: off
    if params.seed is None:
        return params
    return dataclasses.replace(params, seed=params.seed % 2**64)


def _refusal(param: str, problem: str) -> RequestError:
    return RequestError(f"{param} {problem}", param=param)


def _sequence(param: str, value: Any) -> tuple[Any, ...]:
    if isinstance(value, str | int):
        return (value,)
    if isinstance(value, list | tuple):
        return tuple(value)
    raise _refusal(param, f"must be one value or a list, not {shown(value)}")


def _bias_pairs(bias: Any) -> tuple[tuple[int, float], ...]:
    try:
        pairs = bias.items() if isinstance(bias, Mapping) else bias
        return tuple((int(token_id), value) for token_id, value in pairs)
    except (TypeError, ValueError) as error:
        raise _refusal("logit_bias", f"must map token ids to numbers, not {shown(bias)}") from error


def _check_token_id(param: str, token_id: Any, vocab_size: int | None) -> None:
    if isinstance(token_id, bool) or not isinstance(token_id, int):
        raise _refusal(param, f"holds {shown(token_id)}, which is no token id")
    if token_id < 0 or (vocab_size is not None and token_id >= vocab_size):
        known = f"0 to {vocab_size - 1}" if vocab_size is not None else "0 and up"
        raise _refusal(param, f"holds token id {token_id}; this model's ids are {known}")
