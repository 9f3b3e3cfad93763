"""`generate --batch-file`: a JSONL file of prompts in, a JSONL file of answers out, in the same order.

A line is the body of a chat or completions request (`{"prompt": "...", "max_tokens": 20}`, `{"messages": [...]}`), or
such a body inside OpenAI's batch envelope (`{"custom_id": ..., "url": ..., "body": {...}}`). Fields are checked by the
server's own tables, so a line means what it would mean over HTTP, and an envelope's answer has the server's shape.
Two things differ for a bare body: its prompt goes through the chat template unless `--raw`, and where it says nothing,
the command line's flags and defaults hold.

A line that cannot be honoured, or whose `custom_id` an earlier line has, yields an error object in its place; the
others are not touched.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from ridgeline.engine.request import SamplingParams
from ridgeline.errors import ConfigError, RequestError, RidgelineError, shown
from ridgeline.llm import LLM, Generation
from ridgeline.server.checks import known_fields
from ridgeline.server.fields import CHAT, COMPLETION, SAMPLING, chat_limit, chat_logprobs
from ridgeline.server.formats import ChatFormat, CompletionFormat, merged
from ridgeline.server.messages import plain_messages
from ridgeline.server.shapes import PromptTokensDetails, Reply, Usage

_COMPLETION_MAX_TOKENS = 16  # OpenAI's default of /v1/completions
# What the server honours and a file of answers, one per line, cannot.
NEUTRAL = {
    "n": 1,
    "stream": False,
    "stream_options": None,
    "echo": False,
    "priority": 0,
    "add_generation_prompt": True,
    "explain_cache": False,
    "cache_salt": None,  # a file is one caller's, and the cache ends with it
    "cache_ttl": None,
    "prompt_cache_retention": None,
}
_URLS = {True: "/v1/chat/completions", False: "/v1/completions"}  # of a chat?


@dataclasses.dataclass
class Entry:
    """One line on its way to its answer."""

    place: dict[str, Any]  # what identifies it in the output: `index` of the line, or the envelope's `custom_id`
    is_enveloped: bool = False
    is_chat: bool = False
    outcome: Generation | RidgelineError | None = None

    @property
    def is_over(self) -> bool:
        return isinstance(self.outcome, RidgelineError) or (self.outcome is not None and self.outcome.done)


def run_batch(
    llm: LLM, source: Path, out: Path | None, defaults: SamplingParams, *, raw: bool, show_progress: bool
) -> dict[str, Any]:
    """Answers every line of `source`; returns the counts `requests` and `failed`, and `out`."""
    num_done = num_failed = 0
    if out is not None and out.exists() and out.samefile(source):
        raise ConfigError(f"--out {out} is the batch file itself, which would be overwritten", hint="name another file")
    with contextlib.ExitStack() as stack:
        sink = stack.enter_context(out.open("w", encoding="utf-8")) if out else sys.stdout
        lines = stack.enter_context(source.open(encoding="utf-8", errors="surrogateescape"))
        for result in _answers(llm, lines, defaults, raw):
            num_done += 1
            num_failed += bool(result.get("error"))
            _write(sink, result)
            if show_progress and sys.stderr.isatty():
                print(f"\r{num_done} done", end="", file=sys.stderr, flush=True)
    return {"requests": num_done, "failed": num_failed, "out": str(out) if out else None}


def _write(sink: IO[str], result: dict[str, Any]) -> None:
    sink.write(json.dumps(result) + "\n")
    sink.flush()


def _answers(llm: LLM, lines: Iterable[str], defaults: SamplingParams, raw: bool) -> Iterator[dict[str, Any]]:
    """Results in the order of the lines. As many run at once as the engine takes; `submit` waits when it is full."""
    under_way: deque[Entry] = deque()
    ids: dict[str, int] = {}  # custom_id -> the line that has it
    for index, line in enumerate(lines):
        if line.strip():
            under_way.append(_start(llm, index, line, defaults, raw, ids))
        while under_way and under_way[0].is_over:
            yield _result(llm, under_way.popleft())
    while under_way:
        yield _result(llm, under_way.popleft())


def _start(llm: LLM, index: int, line: str, defaults: SamplingParams, raw: bool, ids: dict[str, int]) -> Entry:
    entry = Entry({"index": index})
    try:
        body = _read_body(entry, index, line, ids)
        entry.outcome = llm.submit(*_prompt_and_params(llm, entry, body, defaults, raw))
    except RidgelineError as error:
        entry.outcome = error
    return entry


def _read_body(entry: Entry, index: int, line: str, ids: dict[str, int]) -> dict[str, Any]:
    """The request's body; notes in `entry` whether it came in an envelope and which kind it is, and its id in `ids`."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"line {index + 1} is no JSON: {error}", code="invalid_json") from None
    if isinstance(value, dict) and "body" in value:
        entry.is_enveloped, entry.place = True, {"custom_id": value.get("custom_id")}
        envelope, value = value, value["body"]
    if not isinstance(value, dict):
        raise RequestError(f"line {index + 1} holds no request object", code="invalid_json")
    entry.is_chat = "messages" in value
    if entry.is_enveloped:
        _check_envelope(f"line {index + 1}", envelope, entry.is_chat)
        custom_id = envelope["custom_id"]
        if (first := ids.setdefault(custom_id, index + 1)) != index + 1:
            problem = f"line {index + 1}: line {first} has the custom_id {shown(custom_id)} too"
            raise RequestError(problem, param="custom_id")
    return value


def _check_envelope(line: str, envelope: dict[str, Any], is_chat: bool) -> None:
    known_fields(line, envelope, ["custom_id", "method", "url", "body"], "a batch request")
    if not isinstance(envelope.get("custom_id"), str):
        raise RequestError(f"{line}: custom_id is {shown(envelope.get('custom_id'))}, not a string", param="custom_id")
    for name, expected in (("method", "POST"), ("url", _URLS[is_chat])):
        if envelope.get(name, expected) != expected:
            problem = f"{line}: {name} is {shown(envelope[name])}, where its body needs {expected!r}"
            raise RequestError(problem, param=name)


def _result(llm: LLM, entry: Entry) -> dict[str, Any]:
    try:
        assert entry.outcome is not None, "an entry that was not started"
        if isinstance(entry.outcome, RidgelineError):
            raise entry.outcome
        completion = llm.wait(entry.outcome)
    except RidgelineError as error:
        failure = {"error": {"code": error.code, "message": error.message, "hint": error.hint}}
        return {**entry.place, "response": None, **failure} if entry.is_enveloped else {**entry.place, **failure}
    if not entry.is_enveloped:
        return {**entry.place, **dataclasses.asdict(completion)}
    reply = msgspec.to_builtins(_reply(llm, entry.is_chat, entry.outcome))
    return {**entry.place, "response": {"status_code": 200, "body": reply}, "error": None}


def _prompt_and_params(
    llm: LLM, entry: Entry, body: dict[str, Any], defaults: SamplingParams, raw: bool
) -> tuple[Sequence[int], SamplingParams]:
    table = CHAT if entry.is_chat else COMPLETION
    fields = table.parse({"model": llm.runtime.name, **body})
    for name, neutral in {**NEUTRAL, "model": llm.runtime.name}.items():
        if fields.get(name, neutral) != neutral:
            raise RequestError(f"{name} is {fields[name]!r}; in this file it can only be {neutral!r}", param=name)
    given = {SAMPLING[name]: value for name, value in fields.items() if name in SAMPLING}
    if entry.is_enveloped:
        defaults = SamplingParams(**llm.runtime.generation_defaults)
    given["starts_text"] = entry.is_chat or not (raw or entry.is_enveloped)
    if entry.is_chat:
        _, max_tokens = chat_limit(fields)
        if max_tokens is not None:
            given["max_tokens"] = max_tokens
        if "logprobs" in fields or "top_logprobs" in fields:
            given["logprobs"] = chat_logprobs(fields)
        template = llm.runtime.chat_template
        messages = plain_messages(fields["messages"], takes_tools=template is not None and template.takes_tools)
        prompt_ids = llm.render(messages, extra=fields.get("chat_template_kwargs"))
    else:
        if "logprobs" in fields:
            given["logprobs"] = fields["logprobs"]
        if entry.is_enveloped:
            given.setdefault("max_tokens", _COMPLETION_MAX_TOKENS)
        prompt_ids = _prompt_ids(llm, fields["prompt"], raw or entry.is_enveloped)
    return prompt_ids, dataclasses.replace(defaults, **given)


def _prompt_ids(llm: LLM, prompts: list[Any], raw: bool) -> list[int]:
    if len(prompts) != 1:
        raise RequestError(f"prompt holds {len(prompts)} prompts; a line has one", param="prompt")
    [prompt] = prompts
    if raw or not isinstance(prompt, str):
        return llm.tokenize(prompt)
    return llm.render([{"role": "user", "content": prompt}])


def _reply(llm: LLM, is_chat: bool, generation: Generation) -> Reply:
    """A finished generation in the shape that the server would have answered in."""
    params, delta = generation.request.params, merged(generation.deltas)
    metrics = delta.metrics
    assert metrics is not None, "only the last delta of a finished request ends it"
    speller = None if params.logprobs is None else llm.runtime.tokenizer
    format = (
        ChatFormat(speller=speller)
        if is_chat
        else CompletionFormat(1, None, speller=speller, spells_control=not params.skip_special_tokens)
    )
    details = PromptTokensDetails()
    details.add(metrics)
    num_prompt, num_output = metrics.num_prompt_tokens, metrics.num_output_tokens
    return Reply(
        id=format.id_prefix + generation.request.id,
        object=format.object,
        created=int(time.time()),
        model=llm.runtime.name,
        choices=[format.whole(0, delta)],
        usage=Usage(num_prompt, num_output, num_prompt + num_output, details),
    )
