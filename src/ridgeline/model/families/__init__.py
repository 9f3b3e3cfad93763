"""From `config.json` to an `Anatomy`, for every family whose facts are certain.

`describe` picks the family by `model_type`, checks that `architectures` names one of its classes, and hands over to
the family's function. In configurations of several modalities the text model is described, `text_config`. It never
guesses a size: what is missing, or asks for sizes that the family does not know, is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ridgeline.config import nearest
from ridgeline.model.anatomy import Anatomy
from ridgeline.model.config_values import stored_dtype
from ridgeline.model.families import dense, gemma, hybrid, latent, mixture
from ridgeline.model.families.common import Config, Family
from ridgeline.model.fields import short
from ridgeline.model.known_keys import passed_over

FAMILIES: Mapping[str, Family] = {
    **dense.FAMILIES,
    **gemma.FAMILIES,
    **mixture.FAMILIES,
    **latent.FAMILIES,
    **hybrid.FAMILIES,
}
ASSUMED_BF16 = "The config does not say in which number type the weights are stored: bf16 is assumed."
_MAX_LAYERS = 10_000
_OUTER_KEYS = ("tie_word_embeddings", "quantization_config", "dtype", "torch_dtype", "architectures")


def describe(values: Mapping[str, Any], *, source: str) -> Anatomy:
    """The anatomy of a Hugging Face `config.json`; `source` names the file in errors. Raises ConfigError."""
    config = _text_config(values, source)
    name, family = _family(config)
    _refuse_absurd_depth(config)
    stack = family.build(config)
    anatomy = Anatomy(
        architecture=name.removesuffix("_text"),
        vocab_size=config.count("vocab_size"),
        hidden_size=config.count(family.hidden_key),
        max_context_len=config.count(family.context_key, family.default_context_len),
        tied=_tied(config, family),
        layers=stack.layers,
        shared=stack.shared,
        lookups=stack.lookups,
        stored_dtype=stored_dtype(config),
        assumptions=tuple(_assumptions(config, values)),
        quantization=config.table("quantization_config"),
    )
    return replace(anatomy, warnings=passed_over(config, serving=False))


def is_known(model_type: str) -> bool:
    """Whether models of this type, or the text part of them, can be described."""
    return model_type in FAMILIES or f"{model_type}_text" in FAMILIES


def _text_config(values: Mapping[str, Any], source: str) -> Config:
    outer = Config(values, source)
    text = outer.table("text_config")
    if not text:
        return outer
    inherited = {key: values[key] for key in _OUTER_KEYS if key in values}
    for key in ("tie_word_embeddings", "quantization_config"):
        if key in text and key in inherited and text[key] != inherited[key]:
            raise outer.error(key, f"is {short(inherited[key])}, and {short(text[key])} in text_config")
    return Config({**inherited, **text, "architectures": values.get("architectures")}, f"{source}: text_config")


def _family(config: Config) -> tuple[str, Family]:
    name = config.text("model_type")
    if not name:
        raise config.error("model_type", "is missing")
    if name not in FAMILIES:
        raise config.error("model_type", f"is {name!r}: unknown architecture", nearest(name, list(FAMILIES)))
    family = FAMILIES[name]
    classes = config.items("architectures")
    if classes and not set(map(str, classes)) & set(family.classes):
        wanted = " or ".join(family.classes)
        raise config.error("architectures", f"is {short(classes)}: a {name} model must be {wanted}")
    return name, family


def _assumptions(config: Config, values: Mapping[str, Any]) -> Iterator[str]:
    if config.get("dtype") is None and config.get("torch_dtype") is None:
        yield ASSUMED_BF16
    if any(config.get(key) for key in ("num_nextn_predict_layers", "num_mtp_modules", "mtp_num_hidden_layers")):
        yield "Layers that predict further tokens (MTP) are not counted."
    if "text_config" in values:
        yield "The text model alone is counted, not the encoders of other modalities."


def _refuse_absurd_depth(config: Config) -> None:
    """Layers are listed one by one: a slip of the pen must not fill the memory."""
    for key in ("num_hidden_layers", "n_layer"):
        if config.get(key) is not None and config.count(key) > _MAX_LAYERS:
            raise config.error(key, f"is {config.get(key):,}: at most {_MAX_LAYERS:,} layers are understood")


def _tied(config: Config, family: Family) -> bool:
    if config.get("tie_word_embeddings") is None:
        if family.tied is None:
            raise config.error("tie_word_embeddings", "is missing: the output matrix may be one of its own or not")
        return family.tied
    return config.flag("tie_word_embeddings")
