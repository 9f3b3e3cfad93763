"""How a model stretches its rotary frequencies, read from `config.json` or a GGUF file. The arithmetic is in `rope.py`.

Every key about rotation is read here or refused: a scaling that is passed over gives wrong answers and no error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.config import nearest
from ridgeline.errors import ConfigError
from ridgeline.model.fields import Fields, short
from ridgeline.model.known_keys import is_neutral

_DEFAULT_THETA = 10_000.0  # all families and llama.cpp, when a file does not say
_KINDS = ("default", "linear", "llama3")
_NOT_SCALED = (0, 1)  # factors that stretch nothing; llama.cpp writes 0 for none


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched: `linear` divides them all by `factor`, `llama3` only the slow ones.

    `factors` divides frequency i by `factors[i]`: GGUF files hold llama3's stretching as such a table.
    """

    kind: str  # linear | llama3 | factors
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context_len: int = 8192
    factors: tuple[float, ...] = ()  # [head_dim / 2]


def config_rope(fields: Fields) -> tuple[float, RopeScaling | None]:
    """Base and scaling, from `rope_theta` and `rope_scaling`, or `rope_parameters` (since transformers 5) for both.

    A file with both objects is one of transformers 5 to which a person added the scaling, as many model cards tell them
    to: where `rope_parameters` asks for none, `rope_scaling` holds, in transformers too. What contradicts is refused.
    """
    _refuse_partial(fields)
    tables = {key: Fields(fields.table(key), f"{fields.source}: {key}") for key in ("rope_parameters", "rope_scaling")}
    scalings = {key: _scaling(rope) for key, rope in tables.items() if rope.values}
    scaling = scalings.get("rope_scaling", scalings.get("rope_parameters"))
    parameters = scalings.get("rope_parameters")
    if parameters not in (None, scaling):
        raise fields.error("rope_scaling", f"is {short(fields.get('rope_scaling'))}, rope_parameters says otherwise")
    thetas = {key: rope.number("rope_theta") for key, rope in tables.items() if rope.get("rope_theta") is not None}
    if fields.get("rope_theta") is not None:
        thetas["rope_theta"] = fields.number("rope_theta")
    elif "rope_scaling" in scalings and "rope_scaling" not in thetas:
        thetas["rope_scaling, which leaves it out"] = _DEFAULT_THETA  # all that transformers then knows
    if len(set(thetas.values())) > 1:
        said = " and ".join(f"{theta:g} ({key})" for key, theta in thetas.items())
        raise fields.error("rope_theta", f"is {said}", "write base and scaling into rope_parameters alone")
    return next(iter(thetas.values()), _DEFAULT_THETA), scaling


def _refuse_partial(fields: Fields) -> None:
    if fields.number("partial_rotary_factor", 1.0) != 1.0:
        raise fields.error("partial_rotary_factor", "other than 1 is not supported")


def _scaling(rope: Fields) -> RopeScaling | None:
    """Of `rope_scaling` or `rope_parameters`, whose every key is read."""
    kind, old_kind = rope.text("rope_type"), rope.text("type")  # its name before transformers 4.45
    if kind and old_kind and kind != old_kind:
        raise rope.error("type", f"is {short(old_kind)}, rope_type is {short(kind)}")
    kind = kind or old_kind or "default"
    if kind not in _KINDS:
        raise rope.error("rope_type", f"is {short(kind)}: not supported", "supported: " + ", ".join(_KINDS))
    _refuse_partial(rope)
    scaling = None
    if kind == "linear":
        scaling = RopeScaling("linear", rope.number("factor"))
    elif kind == "llama3":
        scaling = _llama3(rope)
    rope.unused("rope_theta", "original_max_position_embeddings")  # the second tells what it was trained on
    for key, value in rope.unread().items():
        if not is_neutral(key, value) and not (key == "factor" and value in _NOT_SCALED):
            hint = nearest(key, ["factor", "low_freq_factor", "high_freq_factor", "rope_theta", "rope_type"])
            raise rope.error(key, f"is {short(value)}: not supported for rope_type {kind}", hint)
    return scaling


def _llama3(rope: Fields) -> RopeScaling:
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if not low < high:
        raise rope.error("high_freq_factor", f"is {high:g}, not above low_freq_factor {low:g}")
    original_len = rope.count("original_max_position_embeddings")
    return RopeScaling("llama3", rope.number("factor"), low, high, original_len)


def gguf_rope(
    fields: Fields, has_factors: bool, factors: Sequence[float] | None, head_dim: int
) -> tuple[float, RopeScaling | None]:
    """Base and scaling of a GGUF file, as llama.cpp reads them: a factor without a type is linear. `factors` are the
    values of the tensor `rope_freqs.weight`, which the file has if `has_factors`."""
    theta = fields.number("rope.freq_base", _DEFAULT_THETA)
    kind = fields.text("rope.scaling.type", "linear")
    if kind not in ("none", "linear"):
        raise fields.error("rope.scaling.type", f"is {kind!r}: not supported", "supported: none, linear")
    factor = _gguf_factor(fields)
    if kind == "none" and factor != 1:
        raise fields.error("rope.scaling.type", f"is none, and the factor is {factor:g}", "take one of them out")
    if fields.get("rope.scaling.type") == "linear" and fields.get("rope.scaling.factor") is None and factor == 1:
        raise fields.error("rope.scaling.factor", "is missing")
    fields.unused("rope.scaling.original_context_length", "rope.scaling.finetuned")  # they tell of the training
    if not has_factors:
        return theta, None if factor == 1 else RopeScaling("linear", factor)
    if factor != 1:
        raise fields.error("rope.scaling.factor", f"is {factor:g}, and the file holds rope_freqs.weight too")
    if factors is None or len(factors) != head_dim // 2:
        found = "missing" if factors is None else f"{len(factors)} values"
        raise ConfigError(f"{fields.source}: rope_freqs.weight: {found}, head size {head_dim} needs {head_dim // 2}")
    if not all(0 < factor < math.inf for factor in factors):
        raise ConfigError(f"{fields.source}: rope_freqs.weight holds {min(factors)}..{max(factors)}, not all above 0")
    return theta, RopeScaling("factors", max(factors), factors=tuple(factors))


def _gguf_factor(fields: Fields) -> float:
    """By how much positions are stretched, 1 for not at all. `rope.scale_linear` is the name in files of old."""
    given = {
        key: fields.number(key, minimum=0)
        for key in ("rope.scaling.factor", "rope.scale_linear")
        if fields.get(key) is not None
    }
    stretched = {value for value in given.values() if value not in _NOT_SCALED}
    if len(stretched) > 1:
        raise fields.error(" and ".join(given), f"are {' and '.join(f'{v:g}' for v in given.values())}: one quantity")
    return next(iter(stretched), 1.0)
