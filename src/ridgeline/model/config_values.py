"""Readings of `config.json` that serving and planning share: a layer's window, the stored number type."""

from __future__ import annotations

from ridgeline.model.fields import Fields, short

_MISTRAL_WINDOW = 4096  # MistralConfig's value for files without the key; null means none
_LAYER_TYPES = ("full_attention", "sliding_attention")
_STORED_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def layer_windows(fields: Fields, architecture: str, num_layers: int) -> tuple[int | None, ...]:
    """Sliding window of each layer: in Mistral of all layers; in Qwen, when switched on, as `layer_types` says, else
    from layer `max_window_layers` on. Qwen's configs give a window that is off, too."""
    window, first = None, 0
    if architecture not in ("mistral", "llama"):
        fields.unused("sliding_window")
    if architecture == "mistral":
        if fields.values.get("sliding_window", _MISTRAL_WINDOW) is not None:
            window = fields.count("sliding_window", _MISTRAL_WINDOW)
    elif architecture == "llama":
        fields.refuse(["sliding_window"])
    elif fields.flag("use_sliding_window") and fields.get("sliding_window") is not None:
        window = fields.count("sliding_window")
        first = fields.count("max_window_layers", num_layers if fields.get("layer_types") else None, minimum=0)
    kinds = fields.items("layer_types")
    if not kinds:
        return tuple(window if i >= first else None for i in range(num_layers))
    if len(kinds) != num_layers or any(kind not in _LAYER_TYPES for kind in kinds):
        raise fields.error("layer_types", f"must be {num_layers} of {', '.join(_LAYER_TYPES)}, not {short(kinds)}")
    if "sliding_attention" in kinds and window is None:
        raise fields.error("layer_types", "names sliding_attention, but the sliding window is off")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def stored_dtype(fields: Fields) -> str:
    """bf16 when the config does not say. Where weights are at hand, they decide (`stored.py`)."""
    key = "dtype" if fields.get("dtype") is not None else "torch_dtype"
    name = fields.text(key, "bfloat16")
    if name not in _STORED_DTYPES:
        raise fields.error(key, f"is {name!r}: not supported", "supported: " + ", ".join(_STORED_DTYPES))
    return _STORED_DTYPES[name]
