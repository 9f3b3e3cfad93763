"""Tool calls in a conversation's history: what an assistant called and what came back, in the form of chat templates.

The API has a call's arguments as a string of JSON, templates expect the object. Both are refused by their place where
the model's template would leave them out.
"""

from __future__ import annotations

import json
from typing import Any

from ridgeline.errors import shown
from ridgeline.server.checks import known_fields, mapping, refusal, text

FIELDS = ("tool_calls", "tool_call_id")
_CALL_FIELDS = [
    "id",
    "type",
    "function",
    "index",
]  # the last one: of a stream's pieces, echoed by those who joined them
_FUNCTION_FIELDS = ["name", "arguments", "parsed_arguments"]  # the last one: the arguments again, by openai's `parse()`


def tool_fields(place: str, message: dict[str, Any], *, takes_tools: bool) -> dict[str, Any]:
    """The fields about tools of `message`, for a template that shows them if `takes_tools`. Null and empty lists ask
    for nothing. Raises RequestError that names the place at fault."""
    calls, call_id = (message.get(name) for name in FIELDS)
    is_answer = message["role"] == "tool"
    if calls and message["role"] != "assistant":
        raise refusal(f"{place}.tool_calls", "belongs to a message of the assistant")
    if call_id is not None and not is_answer:
        raise refusal(f"{place}.tool_call_id", "belongs to a message of role tool")
    if not takes_tools and (calls or is_answer):
        raise refusal(
            f"{place}.{'role' if is_answer else 'tool_calls'}",
            "needs a chat template that shows tool calls, and this model's does not",
            code="unsupported_parameter",
            hint="tell what was called and what came back as text",
        )
    if is_answer:
        return {"tool_call_id": text(f"{place}.tool_call_id", call_id)}
    return {"tool_calls": _calls(f"{place}.tool_calls", calls)} if calls else {}


def _calls(place: str, calls: Any) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise refusal(place, f"must be a list of calls, not {shown(calls)}")
    return [_call(f"{place}[{index}]", call) for index, call in enumerate(calls)]


def _call(place: str, call: Any) -> dict[str, Any]:
    known_fields(place, mapping(place, call), _CALL_FIELDS, "a tool call")
    if (kind := call.get("type")) not in (None, "function"):
        raise refusal(f"{place}.type", f"is {shown(kind)}; tools are of type 'function'")
    function_place = f"{place}.function"
    function = mapping(function_place, call.get("function"))
    known_fields(function_place, function, _FUNCTION_FIELDS, "a function")
    name, arguments = (text(f"{function_place}.{key}", function.get(key)) for key in ("name", "arguments"))
    return {
        "id": text(f"{place}.id", call.get("id")),
        "type": "function",
        "function": {"name": name, "arguments": _arguments(f"{function_place}.arguments", arguments)},
    }


def _arguments(place: str, arguments: str) -> dict[str, Any]:
    try:
        return mapping(place, json.loads(arguments or "{}"))  # some clients write no arguments as no text
    except (ValueError, RecursionError) as error:
        raise refusal(place, f"is no JSON: {error}") from None
