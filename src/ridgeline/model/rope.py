"""Rotary embedding's frequencies, in one place for every executor.

Pair i of a head (dimensions i and i + head_dim / 2, the "half-split" order) turns by position * frequency[i] radians:

    a' = a cos - b sin        b' = b cos + a sin

Executors round the frequencies to fp32 and multiply by the position in fp32, as transformers does, so that logits
compare at long positions too.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import ConfigError
from ridgeline.model.rope_scaling import RopeScaling
from ridgeline.model.spec import ModelSpec


def inverse_frequencies(spec: ModelSpec) -> NDArray[np.float64]:
    """Radians per position for each pair, [head_dim / 2], fastest first (RoFormer, section 3.2.2)."""
    exponents = np.arange(0, spec.head_dim, 2, dtype=np.float64) / spec.head_dim
    frequencies: NDArray[np.float64] = spec.rope_theta**-exponents
    return frequencies if spec.rope_scaling is None else _scaled(frequencies, spec.rope_scaling)


def _scaled(frequencies: NDArray[np.float64], scaling: RopeScaling) -> NDArray[np.float64]:
    if scaling.kind == "factors":
        return frequencies / np.array(scaling.factors, np.float64)
    stretched = frequencies / scaling.factor
    if scaling.kind == "linear":
        return stretched
    if scaling.kind != "llama3":
        raise ConfigError(f"rope scaling {scaling.kind!r} cannot be served", hint="served: linear, llama3, factors")
    # Llama 3.1: a pair that turns often within the original context keeps its frequency, one that turns seldom is
    # stretched, and between the two thresholds (in turns) the frequency is interpolated.
    turns = scaling.original_context_len * frequencies / (2 * math.pi)
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = np.clip(kept, 0.0, 1.0)
    return kept * frequencies + (1.0 - kept) * stretched
