"""What bf16 changes, and what the KV cache does not: writes docs/results/precision.md.

Greedy fp32 continuations of 20 prompts are the reference; every run is then fed those same tokens (teacher forcing), so
that one early difference does not hide all that follows. With the KV cache a token's logits come from a decode step of
its own; without, from one pass over the whole sequence.

    .venv/bin/python benchmarks/precision.py [MODEL]
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ridgeline.config import ModelConfig
from ridgeline.model.runtime import ModelRuntime, load_runtime
from runs import forced_logits, generate, softmax

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "precision.md"
CONTEXT = 1024
NUM_OUTPUT_TOKENS = 48
PROMPTS = (
    "Why is the sky blue?",
    "Name three rivers in Africa.",
    "Write a haiku about rain.",
    "What is 17 times 23?",
    "Explain photosynthesis to a child.",
    "Translate 'good morning' into French, Spanish and German.",
    "Write a Python function that reverses a string.",
    "Who wrote Pride and Prejudice?",
    "List the planets from the sun outwards.",
    "Give me a recipe for pancakes.",
    "What causes the seasons?",
    "Summarize the story of Little Red Riding Hood in two sentences.",
    "How does a bicycle stay upright?",
    "Suggest a name for a black cat.",
    "What is the difference between a virus and a bacterium?",
    "Finish the sentence: The old lighthouse had not been lit since",
    "Convert 100 degrees Fahrenheit to Celsius.",
    "Why do leaves change colour in autumn?",
    "Write an SQL query that counts the rows of a table named users.",
    "Příliš žluťoučký kůň úpěl ďábelské ódy. What language is this? 👋",
)


@dataclass
class Comparison:
    """Positions of output tokens, over all prompts."""

    num_positions: int = 0
    max_difference: float = 0.0  # of log-softmax
    gaps: tuple[float, ...] = ()  # between the reference's two best probabilities, where the argmax differs

    def add(self, reference: np.ndarray, other: np.ndarray) -> None:
        for expected, got in zip(reference, other, strict=True):
            difference = np.abs(np.log(softmax(expected)) - np.log(softmax(got))).max()
            self.num_positions += 1
            self.max_difference = max(self.max_difference, float(difference))
            if expected.argmax() != got.argmax():
                second, first = np.sort(softmax(expected))[-2:]
                self.gaps += (float(first - second),)

    def row(self, name: str) -> str:
        agreement = 1 - len(self.gaps) / self.num_positions
        gaps = ", ".join(f"{gap:.3f}" for gap in sorted(self.gaps, reverse=True)) or "-"
        return f"| {name} | {self.num_positions} | {self.max_difference:.3g} | {agreement:.2%} | {gaps} |"


def main(arguments: list[str]) -> None:
    model = arguments[0] if arguments else "smollm2-135m"
    fp32 = load_runtime(model, ModelConfig(dtype="fp32", context=CONTEXT))
    assert fp32.chat_template is not None, f"{model} has no chat template to ask its questions with"
    prompts = [fp32.chat_template.encode([{"role": "user", "content": text}]) for text in PROMPTS]
    outputs = generate(fp32, prompts, NUM_OUTPUT_TOKENS)
    sequences = [prompt + output for prompt, output in zip(prompts, outputs, strict=True)]
    reference = [cached(fp32, sequence, len(prompt)) for sequence, prompt in zip(sequences, prompts, strict=True)]
    fp32_uncached, bf16_uncached, bf16_fp32 = Comparison(), Comparison(), Comparison()
    for sequence, prompt, logits in zip(sequences, prompts, reference, strict=True):
        fp32_uncached.add(logits, whole(fp32, sequence, len(prompt)))
    name, arithmetic_ids = fp32.name, [fp32.executor.arithmetic_id]
    fp32.close()
    bf16 = load_runtime(model, ModelConfig(dtype="bf16", context=CONTEXT))
    for sequence, prompt, logits in zip(sequences, prompts, reference, strict=True):
        rounded = cached(bf16, sequence, len(prompt))
        bf16_uncached.add(rounded, whole(bf16, sequence, len(prompt)))
        bf16_fp32.add(logits, rounded)
    arithmetic_ids.append(bf16.executor.arithmetic_id)
    bf16.close()
    text = (
        "# What bf16 changes, and what the KV cache does not\n\n"
        f"Written by `benchmarks/precision.py`: {name}, {len(prompts)} prompts, {NUM_OUTPUT_TOKENS} greedy fp32 tokens "
        f"each, teacher-forced; {' and '.join(arithmetic_ids)}.\nA gap is between fp32's two best probabilities "
        "where the other run picks another token.\n\n"
        "| comparison | positions | max abs. difference of log-softmax | same argmax | gaps where it differs |\n"
        "|---|---|---|---|---|\n"
        f"{fp32_uncached.row('fp32: without against with KV cache')}\n"
        f"{bf16_uncached.row('bf16: without against with KV cache')}\n"
        f"{bf16_fp32.row('bf16 against fp32, both with KV cache')}\n"
    )
    RESULTS.write_text(text)
    print(text)


def whole(runtime: ModelRuntime, sequence: list[int], prompt_len: int) -> np.ndarray:
    """Logits that choose the output tokens, from one pass over everything."""
    return forced_logits(runtime.executor, sequence, [len(sequence)])[prompt_len - 1 : -1]


def cached(runtime: ModelRuntime, sequence: list[int], prompt_len: int) -> np.ndarray:
    """The same from a prefill and one decode step a token."""
    chunk_lens = [prompt_len] + [1] * (len(sequence) - prompt_len)
    return forced_logits(runtime.executor, sequence, chunk_lens)[prompt_len - 1 : -1]


if __name__ == "__main__":
    main(sys.argv[1:])
