"""Ridgeline through its engine: scheduling, sampling and delivery count, as in a server without HTTP."""

from __future__ import annotations

from collections.abc import Iterator

from peerlib.timing import Event
from peerlib.worker import main, timed
from ridgeline import LLM, SamplingParams
from ridgeline.engine.request import Delta, Request

_MAX_STEP_TOKENS = 2048


class Ridgeline:
    def __init__(self, model: str, threads: int, options: dict[str, str]) -> None:
        llm = LLM(
            model,
            dtype=options["dtype"],
            kv_dtype=options.get("kv_dtype"),
            threads=threads,
            kv_memory=int(options["kv_memory"]),
            max_batch_tokens=_MAX_STEP_TOKENS,
            prefix_cache=False,
        )
        self._engine = llm.engine

    def generate(self, prompts: list[list[int]], num_tokens: int) -> list[Event]:
        params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
        return timed(self._steps(prompts, params))

    def _steps(self, prompts: list[list[int]], params: SamplingParams) -> Iterator[int]:
        arrived: list[Delta] = []
        for index, prompt in enumerate(prompts):
            self._engine.submit(Request(str(index), prompt, params, arrived.append))
        num_running = len(prompts)
        while num_running:
            self._engine.step()
            for delta in arrived:
                if delta.error is not None:
                    raise delta.error
            num_running -= sum(delta.finish_reason is not None for delta in arrived)
            yield sum(len(delta.token_ids) for delta in arrived)
            arrived.clear()


if __name__ == "__main__":
    main(Ridgeline)
