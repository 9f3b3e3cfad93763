"""transformers in bf16 on torch's CPU operators: a loop over `forward` with its own KV cache, without `generate`'s
work around it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import transformers

from peerlib.timing import Event
from peerlib.worker import main, timed


class Transformers:
    def __init__(self, model: str, threads: int, options: dict[str, str]) -> None:
        torch.set_num_threads(threads)
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            model, dtype=torch.bfloat16, attn_implementation="sdpa"
        ).eval()

    def generate(self, prompts: list[list[int]], num_tokens: int) -> list[Event]:
        return timed(self._steps(prompts, num_tokens))

    def _steps(self, prompts: list[list[int]], num_tokens: int) -> Iterator[int]:
        with torch.inference_mode():
            token_ids, cache = torch.tensor(prompts), None
            for _ in range(num_tokens):
                output = self._model(token_ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
                cache = output.past_key_values
                token_ids = output.logits[:, -1:].argmax(-1)
                yield len(prompts)


if __name__ == "__main__":
    main(Transformers)
