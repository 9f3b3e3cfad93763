"""Typed access to the files beside a model's weights: what its tokenizer is, how it wants to be sampled.

They are written by many hands and edited by more, so each value is checked where it is read: one of the wrong type
gives a CheckpointError that names the file and the key.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ridgeline.errors import CheckpointError
from ridgeline.model.fields import Fields, short
from ridgeline.model.resolve import read_json

_HINT = "mend the file, or fetch it again"


class CheckpointFields(Fields):
    def error(self, key: str, problem: str, hint: str | None = None) -> CheckpointError:  # type: ignore[override]
        return CheckpointError(f"{self.source}: {self.prefix}{key} {problem}", hint=hint or _HINT)

    def optional_text(self, key: str) -> str | None:
        """None when the key is missing or null."""
        return None if self.get(key) is None else self.text(key)

    def text(self, key: str, default: str = "") -> str:
        value = super().text(key, default)
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise self.error(
                key, f"holds {value[error.start]!a} at character {error.start}, which is no text"
            ) from None
        return value

    def optional_flag(self, key: str) -> bool | None:
        """None when the key is missing or null."""
        return None if self.get(key) is None else self.flag(key)

    def under(self, key: str) -> CheckpointFields:
        """The object under `key`: empty when the key is missing or null."""
        return CheckpointFields(self.table(key), self.source, f"{self.prefix}{key}.")

    def objects(self, key: str) -> list[CheckpointFields]:
        """The objects in the list under `key`: none when the key is missing or null."""
        places = [(f"{key}[{index}]", value) for index, value in enumerate(self.items(key))]
        for place, value in places:
            if not isinstance(value, dict):
                raise self.error(place, f"is {short(value)}, not an object")
        return [CheckpointFields(value, self.source, f"{self.prefix}{place}.") for place, value in places]

    def get(self, key: str) -> Any:
        """`values` are those of the object itself: the prefix is only told."""
        return self.values.get(key)


def read_fields(path: Path) -> CheckpointFields:
    """The settings in a JSON file that a checkpoint may do without: none when it does."""
    return CheckpointFields(read_json(path) if path.exists() else {}, str(path))
