"""`ridgeline generate`: one answer on the terminal, or a file of prompts, without a server."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ridgeline.cli.options import (
    ENGINE_OPTIONS,
    MODEL_OPTIONS,
    SAMPLING_OPTIONS,
    Json,
    Model,
    pick,
    sampling_params,
    takes,
)
from ridgeline.cli.output import loading, print_json, tell, warn
from ridgeline.engine.request import FinishReason, SamplingParams
from ridgeline.errors import ConfigError
from ridgeline.llm import LLM, Completion

Prompt = Annotated[str | None, typer.Argument(metavar="PROMPT", help="The prompt; - reads it from stdin.")]
Raw = Annotated[bool, typer.Option("--raw", help="The prompt as it stands, without the chat template.")]
System = Annotated[str | None, typer.Option("--system", help="A system message before the prompt.")]
BatchFile = Annotated[
    Path | None,
    typer.Option(
        "--batch-file", help="Prompts as JSONL; answers come as JSONL, in order.", exists=True, dir_okay=False
    ),
]
Logprobs = Annotated[
    int | None, typer.Option("--logprobs", help="With --json: log-probabilities, with so many alternatives per token.")
]
Out = Annotated[Path | None, typer.Option("--out", help="Where the answers to --batch-file go; else stdout.")]


@takes(SAMPLING_OPTIONS, MODEL_OPTIONS, ENGINE_OPTIONS)
def generate(
    model: Model,
    prompt: Prompt = None,
    raw: Raw = False,
    system: System = None,
    batch_file: BatchFile = None,
    out: Out = None,
    logprobs: Logprobs = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Generate an answer to PROMPT, or to every line of a file."""
    _check_usage(prompt, raw, system, batch_file, out, as_json)
    if logprobs is not None and not as_json:
        raise typer.BadParameter("--logprobs goes with --json")
    with loading(quiet=as_json) as progress:
        llm = LLM(model, progress=progress, **pick(MODEL_OPTIONS, options), **pick(ENGINE_OPTIONS, options))
    warn(llm.runtime.spec.warnings)
    if not as_json:
        tell(llm.runtime.notices)
    with llm:
        params = sampling_params(llm.default_params, options)
        params = dataclasses.replace(params, logprobs=logprobs, starts_text=not raw)
        if batch_file is not None:
            from ridgeline.cli.batch import run_batch

            summary = run_batch(llm, batch_file, out, params, raw=raw, show_progress=not as_json)
            _report_batch(summary, as_json)
            return
        text = sys.stdin.read() if prompt == "-" else str(prompt)
        prompt_ids = llm.tokenize(text) if raw else llm.render(_conversation(system, text))
        if as_json:
            print_json(_as_object(llm.runtime.name, llm.generate(prompt_ids, params)[0]))
        else:
            _stream(llm, prompt_ids, params)


def _check_usage(
    prompt: str | None, raw: bool, system: str | None, batch_file: Path | None, out: Path | None, as_json: bool
) -> None:
    if (prompt is None) == (batch_file is None):
        raise typer.BadParameter("give either a PROMPT or --batch-file")
    if raw and system is not None:
        raise typer.BadParameter("--system needs the chat template, which --raw leaves out")
    if out is not None and batch_file is None:
        raise typer.BadParameter("--out goes with --batch-file")
    if as_json and batch_file is not None and out is None:
        raise typer.BadParameter("--json with --batch-file needs --out: stdout holds one object only")


def _conversation(system: str | None, text: str) -> list[dict[str, str]]:
    before = [] if system is None else [{"role": "system", "content": system}]
    return [*before, {"role": "user", "content": text}]


def _stream(llm: LLM, prompt_ids: list[int], params: SamplingParams) -> None:
    """Text as it comes on stdout; an answer that was cut, or has no text to show, says so on stderr."""
    if llm.runtime.tokenizer is None:
        raise ConfigError(f"{llm.runtime.name} has no tokenizer, there is no text to show", hint="use --json")
    finish_reason = None
    for delta in llm.stream(prompt_ids, params):
        sys.stdout.write(delta.text)
        sys.stdout.flush()
        finish_reason = delta.finish_reason
    print(flush=True)
    if finish_reason is FinishReason.LENGTH:
        print("(cut: the limit of --max-tokens or of the context was reached)", file=sys.stderr)


def _as_object(model_name: str, completion: Completion) -> dict[str, Any]:
    return {"model": model_name, **dataclasses.asdict(completion)}


def _report_batch(summary: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(summary)
    else:
        print(f"{summary['requests']} requests, {summary['failed']} failed", file=sys.stderr)
