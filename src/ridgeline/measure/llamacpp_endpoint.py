"""The dialect of llama.cpp's server: OpenAI's, with the prefix cache switched off per request (`cache_prompt`) and
native counters in `timings` of the last chunk.

`prompt_n` counts the computed part of the prompt only: prompt = cache_n + prompt_n.
"""

from __future__ import annotations

from typing import Any

from ridgeline.measure.openai_endpoint import OpenAIReader, body, path

__all__ = ["LlamaCppReader", "body", "path"]


class LlamaCppReader(OpenAIReader):
    def timings(self, timings: dict[str, Any]) -> None:
        record = self.recorder.record
        record.server = timings
        if "predicted_n" in timings:
            self.recorder.usage(timings["predicted_n"], "native")
        record.server_prefill_s = _seconds(timings.get("prompt_ms"))
        record.server_decode_s = _seconds(timings.get("predicted_ms"))
        if "cache_n" in timings:
            record.cached_tokens = timings["cache_n"]
            if record.prompt_tokens is None and "prompt_n" in timings:
                record.prompt_tokens = timings["cache_n"] + timings["prompt_n"]


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1e3
