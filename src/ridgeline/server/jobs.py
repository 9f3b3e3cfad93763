"""From a request body to a Job: checked fields, token ids, sampling parameters. Runs on a worker thread.

Everything that can be wrong with a request is found here or by the engine's admission, so an error always comes
before the first header of a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ridgeline.config import EngineConfig
from ridgeline.engine.params import checked
from ridgeline.engine.request import SamplingParams
from ridgeline.errors import RequestError
from ridgeline.model.runtime import ModelRuntime
from ridgeline.server.bridge import Work
from ridgeline.server.cache import cache_options
from ridgeline.server.checks import refusal
from ridgeline.server.errors import renamed
from ridgeline.server.fields import CHAT, COMPLETION, SAMPLING, chat_limit, chat_logprobs
from ridgeline.server.formats import ChatFormat, CompletionFormat, Format
from ridgeline.server.logprobs import Echo
from ridgeline.server.messages import plain_messages
from ridgeline.server.state import Served, ServerState
from ridgeline.server.transport import parse_object

COMPLETION_MAX_TOKENS = 16  # OpenAI's default


@dataclass(frozen=True)
class Envelope:
    """What is known of a request before its body is looked at."""

    request_id: str
    arrived_at: float  # time.monotonic()
    body: bytes
    salt: str = ""  # of the API key, when there are several
    explain_cache: bool = False  # the header asks for it


@dataclass(frozen=True)
class Job:
    served: Served
    work: Work
    format: Format
    model: str  # as the client named it, or the first name
    stream: bool
    include_usage: bool
    continuous_usage: bool
    api_names: Mapping[str, str]  # the engine's name of a parameter -> the one this request used


Prepare = Callable[[ServerState, Envelope], Job]


def prepare_chat(state: ServerState, envelope: Envelope) -> Job:
    fields = CHAT.parse(parse_object(envelope.body))
    served = state.require_model(fields.get("model"))
    limit_name, max_tokens = chat_limit(fields)
    names = {"prompt": "messages", "max_tokens": limit_name, "logprobs": "top_logprobs"}
    logprobs = chat_logprobs(fields)
    params = _sampling(served.runtime, fields, names, max_tokens=max_tokens, logprobs=logprobs, starts_text=True)
    prompt_ids = chat_prompt(served.runtime, fields)
    chat = ChatFormat(speller=None if logprobs is None else served.runtime.tokenizer)
    return _job(served, envelope, fields, [prompt_ids], params, chat, names)


def prepare_completion(state: ServerState, envelope: Envelope) -> Job:
    fields = COMPLETION.parse(parse_object(envelope.body))
    served = state.require_model(fields.get("model"))
    runtime = served.runtime
    places = ["prompt"] if len(fields["prompt"]) == 1 else [f"prompt[{i}]" for i in range(len(fields["prompt"]))]
    prompts = [raw_prompt(runtime, *pair) for pair in zip(places, fields["prompt"], strict=True)]
    echo, logprobs = fields.get("echo", False), fields.get("logprobs")
    longest = max(len(prompt) for prompt in prompts)
    room = max(1, runtime.context_len - longest)
    params = _sampling(
        runtime,
        fields,
        {},
        max_tokens=fields.get("max_tokens", min(COMPLETION_MAX_TOKENS, room)),
        logprobs=logprobs,
        prompt_logprobs=logprobs if echo else None,
    )
    echoes = [_echo(runtime, *pair, params) for pair in zip(fields["prompt"], prompts, strict=True)] if echo else None
    speller = None if logprobs is None else runtime.tokenizer
    spells_control = not params.skip_special_tokens
    completion = CompletionFormat(fields.get("n", 1), echoes, speller=speller, spells_control=spells_control)
    return _job(served, envelope, fields, prompts, params, completion, {})


def chat_prompt(runtime: ModelRuntime, fields: Mapping[str, Any]) -> list[int]:
    """The token ids of `fields["messages"]`, with exactly one BOS where the model wants one."""
    if runtime.chat_template is None:
        hint = "send a prompt to /v1/completions"
        raise refusal("messages", f"cannot be used: {runtime.name} has no chat template", hint=hint)
    return runtime.chat_template.encode(
        plain_messages(fields["messages"], takes_tools=runtime.chat_template.takes_tools),
        add_generation_prompt=fields.get("add_generation_prompt", True),
        extra=fields.get("chat_template_kwargs"),
    )


def raw_prompt(
    runtime: ModelRuntime, param: str, prompt: str | list[int], *, add_special_tokens: bool = True
) -> list[int]:
    """The token ids of a raw prompt. Text that spells a control token becomes that token."""
    if not prompt:
        raise refusal(param, "is empty", hint="give at least one token")
    if isinstance(prompt, list):
        check_token_ids(param, prompt, runtime)
        return prompt
    if runtime.tokenizer is None:
        raise refusal(param, f"is text, but {runtime.name} has no tokenizer", hint="send a list of token ids")
    return runtime.tokenizer.encode(prompt, control=True, bos=add_special_tokens)


def check_token_ids(param: str, ids: list[int], runtime: ModelRuntime) -> None:
    vocab_size = runtime.executor.vocab_size
    for position, token_id in enumerate(ids):
        if not 0 <= token_id < vocab_size:
            problem = f"holds token id {token_id} at position {position}; this model's ids are 0 to {vocab_size - 1}"
            raise refusal(param, problem, token_id=token_id, position=position, vocab_size=vocab_size)


def _sampling(
    runtime: ModelRuntime, fields: Mapping[str, Any], names: Mapping[str, str], **derived: Any
) -> SamplingParams:
    """The model's own defaults, then what the request gives, then what the endpoint derives from it."""
    if runtime.tokenizer is None and derived.get("logprobs") is not None:
        raise refusal("logprobs", f"spells tokens, but {runtime.name} has no tokenizer")
    given = {field: fields[name] for name, field in SAMPLING.items() if name in fields}
    params = SamplingParams(**{**runtime.generation_defaults, **given, **derived})
    try:
        return checked(params, vocab_size=runtime.executor.vocab_size)
    except RequestError as error:
        raise renamed(error, names) from None


def _echo(runtime: ModelRuntime, prompt: str | list[int], ids: list[int], params: SamplingParams) -> Echo:
    if isinstance(prompt, str):
        return Echo(prompt, spells_control=True)
    if runtime.tokenizer is None:
        return Echo("", spells_control=False)
    text = runtime.tokenizer.decode(ids, skip_special=params.skip_special_tokens)
    return Echo(text, spells_control=not params.skip_special_tokens)


def _job(
    served: Served,
    envelope: Envelope,
    fields: Mapping[str, Any],
    prompts: list[list[int]],
    params: SamplingParams,
    format: Format,
    api_names: Mapping[str, str],
) -> Job:
    stream, options = fields.get("stream", False), fields.get("stream_options", {})
    if any(options.values()) and not stream:
        raise refusal("stream_options", "needs stream: true")
    work = Work(
        request_id=envelope.request_id,
        prompts=prompts,
        params=params,
        n=fields.get("n", 1),
        priority=fields.get("priority", 0),
        arrived_at=envelope.arrived_at,
        cache=cache_options(fields, default_salt=envelope.salt, explain=envelope.explain_cache),
    )
    _check_schedulable(work, served.engine.config)
    return Job(
        served=served,
        work=work,
        format=format,
        model=fields.get("model", served.names[0]),
        stream=stream,
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("continuous_usage_stats")),
        api_names=api_names,
    )


def _check_schedulable(work: Work, config: EngineConfig) -> None:
    """Refuses what this engine's scheduler would ignore or could never queue."""
    if work.priority and config.policy != "priority":
        hint = "leave it out, or start the server with --policy priority"
        raise refusal("priority", f"is {work.priority}, but this server runs requests by arrival", hint=hint)
    if work.num_choices > config.max_waiting:
        raise refusal(
            "n" if work.n > 1 else "prompt",
            f"asks for {work.num_choices} sequences at once, this server queues {config.max_waiting}",
            hint="send several requests, or raise --max-waiting",
            num_sequences=work.num_choices,
            max_waiting=config.max_waiting,
        )
