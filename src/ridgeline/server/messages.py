"""Chat messages: what the API allows, brought into the plain form that chat templates expect.

Templates know `role` and a `content` string. So text parts are joined, null content of an assistant
becomes the empty string, and `developer` becomes `system`, which OpenAI defines it to replace. Anything that a
text model cannot take (images, audio, tool calls) is refused by its place, as in `messages[2].content[0].type`.
"""

from __future__ import annotations

from typing import Any

from ridgeline.config import nearest
from ridgeline.errors import RequestError, shown
from ridgeline.server.checks import refusal, text

ROLES = ["system", "developer", "user", "assistant"]
_PART_FIELDS = [
    "type",
    "text",
    "cache_control",
]  # the last one: a hint for other servers' caches, which changes no answer
_PASSED_ON = {"name", "reasoning", "reasoning_content"}
_NEUTRAL_ONLY = {"tool_calls", "function_call", "refusal", "audio", "annotations"}  # null or empty: as SDKs echo them


def plain_messages(value: Any) -> list[dict[str, str]]:
    """`value` as messages for a template. Raises RequestError that names the place at fault."""
    if not isinstance(value, list) or not value:
        raise refusal("messages", "must be a list of at least one message")
    return [_plain_message(f"messages[{index}]", message) for index, message in enumerate(value)]


def _plain_message(place: str, message: Any) -> dict[str, str]:
    if not isinstance(message, dict):
        raise refusal(place, f"must be an object with role and content, not {shown(message)}")
    role = message.get("role")
    if role not in ROLES:
        raise refusal(f"{place}.role", f"is {shown(role)}", hint="roles: " + ", ".join(ROLES))
    plain = {"role": "system" if role == "developer" else role, "content": _content(place, role, message)}
    for name, given in message.items():
        if name in _PASSED_ON and given is not None:
            plain[name] = text(f"{place}.{name}", given)
        elif name in _NEUTRAL_ONLY and given:
            raise RequestError(
                f"{place}.{name} is not implemented by this server",
                code="unsupported_parameter",
                param=f"{place}.{name}",
                hint="tell what was called and what came back as text",
            )
        elif name not in {"role", "content"} | _PASSED_ON | _NEUTRAL_ONLY:
            raise _unknown(place, name, "a message", ["role", "content", *_PASSED_ON, *_NEUTRAL_ONLY])
    return plain


def _unknown(place: str, name: str, where: str, known: list[str]) -> RequestError:
    return RequestError(
        f"there is no field {name!r} in {where}",
        code="unknown_parameter",
        param=f"{place}.{name}",
        hint=nearest(name, known),
    )


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
    for name in part:
        if name not in _PART_FIELDS:
            raise _unknown(place, name, "a content part", _PART_FIELDS)
    return text(f"{place}.text", part.get("text"))
