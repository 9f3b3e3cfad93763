"""The fields of a request body, as tables: what is honoured, what is accepted, what is refused and with which words.

A field belongs to exactly one of four groups:
- honoured: its check returns the value in plain form or refuses it;
- accepted: it cannot change the answer (`user`, `metadata`, ...);
- not implemented: only null and the listed neutral values pass, anything else is refused with what to do instead;
- unknown: refused, with the nearest name that exists.
So no field is ever ignored silently. Null means the same as leaving a field out, whatever its name. Ranges of sampling
values are checked once for all of Ridgeline, in `engine/params.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ridgeline.config import nearest
from ridgeline.errors import RequestError
from ridgeline.server.checks import (
    Check,
    as_given,
    boolean,
    integer,
    one_of,
    prompts,
    refusal,
    salt,
    seconds,
    stops,
    stream_options,
    template_variables,
    text,
    token_ids,
    top_k,
)

MAX_CHOICES = 128  # of `n`, as OpenAI


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
            if value is None:
                continue
            if name in self.honoured:
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


def _refuse_unless_neutral(name: str, value: Any, spec: NotImplementedField) -> None:
    if value not in spec.neutral:
        raise RequestError(
            f"{name} is not implemented by this server", code="unsupported_parameter", param=name, hint=spec.instead
        )


ACCEPTED = frozenset(
    [
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",  # hosted services route by it; there is one cache here
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
    "cache_salt": salt,
    "cache_ttl": seconds,
    "prompt_cache_retention": one_of("in_memory", "24h"),
    "explain_cache": boolean,
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
        "chat_template_kwargs": template_variables,
        "add_generation_prompt": boolean,
    },
    required=("messages",),
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


def chat_limit(fields: Mapping[str, Any]) -> tuple[str, int | None]:
    """The name that a parsed chat request gave its limit of output tokens, and the limit; None: it gave none."""
    new, old = fields.get("max_completion_tokens"), fields.get("max_tokens")
    if new is not None and old is not None and new != old:
        raise refusal("max_tokens", f"is {old}, but max_completion_tokens is {new}", hint="give one of them")
    return ("max_tokens", old) if new is None else ("max_completion_tokens", new)


def chat_logprobs(fields: Mapping[str, Any]) -> int | None:
    """How many alternatives per token a parsed chat request wants; None: no log-probabilities."""
    if fields.get("top_logprobs") and not fields.get("logprobs"):
        raise refusal("top_logprobs", "needs logprobs: true")
    return fields.get("top_logprobs", 0) if fields.get("logprobs") else None


COMPLETION = Table(
    honoured={**_COMMON, "prompt": prompts, "echo": boolean, "logprobs": integer(0, 5)},
    required=("prompt",),
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
        "chat_template_kwargs": template_variables,
        "return_token_strs": boolean,
    },
    not_implemented={
        "tools": NotImplementedField(([],), _TOOLS_INSTEAD),
        "continue_final_message": NotImplementedField((False,)),
    },
)

DETOKENIZE = Table(honoured={"model": text, "tokens": token_ids}, required=("tokens",))
