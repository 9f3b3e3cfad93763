"""The engine's side of a measurement: a process of its own that measures what it is asked on standard input.

    openvino_worker MODEL --threads 2 --option hint=f32

One JSON object a line: first `{"ready": true}`, then an answer `{"value": x}` or `{"error": text}` to each question
`{"part": "decode", "size": 128, "seed": 1}`. It runs in the environment of the engine: the standard library only.
What libraries print goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from peerlib.cases import DECODE_STEPS, PROMPT_TOKENS
from peerlib.timing import Event, prefill_tokens_per_s, step_s

VOCABULARY = range(1000, 40_000)  # plain tokens of all models
_WARM_UP = (PROMPT_TOKENS, 4)  # prompt and output tokens after another engine had the machine


class Engine(Protocol):
    def generate(self, prompts: list[list[int]], num_tokens: int) -> list[Event]:
        """Greedy, past end tokens, `num_tokens` for each prompt, no cached prefixes."""


def main(load: Callable[[str, int, dict[str, str]], Engine]) -> None:
    """`load` gets the model's path, the number of threads and the options."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--option", action="append", default=[], help="name=value")
    given = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    engine = load(given.model, given.threads, dict(option.split("=", 1) for option in given.option))
    print(json.dumps({"ready": True}), file=answers)
    asked: set[tuple[str, int]] = set()
    for line in sys.stdin:
        try:
            answer: dict[str, Any] = {"value": _measure(engine, json.loads(line), asked)}
        except Exception as error:  # one case that an engine cannot do must not end the others
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers)


def _measure(engine: Engine, question: dict[str, Any], asked: set[tuple[str, int]]) -> float:
    part, size = question["part"], question["size"]
    chance = random.Random(f"{part} {size} {question['seed']}")  # no prompt begins as an earlier one
    engine.generate(_prompts(chance, 1, _WARM_UP[0]), _WARM_UP[1])
    if (part, size) not in asked:  # buffers, compiled shapes
        asked.add((part, size))
        _run(engine, part, size, chance)
    return _run(engine, part, size, chance)


def _run(engine: Engine, part: str, size: int, chance: random.Random) -> float:
    """In the unit of the case."""
    if part == "prefill":
        return prefill_tokens_per_s(_generate(engine, _prompts(chance, 1, size), 1), size)
    if part == "decode":
        return step_s(_generate(engine, _prompts(chance, 1, size), 1 + DECODE_STEPS), 1) * 1e3
    events = _generate(engine, _prompts(chance, size, PROMPT_TOKENS), 1 + DECODE_STEPS)
    return size / step_s(events, size)


def _generate(engine: Engine, prompts: list[list[int]], num_tokens: int) -> list[Event]:
    """An engine that stops early was not told to go on, and its figures would mean something else."""
    events = engine.generate(prompts, num_tokens)
    made = sum(count for _, count in events)
    if made != len(prompts) * num_tokens:
        raise ValueError(f"{made} tokens came out, {len(prompts)} x {num_tokens} were asked for")
    return events


def _prompts(chance: random.Random, count: int, num_tokens: int) -> list[list[int]]:
    return [chance.choices(VOCABULARY, k=num_tokens) for _ in range(count)]


def timed(steps: Iterator[int]) -> list[Event]:
    """Events of an engine whose steps yield how many tokens they brought."""
    start = time.perf_counter()
    return [(time.perf_counter() - start, num_tokens) for num_tokens in steps if num_tokens]
