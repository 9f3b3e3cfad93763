"""Typed access to a model's settings, `config.json` or GGUF metadata.

A setting that is missing, of the wrong type or impossible gives a ConfigError that names the source and the key.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ridgeline.errors import ConfigError


class Fields:
    """Typed access to a model's settings; an error names the source and the key. Which keys were asked for is noted."""

    def __init__(self, values: Mapping[str, Any], source: str, prefix: str = "") -> None:
        self.values = values
        self.source = source
        self.prefix = prefix
        self._asked: set[str] = set()

    def get(self, key: str) -> Any:
        self._asked.add(key)
        return self.values.get(self.prefix + key)

    def unused(self, *keys: str) -> None:
        """Keys that decide nothing in this model, whatever they hold."""
        self._asked.update(keys)

    def unread(self) -> dict[str, Any]:
        """What nobody asked for, under the prefix."""
        names = (name.removeprefix(self.prefix) for name in self.values if name.startswith(self.prefix))
        return {name: self.values[self.prefix + name] for name in names if name not in self._asked}

    def missed(self) -> set[str]:
        """Keys that were asked for and are not there."""
        return {key for key in self._asked if self.prefix + key not in self.values}

    def error(self, key: str, problem: str, hint: str | None = None) -> ConfigError:
        return ConfigError(f"{self.source}: {self.prefix}{key} {problem}", hint=hint)

    def number(self, key: str, default: float | None = None, *, minimum: float | None = None) -> float:
        """A finite number: above zero, or at least `minimum` when that is given."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if value is None:
            raise self.error(key, "is missing")
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.error(key, f"is {short(value)}, not a number")
        if value < minimum if minimum is not None else value <= 0:
            raise self.error(key, f"is {value}, below {minimum}" if minimum is not None else f"is {value}, not above 0")
        return float(value)

    def count(self, key: str, default: int | None = None, *, minimum: int | None = None) -> int:
        value = self.number(key, default, minimum=minimum)
        if value != int(value):
            raise self.error(key, f"is {value}, not a whole number")
        return int(value)

    def flag(self, key: str) -> bool:
        """False when the key is missing or null."""
        return bool(self._typed(key, bool, "true or false", False))

    def text(self, key: str, default: str = "") -> str:
        return str(self._typed(key, str, "a string", default))

    def items(self, key: str) -> list[Any]:
        """Empty when the key is missing or null."""
        return list(self._typed(key, list, "a list", []))

    def table(self, key: str) -> dict[str, Any]:
        """Empty when the key is missing or null."""
        return dict(self._typed(key, dict, "an object", {}))

    def _typed(self, key: str, kind: type, kind_name: str, default: Any) -> Any:
        value = self.get(key)
        if value is not None and not isinstance(value, kind):
            raise self.error(key, f"is {short(value)}, not {kind_name}")
        return default if value is None else value

    def token_ids(self, *keys: str) -> tuple[int, ...]:
        """The union of ids and lists of ids, in order."""
        found: dict[int, None] = {}
        for key in keys:
            value = self.get(key)
            ids = value if isinstance(value, list) else [] if value is None else [value]
            for token_id in ids:
                if not isinstance(token_id, int) or isinstance(token_id, bool):
                    raise self.error(key, f"holds {token_id!r}, not a token id")
                found[token_id] = None
        return tuple(found)

    def refuse(self, keys: Sequence[str]) -> None:
        for key in keys:
            if self.get(key):
                raise self.error(key, f"is {short(self.get(key))}: this feature is not supported")

    def head_dim(self, key: str, hidden_size: int, num_heads: int) -> int:
        """The size of one head: given under `key`, else an equal share of the hidden size."""
        if self.get(key) is None and hidden_size % num_heads:
            raise self.error(key, f"is missing, and {num_heads} heads do not divide the hidden size {hidden_size}")
        return self.count(key, hidden_size // num_heads)


def short(value: Any) -> str:
    """For a message: the value, cut when it is long."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
