"""Checks of single values of a request body: each returns the value in plain form, or refuses it by its name."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ridgeline.config import nearest
from ridgeline.errors import RequestError, shown

Check = Callable[[str, Any], Any]

MAX_STOPS = 16
MAX_SALT_CHARS = 256
MAX_TTL_S = 30 * 24 * 3600.0
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def refusal(param: str, problem: str, **extra: Any) -> RequestError:
    return RequestError(f"{param} {problem}", param=param, **extra)


def as_given(param: str, value: Any) -> Any:
    """For sampling values, which `engine.params.checked` looks at."""
    return value


def boolean(param: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise refusal(param, f"must be true or false, not {shown(value)}")
    return value


def text(param: str, value: Any) -> str:
    if not isinstance(value, str):
        raise refusal(param, f"must be a string, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise refusal(param, f"holds half a surrogate pair at character {error.start}, which is no text") from None
    return value


def integer(low: int, high: int) -> Check:
    def check(param: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise refusal(param, f"must be a whole number, not {shown(value)}")
        if not low <= value <= high:
            raise refusal(param, f"is {shown(value)}, it must be at least {low} and at most {high}")
        return value

    return check


def mapping(param: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise refusal(param, f"must be an object, not {shown(value)}")
    return value


def known_fields(param: str, given: dict[str, Any], known: list[str], where: str) -> None:
    """Refuses a field of the object at `param` that `where` does not have. Null is the same as left out."""
    for name, value in given.items():
        if name not in known and value is not None:
            hint = nearest(name, known)
            problem = f"there is no field {name!r} in {where}"
            raise RequestError(problem, code="unknown_parameter", param=f"{param}.{name}", hint=hint)


def template_variables(param: str, value: Any) -> dict[str, Any]:
    """Further variables of a chat template, under names that the request has no field for."""
    variables = dict(mapping(param, value))
    for name in ("messages", "tools", "add_generation_prompt"):
        if variables.pop(name, None) is not None:
            raise refusal(f"{param}.{name}", "cannot be given here", hint=f"use the field {name}")
    return variables


def stream_options(param: str, value: Any) -> dict[str, Any]:
    options = mapping(param, value)
    known_fields(param, options, ["include_usage", "continuous_usage_stats"], param)
    for name, option in options.items():
        boolean(f"{param}.{name}", False if option is None else option)
    return options


def stops(param: str, value: Any) -> tuple[str, ...]:
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list):
        raise refusal(param, f"must be a string or a list of strings, not {shown(value)}")
    if len(values) > MAX_STOPS:
        raise refusal(param, f"holds {len(values)} strings, the limit is {MAX_STOPS}")
    return tuple(text(param, stop) for stop in values)


def top_k(param: str, value: Any) -> Any:
    """vLLM and transformers spell "off" as -1."""
    return 0 if value == -1 else value


def prompts(param: str, value: Any) -> list[str] | list[list[int]]:
    """str | [str] | [int] | [[int]] as a list with one entry per prompt."""
    if isinstance(value, str):
        return [text(param, value)]
    if not isinstance(value, list) or not value:
        raise refusal(param, "must be a string, a list of strings, or one or more lists of token ids, and not empty")
    if all(isinstance(item, str) for item in value):
        return [text(param, item) for item in value]
    if all(isinstance(item, list) for item in value):
        return [token_ids(f"{param}[{index}]", item) for index, item in enumerate(value)]
    return [token_ids(param, value)]


def token_ids(param: str, value: Any) -> list[int]:
    if not isinstance(value, list):
        raise refusal(param, f"must be a list of token ids, not {shown(value)}")
    for position, token_id in enumerate(value):
        if isinstance(token_id, bool) or not isinstance(token_id, int):
            raise refusal(f"{param}[{position}]", f"is {shown(token_id)}, which is no token id")
    return value


def one_of(*choices: str) -> Check:
    def check(param: str, value: Any) -> str:
        if value not in choices:
            raise refusal(param, f"must be one of {', '.join(choices)}, not {shown(value)}")
        return str(value)

    return check


def salt(param: str, value: Any) -> str:
    if not 1 <= len(text(param, value)) <= MAX_SALT_CHARS:
        raise refusal(param, f"has {len(value)} characters, it must have 1 to {MAX_SALT_CHARS}")
    return str(value)


def seconds(param: str, value: Any) -> float:
    """`300`, `"300s"`, `"5m"` or `"1h"` -> seconds."""
    hint = "write it as 300, 300s, 5m, 1h or 1d"
    if isinstance(value, str):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", value)
        if match is None:
            raise refusal(param, f"is {shown(value)}, which is no duration", hint=hint)
        value = float(match[1]) * _UNITS_S[match[2] or "s"]
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise refusal(param, f"must be a duration, not {shown(value)}", hint=hint)
    if not 0 < value <= MAX_TTL_S:
        raise refusal(param, f"is {shown(value)} s, it must be above 0 and at most {MAX_TTL_S:g} s")
    return float(value)
