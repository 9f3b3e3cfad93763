"""`generate --batch-file`: a JSONL file of prompts in, a JSONL file of answers out, in the same order.

A line is the body of a chat or completions request (`{"prompt": "...", "max_tokens": 20}`, `{"messages": [...]}`), or
such a body inside OpenAI's batch envelope (`{"custom_id": ..., "url": ..., "body": {...}}`). Fields are checked by the
server's own tables, so a line means what it would mean over HTTP. Two things differ for a bare body: its prompt goes
through the chat template unless `--raw`, and sampling flags of the command line hold where it says nothing.

A line that cannot be honoured yields an error object in its place; the others are not touched.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from ridgeline.engine.request import SamplingParams
from ridgeline.errors import RequestError, RidgelineError
from ridgeline.llm import LLM, Completion, Generation
from ridgeline.server.fields import CHAT, COMPLETION, SAMPLING
from ridgeline.server.messages import plain_messages

_COMPLETION_MAX_TOKENS = 16  # OpenAI's default of /v1/completions


@dataclasses.dataclass(frozen=True)
class Job:
    """One line: where its answer goes, and what it asks for."""

    index: int
    body: dict[str, Any]
    envelope: dict[str, Any] | None  # OpenAI's, without the body

    @property
    def is_chat(self) -> bool:
        return "messages" in self.body

    def answer(self, llm: LLM, completion: Completion) -> dict[str, Any]:
        if self.envelope is None:
            return {"index": self.index, **dataclasses.asdict(completion)}
        response = {"status_code": 200, "body": _openai_body(llm.runtime.name, self, completion)}
        return {"custom_id": self.envelope.get("custom_id"), "response": response, "error": None}


def run_batch(
    llm: LLM, source: Path, out: Path | None, defaults: SamplingParams, *, raw: bool, show_progress: bool
) -> dict[str, Any]:
    """Answers every line of `source`; returns the counts `requests` and `failed`, and `out`."""
    num_done = num_failed = 0
    with contextlib.ExitStack() as stack:
        sink = stack.enter_context(out.open("w", encoding="utf-8")) if out else sys.stdout
        lines = stack.enter_context(source.open(encoding="utf-8", errors="replace"))
        for result in _answers(llm, lines, defaults, raw):
            num_done += 1
            num_failed += bool(result.get("error"))
            _write(sink, result)
            if show_progress and sys.stderr.isatty():
                print(f"\r{num_done} done", end="", file=sys.stderr, flush=True)
    return {"requests": num_done, "failed": num_failed, "out": str(out) if out else None}


def _write(sink: IO[str], result: dict[str, Any]) -> None:
    sink.write(json.dumps(result, ensure_ascii=False) + "\n")
    sink.flush()


def _answers(llm: LLM, lines: Iterator[str], defaults: SamplingParams, raw: bool) -> Iterator[dict[str, Any]]:
    """Results in the order of the lines. As many run at once as the engine takes; `submit` waits when it is full."""
    under_way: deque[tuple[Job | int, Generation | RidgelineError]] = deque()
    for index, line in enumerate(lines):
        if not line.strip():
            continue
        job: Job | int = index
        try:
            job = _read_job(index, line)
            under_way.append((job, llm.submit(*_prompt_and_params(llm, job, defaults, raw))))
        except RidgelineError as error:
            under_way.append((job, error))
        while under_way and _is_over(under_way[0][1]):
            yield _result(llm, *under_way.popleft())
    while under_way:
        yield _result(llm, *under_way.popleft())


def _is_over(outcome: Generation | RidgelineError) -> bool:
    return isinstance(outcome, RidgelineError) or outcome.done


def _result(llm: LLM, job: Job | int, outcome: Generation | RidgelineError) -> dict[str, Any]:
    try:
        if isinstance(outcome, RidgelineError):
            raise outcome
        assert isinstance(job, Job)
        return job.answer(llm, llm.wait(outcome))
    except RidgelineError as error:
        detail = {"code": error.code, "message": error.message, "hint": error.hint}
        if isinstance(job, Job) and job.envelope is not None:
            return {"custom_id": job.envelope.get("custom_id"), "response": None, "error": detail}
        return {"index": job.index if isinstance(job, Job) else job, "error": detail}


def _read_job(index: int, line: str) -> Job:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise RequestError(f"line {index + 1} is no JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise RequestError(f"line {index + 1} holds no object", code="invalid_json")
    if "body" not in value:
        return Job(index, value, None)
    if not isinstance(value["body"], dict):
        raise RequestError(f"body of line {index + 1} is no object", param="body")
    return Job(index, value["body"], {name: item for name, item in value.items() if name != "body"})


def _prompt_and_params(llm: LLM, job: Job, defaults: SamplingParams, raw: bool) -> tuple[Sequence[int], SamplingParams]:
    table = CHAT if job.is_chat else COMPLETION
    fields = table.parse({"model": llm.runtime.name, **job.body})
    if fields.get("n", 1) != 1:
        raise RequestError(f"n is {fields['n']}; a line has one answer", param="n", hint="repeat the line")
    given = {SAMPLING[name]: value for name, value in fields.items() if name in SAMPLING}
    if job.is_chat:
        if "max_completion_tokens" in fields:
            given["max_tokens"] = fields["max_completion_tokens"]
        if fields.get("logprobs"):
            given["logprobs"] = fields.get("top_logprobs", 0)
        return llm.render(plain_messages(fields["messages"])), dataclasses.replace(defaults, **given)
    if "logprobs" in fields:
        given["logprobs"] = fields["logprobs"]
    if job.envelope is not None and defaults.max_tokens is None:
        given.setdefault("max_tokens", _COMPLETION_MAX_TOKENS)
    return _prompt_ids(llm, fields["prompt"], raw or job.envelope is not None), dataclasses.replace(defaults, **given)


def _prompt_ids(llm: LLM, prompts: list[Any], raw: bool) -> list[int]:
    if len(prompts) != 1:
        raise RequestError(f"prompt holds {len(prompts)} prompts; a line has one", param="prompt")
    [prompt] = prompts
    if raw or not isinstance(prompt, str):
        return llm.tokenize(prompt)
    return llm.render([{"role": "user", "content": prompt}])


def _openai_body(model: str, job: Job, completion: Completion) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "finish_reason": completion.finish_reason, "logprobs": None}
    if job.is_chat:
        choice["message"] = {"role": "assistant", "content": completion.text}
    else:
        choice["text"] = completion.text
    num_prompt, num_output = completion.num_prompt_tokens, len(completion.token_ids)
    return {
        "object": "chat.completion" if job.is_chat else "text_completion",
        "model": model,
        "choices": [choice],
        "usage": {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_output,
            "total_tokens": num_prompt + num_output,
            "prompt_tokens_details": {"cached_tokens": completion.num_cached_tokens},
        },
    }
