"""Correctness acceptance on a real checkpoint: `make verify MODEL=Qwen/Qwen3-0.6B`.

Prints a table and PASS, or FAIL and exits 1. A model that is not on this machine is SKIPPED, visibly, with exit 0.

What is checked, on a few prompts of different kinds:
- greedy tokens through the engine are the same whole, in chunks of 7 and in a batch, in fp32 and in bf16;
- logits of every position are bit-identical whatever the chunk (invariant 5);
- fp32 logits equal transformers' on the same tokens, and so does every greedy choice but for near ties;
- bf16 picks the token that fp32 picks, but where the two best are nearly as likely.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.table import Table

from ridgeline.config import EngineConfig, ModelConfig
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.model.resolve import ModelFiles, resolve_model
from ridgeline.model.runtime import ModelRuntime, load_runtime
from runs import forced_logits, generate, softmax, split_evenly

if TYPE_CHECKING:
    from torch import nn

DEFAULT_MODEL = "Qwen/Qwen3-0.6B"
PROMPTS = (
    "Why is the sky blue? Answer in one sentence.",
    "def fibonacci(n: int) -> int:\n    ",
    "Přelož do angličtiny: ďábelské ódy. 삼겹살은 무엇입니까? 👋",
    "Count: 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987, 1597, 2584, 4181, 6765, 10946, " * 3,
)
NUM_OUTPUT_TOKENS = 24
CONTEXT = 1024
CHUNK = 7
# fp32 sums in another order: errors grow with the size of the activations, hence relative to the largest logit.
RELATIVE_TOLERANCE = 1e-4
NEAR_TIE = 0.05  # a gap between the two best probabilities that bf16 may turn over
MIN_BF16_AGREEMENT = 0.99


@dataclass(frozen=True)
class Check:
    name: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class Trace:
    """One format's run: the greedy continuation of each prompt, and the logits of prompt and continuation."""

    sequences: list[list[int]]  # prompt + output
    prompt_lens: list[int]
    logits: list[np.ndarray]  # [tokens, vocab] per sequence


def main(arguments: Sequence[str]) -> int:
    model = arguments[0] if arguments else DEFAULT_MODEL
    console = Console()
    try:
        files = resolve_model(model)
    except ConfigError as error:
        console.print(f"SKIPPED: {model} was not verified: {error.message}", style="bold yellow", markup=False)
        console.print(f"To run it: {error.hint or 'give a checkpoint directory or a .gguf file'}", markup=False)
        return 0
    try:
        checks = verify(model, files)
    except RidgelineError as error:
        checks = [Check("loads and runs", False, str(error))]
    table = Table("check", "result", "detail", title=f"{files.name} ({files.path})")
    for check in checks:
        table.add_row(check.name, "[green]ok" if check.passed else "[red]FAILED", check.detail)
    console.print(table)
    passed = all(check.passed for check in checks)
    console.print("PASS" if passed else "FAIL", style="bold green" if passed else "bold red")
    return 0 if passed else 1


def verify(model: str, files: ModelFiles) -> list[Check]:
    checks: list[Check] = []
    exact = _run(model, "fp32", None, checks)
    rounded = _run(model, "bf16", exact.sequences, checks)
    checks.append(_compare_formats(exact, rounded))
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        return [*checks, Check("against transformers", True, f"SKIPPED: {error.name} is not installed")]
    return [*checks, *_compare_with_transformers(files, exact)]


def _run(model: str, dtype: str, forced: list[list[int]] | None, checks: list[Check]) -> Trace:
    """Greedy runs under three schedules; then logits of their tokens, or of `forced` ones, under two."""
    runtime = load_runtime(model, ModelConfig(dtype=dtype, context=CONTEXT))
    try:
        prompts = [_encode(runtime, text) for text in PROMPTS]
        alone = [generate(runtime, [prompt], NUM_OUTPUT_TOKENS)[0] for prompt in prompts]
        in_chunks = EngineConfig(max_batch_tokens=CHUNK)
        chunked = [generate(runtime, [prompt], NUM_OUTPUT_TOKENS, in_chunks)[0] for prompt in prompts]
        together = generate(runtime, prompts, NUM_OUTPUT_TOKENS)
        sequences = forced or [prompt + output for prompt, output in zip(prompts, alone, strict=True)]
        logits = [forced_logits(runtime.executor, sequence, [len(sequence)]) for sequence in sequences]
        chunked_logits = [
            forced_logits(runtime.executor, sequence, split_evenly(len(sequence), CHUNK)) for sequence in sequences
        ]
    finally:
        runtime.close()
    num_tokens = sum(map(len, alone))
    same = alone == chunked == together
    checks.append(Check(f"{dtype}: greedy tokens, whole = chunks of {CHUNK} = batch", same, f"{num_tokens} tokens"))
    worst = max(float(np.abs(a - b).max()) for a, b in zip(logits, chunked_logits, strict=True))
    checks.append(Check(f"{dtype}: logits, whole = chunks of {CHUNK}", worst == 0, f"max |difference| {worst:g}"))
    return Trace(sequences, [len(prompt) for prompt in prompts], logits)


def _encode(runtime: ModelRuntime, text: str) -> list[int]:
    if runtime.chat_template is not None:
        return runtime.chat_template.encode([{"role": "user", "content": text}])
    if runtime.tokenizer is None:
        raise ConfigError(f"{runtime.files.path} has no tokenizer", hint="put tokenizer.json beside the weights")
    return runtime.tokenizer.encode(text, bos=True)


def _compare_formats(exact: Trace, rounded: Trace) -> Check:
    """Teacher-forced on the fp32 tokens."""
    gaps, num_rows = [], 0
    for fp32, bf16 in zip(exact.logits, rounded.logits, strict=True):
        num_rows += len(fp32)
        for row in np.flatnonzero(fp32.argmax(-1) != bf16.argmax(-1)):
            second, first = np.sort(softmax(fp32[row]))[-2:]
            gaps.append(float(first - second))
    agreement = 1 - len(gaps) / num_rows
    passed = agreement >= MIN_BF16_AGREEMENT and max(gaps, default=0.0) < NEAR_TIE
    detail = f"{agreement:.2%} of {num_rows} positions" + (f"; largest gap turned over {max(gaps):.3f}" if gaps else "")
    return Check("bf16 picks fp32's token", passed, detail)


def _compare_with_transformers(files: ModelFiles, exact: Trace) -> list[Check]:
    import torch

    model = _load_transformers(files)
    worst, scale, num_choices, num_ties, wrong = 0.0, 0.0, 0, 0, 0
    for sequence, prompt_len, ours in zip(exact.sequences, exact.prompt_lens, exact.logits, strict=True):
        with torch.inference_mode():
            theirs = model(torch.tensor([sequence])).logits[0].numpy()
        worst, scale = max(worst, float(np.abs(ours - theirs).max())), max(scale, float(np.abs(theirs).max()))
        for position in range(prompt_len, len(sequence)):
            row, chosen = theirs[position - 1], sequence[position]
            num_choices += 1
            if chosen != row.argmax():
                near = row.max() - row[chosen] < RELATIVE_TOLERANCE * np.abs(theirs).max()
                num_ties, wrong = num_ties + near, wrong + (not near)
    detail = f"max |difference| {worst:.2e}, logits to {scale:.0f}, tolerance {RELATIVE_TOLERANCE * scale:.2e}"
    ties = f", {num_ties} ties within the tolerance" if num_ties else ""
    return [
        Check("fp32 logits = transformers'", worst < RELATIVE_TOLERANCE * scale, detail),
        Check("fp32 greedy tokens = transformers'", wrong == 0, f"{num_choices - wrong} of {num_choices}{ties}"),
    ]


def _load_transformers(files: ModelFiles) -> nn.Module:
    import torch
    from transformers import AutoModelForCausalLM

    if files.kind == "gguf":
        return AutoModelForCausalLM.from_pretrained(
            files.path.parent, gguf_file=files.path.name, dtype=torch.float32
        ).eval()
    return AutoModelForCausalLM.from_pretrained(files.path, dtype=torch.float32).eval()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
