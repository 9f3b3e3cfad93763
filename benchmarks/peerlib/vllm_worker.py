"""vLLM's engine for CPUs, stepped in this process."""

from __future__ import annotations

import os
from collections.abc import Iterator

from peerlib.timing import Event
from peerlib.worker import main, timed

_MAX_STEP_TOKENS = 2048
_MAX_REQUESTS = 64


class Vllm:
    def __init__(self, model: str, threads: int, options: dict[str, str]) -> None:
        os.environ |= {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_KVCACHE_SPACE": options["kv_gib"],
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
            "OMP_NUM_THREADS": str(threads),
        }
        import vllm  # reads the variables

        self._params = vllm.SamplingParams
        self._engine = vllm.LLM(
            model,
            dtype="bfloat16",
            max_model_len=4096,
            max_num_seqs=_MAX_REQUESTS,
            max_num_batched_tokens=_MAX_STEP_TOKENS,
            enable_prefix_caching=False,
        ).llm_engine

    def generate(self, prompts: list[list[int]], num_tokens: int) -> list[Event]:
        return timed(self._steps(prompts, num_tokens))

    def _steps(self, prompts: list[list[int]], num_tokens: int) -> Iterator[int]:
        params = self._params(temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)
        for index, prompt in enumerate(prompts):
            self._engine.add_request(str(index), {"prompt_token_ids": prompt}, params)
        num_seen = 0
        lens = [0] * len(prompts)
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                lens[int(output.request_id)] = len(output.outputs[0].token_ids)
            yield sum(lens) - num_seen
            num_seen = sum(lens)


if __name__ == "__main__":
    main(Vllm)
