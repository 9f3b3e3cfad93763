"""Chat messages: what the API allows, brought into the plain form that chat templates expect.

Templates know `role` and a `content` string. So text parts are joined, null content of an assistant
becomes the empty string, and `developer` becomes `system`, which OpenAI defines it to replace. Tool calls in a history
go to templates that show them (`tool_calls.py`). Anything that a text model cannot take (images, audio) is refused by
its place, as in `messages[2].content[0].type`.
"""

from __future__ import annotations

from typing import Any

from ridgeline.errors import shown
from ridgeline.server import tool_calls
from ridgeline.server.checks import known_fields, refusal, text

ROLES = ["system", "developer", "user", "assistant", "tool"]
_PART_FIELDS = [
    "type",
    "text",
    "cache_control",
]  # the last one: a hint for other servers' caches, which changes no answer
_PASSED_ON = ("name", "reasoning", "reasoning_content")
_NEUTRAL_ONLY = ("function_call", "refusal", "audio")  # null or empty: as SDKs echo them
# What clients add to an answer and send back with the history: it says again what other fields say, or who said it.
_ECHOED = ("parsed", "annotations", "reasoning_details", "provider_specific_fields")


def plain_messages(value: Any, *, takes_tools: bool) -> list[dict[str, Any]]:
    """`value` as messages for a template, which shows tool calls if `takes_tools`. Raises RequestError that names the
    place at fault."""
    if not isinstance(value, list) or not value:
        raise refusal("messages", "must be a list of at least one message")
    return [_plain_message(f"messages[{index}]", message, takes_tools) for index, message in enumerate(value)]


def _plain_message(place: str, message: Any, takes_tools: bool) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise refusal(place, f"must be an object with role and content, not {shown(message)}")
    role = message.get("role")
    if role not in ROLES:
        raise refusal(f"{place}.role", f"is {shown(role)}", hint="roles: " + ", ".join(ROLES))
    plain = {"role": "system" if role == "developer" else role, "content": _content(place, role, message)}
    known = ["role", "content", *_PASSED_ON, *tool_calls.FIELDS, *_NEUTRAL_ONLY]
    known_fields(place, message, [*known, *(_ECHOED if role == "assistant" else ())], "a message")
    for name in _NEUTRAL_ONLY:
        if message.get(name):
            problem = "is not implemented by this server"
            raise refusal(f"{place}.{name}", problem, code="unsupported_parameter", hint="tell it as text")
    for name in _PASSED_ON:
        if message.get(name) is not None:
            plain[name] = text(f"{place}.{name}", message[name])
    return plain | tool_calls.tool_fields(place, message, takes_tools=takes_tools)


def _content(place: str, role: str, message: dict[str, Any]) -> str:
    content = message.get("content")
    if content is None and role == "assistant":
        return ""
    if not isinstance(content, list):
        return text(f"{place}.content", content)
    return "".join(_part(f"{place}.content[{index}]", part) for index, part in enumerate(content))


def _part(place: str, part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind != "text":
        raise refusal(f"{place}.type", f"is {shown(kind)}; this server takes parts of type 'text' only")
    known_fields(place, part, _PART_FIELDS, "a content part")
    return text(f"{place}.text", part.get("text"))
