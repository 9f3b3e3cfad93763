"""The dialect of llama.cpp's server: OpenAI's, with the prefix cache switched off per request (`cache_prompt`) and
native counters in `timings` of the last chunk.

`prompt_n` counts the computed part of the prompt only: prompt = cache_n + prompt_n.
"""

from __future__ import annotations

from typing import Any

from ridgeline.measure.openai_endpoint import OpenAIReader, body, number, path

__all__ = ["LlamaCppReader", "body", "path"]


class LlamaCppReader(OpenAIReader):
    def timings(self, timings: dict[str, Any]) -> None:
        record = self.recorder.record
        record.server = timings
        predicted, cached, computed = (_count(timings.get(name)) for name in ("predicted_n", "cache_n", "prompt_n"))
        if predicted is not None:
            self.recorder.usage(predicted, "native")
        record.server_prefill_s = _seconds(timings.get("prompt_ms"))
        record.server_decode_s = _seconds(timings.get("predicted_ms"))
        if cached is not None:
            record.cached_tokens = cached
            if record.prompt_tokens is None and computed is not None:
                record.prompt_tokens = cached + computed


def _count(value: Any) -> int | None:
    return None if (known := number(value)) is None else int(known)


def _seconds(milliseconds: Any) -> float | None:
    return None if (known := number(milliseconds)) is None else known / 1e3
