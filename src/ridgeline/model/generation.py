"""How a checkpoint wants to be sampled: `generation_config.json`, or GGUF's `general.sampling.*`."""

from __future__ import annotations

from typing import Any

from ridgeline.model.resolve import ModelFiles, read_json

_NAMES = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
_GGUF_NAMES = {"temperature": "temp", "repetition_penalty": "penalty_repeat"}  # where they differ from ours


def generation_defaults(files: ModelFiles) -> dict[str, Any]:
    """The sampling that the checkpoint recommends, as fields of SamplingParams; empty when it says nothing.

    `do_sample: false` asks for greedy decoding, whatever else is there.
    """
    if files.kind == "gguf":
        found = {name: files.gguf.metadata.get(f"general.sampling.{_GGUF_NAMES.get(name, name)}") for name in _NAMES}
    else:
        directory = files.path if files.kind == "directory" else files.path.parent
        path = directory / "generation_config.json"
        config = read_json(path) if path.exists() else {}
        if config.get("do_sample") is False:
            return {"temperature": 0.0}
        found = {name: config.get(name) for name in _NAMES}
    return {name: value for name, value in found.items() if value is not None}
