"""Reading a `config.json` for planning: nothing that decides a size has a silent default, and nothing that looks like
a size is overlooked.

What nobody read is judged by `known_keys`: keys known to change shapes are refused by name, as is a slip of the pen,
and unknown ones are told. So a number that comes out was asked for under its right name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ridgeline.model import blocks
from ridgeline.model.anatomy import Block, Matrix
from ridgeline.model.config_values import layer_windows
from ridgeline.model.fields import Fields, short


class Config(Fields):
    """Fields with the checks that planning needs."""

    def count_under(self, *keys: str) -> int:
        """A count that went by several names; where more than one is there, they must agree."""
        found = {key: self.count(key) for key in keys if self.get(key) is not None}
        if not found:
            raise self.error(keys[0], "is missing")
        if len(set(found.values())) > 1:
            raise self.error(" and ".join(found), f"are {' and '.join(map(str, found.values()))}: one quantity")
        return next(iter(found.values()))

    def nullable(self, key: str) -> int | None:
        """A count, or None when the key is there and null: it may not be missing, since both have a meaning."""
        if key not in self.values:
            raise self.error(key, "is missing")
        return None if self.get(key) is None else self.count(key, minimum=0)

    def required_flag(self, key: str) -> bool:
        """True or false: a flag whose absence is no answer."""
        if self.get(key) is None:
            raise self.error(key, "is missing")
        return self.flag(key)

    def demand(self, key: str, *accepted: Any) -> None:
        """Refuses a value for which the blocks of this family were not written."""
        if key in self.values and self.get(key) not in accepted:
            raise self.error(key, f"is {short(self.get(key))}: this variant is unknown")

    def choices(self, key: str, count: int, accepted: tuple[str, ...]) -> list[str]:
        """A list with one of the accepted names per layer. Empty when the key is missing or null."""
        values = self.items(key)
        if values and (len(values) != count or any(value not in accepted for value in values)):
            raise self.error(key, f"must be {count} of {', '.join(accepted)}, not {short(values)}")
        return values


@dataclass(frozen=True)
class Stack:
    """What a family says of itself; as in `Anatomy`."""

    layers: tuple[Block, ...]
    shared: Block
    lookups: tuple[Matrix, ...] = ()


Build = Callable[[Config], Stack]


@dataclass(frozen=True)
class Family:
    """`classes`: the classes of its checkpoints. `tied`: whether the head is tied when the config does not say; None:
    it must say, since the family has models of both kinds."""

    build: Build
    classes: tuple[str, ...]
    tied: bool | None = None
    context_key: str = "max_position_embeddings"
    default_context_len: int | None = None
    hidden_key: str = "hidden_size"


@dataclass(frozen=True)
class Heads:
    """The numbers that nearly every family has under the same names."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int


def heads(config: Config, *, own_head_dim: bool = False, num_layers: int | None = None) -> Heads:
    """own_head_dim: the head size does not follow from the hidden size, so that it must be there. num_layers: what
    `num_hidden_layers` may leave to be said by another key."""
    hidden, num_heads = config.count("hidden_size"), config.count("num_attention_heads")
    if own_head_dim:
        head_dim = config.count_under("head_dim", "attention_head_dim")
    else:
        head_dim = config.head_dim("head_dim", hidden, num_heads)
    kv_heads = config.count("num_key_value_heads")
    if num_heads % kv_heads:
        raise config.error("num_key_value_heads", f"is {kv_heads}, which does not divide {num_heads} heads")
    return Heads(hidden, config.count("num_hidden_layers", num_layers), num_heads, kv_heads, head_dim)


def grouped(h: Heads, window: int | None = None, **options: Any) -> Block:
    """Grouped-query attention of these sizes; a window makes it sliding."""
    options.setdefault("kind", "sliding")
    return blocks.attention(h.hidden, h.heads, h.kv_heads, h.head_dim, window=window, **options)


def uniform(block: Block, h: Heads, *, norm_bias: bool = False) -> Stack:
    """The same layer all the way up, then a norm."""
    return Stack((block,) * h.layers, blocks.norms(1, h.hidden, bias=norm_bias))


def stack(h: Heads, layers: Iterable[Block]) -> Stack:
    """These layers, then a norm."""
    return Stack(tuple(layers), blocks.norms(1, h.hidden))


def equal_share(config: Config, hidden_size: int, num_heads: int) -> int:
    """The head size of families that have no key for it."""
    if hidden_size % num_heads:
        raise config.error("hidden size", f"hidden size {hidden_size} is not a multiple of {num_heads} heads")
    return hidden_size // num_heads


def switched_windows(config: Config, num_layers: int) -> tuple[int | None, ...]:
    """Qwen's windows, which `use_sliding_window` switches on."""
    return layer_windows(config, "qwen", num_layers)


def sliding_windows(config: Config, kinds: list[str]) -> list[int | None]:
    """The window of each layer, None for full attention; `kinds` are `layer_types` or what stands for them."""
    if "sliding_attention" not in kinds:
        config.unused("sliding_window")
        return [None] * len(kinds)
    window = config.count("sliding_window")
    return [window if kind == "sliding_attention" else None for kind in kinds]


def periodic(num_layers: int, period: int, common: str, every: str) -> list[str]:
    """Each `period`-th layer is `every`, the others `common`."""
    return [every if (i + 1) % period == 0 else common for i in range(num_layers)]
