"""OpenVINO GenAI's continuous-batching pipeline, which its LLMPipeline uses on CPUs too, stepped here.

`hint` is the arithmetic that the plugin may use: bf16 is its own choice here, f32 is faster where reading weights
binds. The KV cache stays in 8 bits, the plugin's default.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import openvino
import openvino_genai

from peerlib.timing import Event
from peerlib.worker import main, timed

_CACHE_GB = 2
_MAX_STEP_TOKENS = 2048
_MAX_REQUESTS = 64


class OpenVino:
    def __init__(self, model: str, threads: int, options: dict[str, str]) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = _CACHE_GB
        scheduler.max_num_batched_tokens = _MAX_STEP_TOKENS
        scheduler.max_num_seqs = _MAX_REQUESTS
        scheduler.enable_prefix_caching = False
        properties = {"INFERENCE_PRECISION_HINT": options["hint"], "INFERENCE_NUM_THREADS": threads}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)

    def generate(self, prompts: list[list[int]], num_tokens: int) -> list[Event]:
        return timed(self._steps(prompts, num_tokens))

    def _steps(self, prompts: list[list[int]], num_tokens: int) -> Iterator[int]:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = num_tokens, True, False
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


if __name__ == "__main__":
    main(OpenVino)
