"""Fields that a server refuses and that a request can do without, or call by another name.

OpenAI's newer models take `max_completion_tokens` alone and no temperature; strict gateways know no `stream_options`.
Which server does so is known from its refusal only: the request is sent again without the field, and whoever sends it
says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_REFUSALS = (400, 422)
_WORDS = re.compile(
    r"unsupported|not support|unknown|unrecogni[sz]ed|unexpected|extra|not (?:permitted|allowed|implemented)|no field",
    re.IGNORECASE,
)
_CONSEQUENCES = {
    "stream_options": "it may not count its tokens then",
    "temperature": "its own default holds",
    "seed": "its answers cannot be repeated",
}
OPTIONAL = tuple(_CONSEQUENCES)  # what a measurement can do without


@dataclass(frozen=True)
class Concession:
    field: str
    instead: str | None = None  # the same field's other name

    def apply(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if self.field not in body:
            return dict(body)
        rest = {name: value for name, value in body.items() if name != self.field}
        return rest if self.instead is None else {**rest, self.instead: body[self.field]}

    def __str__(self) -> str:
        if self.instead is not None:
            return f"the server refuses {self.field}: sent as {self.instead}"
        return f"the server refuses {self.field}: sent without, {_CONSEQUENCES[self.field]}"


def concession(body: Mapping[str, Any], status: int, answer: str, optional: Sequence[str]) -> Concession | None:
    """What to change in `body`, which a server refused with this status and these words; None: it does not help.
    `optional`: the fields that may be left out."""
    if status not in _REFUSALS:
        return None
    limit = Concession("max_tokens", "max_completion_tokens")
    if "max_tokens" in body and "max_completion_tokens" in answer:
        return limit
    if _WORDS.search(answer) is None:
        return None
    refused = [name for name in ("max_tokens", *optional) if name in body and re.search(rf"\b{name}\b", answer)]
    if not refused:
        return None
    return limit if refused[0] == "max_tokens" else Concession(refused[0])
