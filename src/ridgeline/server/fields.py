"""The fields of a request body, as tables: what is honoured, what is accepted, what is refused and with which words.

A field belongs to exactly one of four groups:
- honoured: its check returns the value in plain form or refuses it;
- accepted: it cannot change the answer (`user`, `metadata`, ...);
- not implemented: only null and the listed neutral values pass, anything else is refused with what to do instead;
- unknown: refused, with the nearest name that exists.
So no field is ever ignored silently. Null means the same as leaving a field out. Ranges of sampling values are
checked once for all of Ridgeline, in `engine/params.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ridgeline.config import nearest
from ridgeline.errors import RequestError

Check = Callable[[str, Any], Any]

MAX_CHOICES = 128  # of `n`, as OpenAI
MAX_STOPS = 16


@dataclass(frozen=True)
class NotImplementedField:
    neutral: tuple[Any, ...]  # values that ask for nothing
    instead: str = "leave it out"


@dataclass(frozen=True)
class Table:
    """The fields of one endpoint."""

    honoured: Mapping[str, Check]
    required: tuple[str, ...] = ()
    accepted: frozenset[str] = frozenset()
    not_implemented: Mapping[str, NotImplementedField] = field(default_factory=dict)

    def parse(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The honoured fields of `body` that are given and not null. Raises RequestError that names the field."""
        parsed = {}
        for name, value in body.items():
            if name in self.honoured:
                if value is not None:
                    parsed[name] = self.honoured[name](name, value)
            elif name in self.not_implemented:
                _refuse_unless_neutral(name, value, self.not_implemented[name])
            elif name not in self.accepted:
                raise self._unknown(name)
        for name in self.required:
            if name not in parsed:
                raise RequestError(f"{name} is missing", code="missing_required_parameter", param=name)
        return parsed

    def _unknown(self, name: str) -> RequestError:
        known = [*self.honoured, *self.accepted, *self.not_implemented]
        return RequestError(
            f"there is no field {name!r}", code="unknown_parameter", param=name, hint=nearest(name, known)
        )


def refusal(param: str, problem: str, **extra: Any) -> RequestError:
    return RequestError(f"{param} {problem}", param=param, **extra)


def _refuse_unless_neutral(name: str, value: Any, spec: NotImplementedField) -> None:
    if value is not None and value not in spec.neutral:
        raise RequestError(
            f"{name} is not implemented by this server", code="unsupported_parameter", param=name, hint=spec.instead
        )


# --- checks ---------------------------------------------------------------------------------------------------------


def as_given(param: str, value: Any) -> Any:
    """For sampling values, which `engine.params.checked` looks at."""
    return value


def boolean(param: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise refusal(param, f"must be true or false, not {value!r}")
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
            raise refusal(param, f"must be a whole number, not {value!r}")
        if not low <= value <= high:
            raise refusal(param, f"is {value}, it must be at least {low} and at most {high}")
        return value

    return check


def mapping(param: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise refusal(param, f"must be an object, not {value!r}")
    return value


def stream_options(param: str, value: Any) -> dict[str, Any]:
    options = mapping(param, value)
    for name, option in options.items():
        if name not in ("include_usage", "continuous_usage_stats"):
            hint = nearest(name, ["include_usage", "continuous_usage_stats"])
            raise RequestError(
                f"there is no field {name!r} in {param}", code="unknown_parameter", param=f"{param}.{name}", hint=hint
            )
        boolean(f"{param}.{name}", False if option is None else option)
    return options


def stops(param: str, value: Any) -> tuple[str, ...]:
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list):
        raise refusal(param, f"must be a string or a list of strings, not {value!r}")
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
        raise refusal(param, f"must be a list of token ids, not {value!r}")
    for position, token_id in enumerate(value):
        if isinstance(token_id, bool) or not isinstance(token_id, int):
            raise refusal(f"{param}[{position}]", f"is {token_id!r}, which is no token id")
    return value


# --- tables ---------------------------------------------------------------------------------------------------------

ACCEPTED = frozenset(
    [
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "cache_salt",
    ]
)

# API name -> field of SamplingParams
SAMPLING = {
    "max_tokens": "max_tokens",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "logit_bias": "logit_bias",
    "seed": "seed",
    "stop": "stop",
    "include_stop_str_in_output": "include_stop_str",
    "stop_token_ids": "stop_token_ids",
    "min_tokens": "min_tokens",
    "ignore_eos": "ignore_eos",
    "skip_special_tokens": "skip_special_tokens",
}

_COMMON: dict[str, Check] = {
    **dict.fromkeys(SAMPLING, as_given),
    "stop": stops,
    "top_k": top_k,
    "include_stop_str_in_output": boolean,
    "ignore_eos": boolean,
    "skip_special_tokens": boolean,
    "model": text,
    "n": integer(1, MAX_CHOICES),
    "priority": integer(-(2**31), 2**31 - 1),
    "stream": boolean,
    "stream_options": stream_options,
}

_JSON_INSTEAD = "describe the wanted format in the prompt and leave this field out"
_NOT_IMPLEMENTED = {
    "best_of": NotImplementedField((1,), "use n and choose among the choices"),
    "use_beam_search": NotImplementedField((False,)),
    "length_penalty": NotImplementedField((1,)),
    "bad_words": NotImplementedField(([],), "use logit_bias with -100"),
    "prompt_logprobs": NotImplementedField((), "use /v1/completions with echo and logprobs"),
    "truncate_prompt_tokens": NotImplementedField((), "shorten the prompt; nothing is truncated here"),
    "spaces_between_special_tokens": NotImplementedField((True,)),
    "return_token_ids": NotImplementedField((False,), "use /tokenize"),
    "return_tokens_as_token_ids": NotImplementedField((False,), "use /tokenize"),
    "response_format": NotImplementedField(({"type": "text"},), _JSON_INSTEAD),
    "structured_outputs": NotImplementedField(({},), _JSON_INSTEAD),
    "guided_json": NotImplementedField((), _JSON_INSTEAD),
    "guided_regex": NotImplementedField((), _JSON_INSTEAD),
    "guided_choice": NotImplementedField((), _JSON_INSTEAD),
    "guided_grammar": NotImplementedField((), _JSON_INSTEAD),
}

_TOOLS_INSTEAD = "describe the functions in the messages and leave this field out"
CHAT = Table(
    honoured={
        **_COMMON,
        "messages": as_given,
        "max_completion_tokens": as_given,
        "logprobs": boolean,
        "top_logprobs": integer(0, 20),
        "chat_template_kwargs": mapping,
        "add_generation_prompt": boolean,
    },
    required=("model", "messages"),
    accepted=ACCEPTED,
    not_implemented={
        **_NOT_IMPLEMENTED,
        "tools": NotImplementedField(([],), _TOOLS_INSTEAD),
        "functions": NotImplementedField(([],), _TOOLS_INSTEAD),
        "tool_choice": NotImplementedField(("none", "auto"), _TOOLS_INSTEAD),
        "function_call": NotImplementedField(("none", "auto"), _TOOLS_INSTEAD),
        "parallel_tool_calls": NotImplementedField((True, False), _TOOLS_INSTEAD),
        "audio": NotImplementedField((), "this server answers in text"),
        "modalities": NotImplementedField((["text"],), "this server answers in text"),
        "reasoning_effort": NotImplementedField((), "use chat_template_kwargs if the model's template has a switch"),
        "verbosity": NotImplementedField(("medium",), "ask for it in the messages"),
        "web_search_options": NotImplementedField((), "put what the model should know in the messages"),
        "prediction": NotImplementedField(()),
        "chat_template": NotImplementedField((), "render it yourself and use /v1/completions"),
        "continue_final_message": NotImplementedField((False,), "render the prompt yourself; use /v1/completions"),
        "echo": NotImplementedField((False,), "use /v1/completions"),
        "add_special_tokens": NotImplementedField((False,), "chat templates add their own special tokens"),
        "documents": NotImplementedField(([],), "put the documents in the messages"),
    },
)

COMPLETION = Table(
    honoured={**_COMMON, "prompt": prompts, "echo": boolean, "logprobs": integer(0, 5)},
    required=("model", "prompt"),
    accepted=ACCEPTED,
    not_implemented={
        **_NOT_IMPLEMENTED,
        "suffix": NotImplementedField(("",), "put the text into the prompt in the model's own fill-in format"),
        "add_special_tokens": NotImplementedField((True,), "send token ids as prompt to decide about special tokens"),
    },
)

TOKENIZE = Table(
    honoured={
        "model": text,
        "prompt": text,
        "messages": as_given,
        "add_special_tokens": boolean,
        "add_generation_prompt": boolean,
        "chat_template_kwargs": mapping,
        "return_token_strs": boolean,
    },
    not_implemented={
        "tools": NotImplementedField(([],), _TOOLS_INSTEAD),
        "continue_final_message": NotImplementedField((False,)),
    },
)

DETOKENIZE = Table(honoured={"model": text, "tokens": token_ids}, required=("tokens",))
