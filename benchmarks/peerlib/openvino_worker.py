"""OpenVINO GenAI: its continuous-batching pipeline, or its stateful one (`backend=stateful`), which takes one prompt.

`hint` is the arithmetic that the plugin may use: bf16 is its own choice here, f32 is faster where reading weights
binds. The KV cache stays in 8 bits, the plugin's default.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import openvino
import openvino_genai

from peerlib.timing import Event
from peerlib.worker import main, timed

_CACHE_GB = 2
_MAX_STEP_TOKENS = 2048
_MAX_REQUESTS = 64


def load(model: str, threads: int, options: dict[str, str]) -> Paged | Stateful:
    properties = {"INFERENCE_PRECISION_HINT": options["hint"], "INFERENCE_NUM_THREADS": threads}
    return (Stateful if options["backend"] == "stateful" else Paged)(model, properties)


def _greedy(num_tokens: int) -> openvino_genai.GenerationConfig:
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens, config.ignore_eos, config.do_sample = num_tokens, True, False
    return config


class Paged:
    def __init__(self, model: str, properties: dict[str, object]) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = _CACHE_GB
        scheduler.max_num_batched_tokens = _MAX_STEP_TOKENS
        scheduler.max_num_seqs = _MAX_REQUESTS
        scheduler.enable_prefix_caching = False
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)

    def generate(self, prompts: list[list[int]], num_tokens: int) -> list[Event]:
        return timed(self._steps(prompts, _greedy(num_tokens)))

    def _steps(self, prompts: list[list[int]], config: openvino_genai.GenerationConfig) -> Iterator[int]:
        handles = [
            self._pipeline.add_request(index, openvino.Tensor(np.array([prompt], np.int64)), config)
            for index, prompt in enumerate(prompts)
        ]
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            yield sum(_arrived(handle) for handle in handles)


def _arrived(handle: openvino_genai.GenerationHandle) -> int:
    count = 0
    while handle.can_read():
        count += sum(len(output.generated_ids) for output in handle.read().values())
    return count


class Stateful:
    def __init__(self, model: str, properties: dict[str, object]) -> None:
        self._pipeline = openvino_genai.LLMPipeline(model, "CPU", {**properties, "ATTENTION_BACKEND": "SDPA"})

    def generate(self, prompts: list[list[int]], num_tokens: int) -> list[Event]:
        start, events = time.perf_counter(), []

        def arrived(_: object) -> openvino_genai.StreamingStatus:
            events.append((time.perf_counter() - start, 1))
            return openvino_genai.StreamingStatus.RUNNING

        self._pipeline.generate(openvino.Tensor(np.array(prompts, np.int64)), _greedy(num_tokens), arrived)
        return events


if __name__ == "__main__":
    main(load)
