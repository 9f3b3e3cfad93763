"""Chat templates: a conversation to token ids.

A template is Jinja that comes with the model; minijinja renders it, with fuel, so that a template that loops for ever
or grows its output without bound ends in an error (fuel pays for instructions and for the length of strings).

Control tokens are the template's to write. What messages, tools and other values say is text, also when it spells
`<|im_end|>`: before rendering, each control string inside a value gives its place to a number that is unique to this
rendering; after rendering, the text is cut at the control tokens (all of them the template's own); then the numbers
become the strings again and each piece is tokenized as plain text. A conversation that spells no control token gets
exactly the ids of its rendered text. Stand-ins are digits, so that they survive `upper`, `tojson` and the like.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ridgeline.errors import CheckpointError, ConfigError, RequestError
from ridgeline.model.hf_vocabulary import read_config
from ridgeline.model.resolve import ModelFiles

if TYPE_CHECKING:
    from minijinja import Environment

    from ridgeline.model.tokenizer import Tokenizer

DEFAULT = "default"
TOOL_USE = "tool_use"  # a checkpoint may bring a template of its own for requests with tools

# A conversation of 5,000 messages takes at most half of it by Qwen3's template, the longest that we know. All of it
# makes 0.1 s of empty loops, or some 130 MB of text.
_FUEL = 2_000_000

_GENERATION = re.compile(r"(\{%[-+]?\s*)(end)?generation(\s*[-+]?%\})")


def read_chat_templates(files: ModelFiles) -> dict[str, str]:
    """The templates that a checkpoint brings, by name; files of their own win over entries in configs."""
    if files.kind == "config":
        return {}
    if files.kind == "gguf":
        return _gguf_templates(files.gguf.metadata)
    declared = read_config(files.path / "tokenizer_config.json").get("chat_template")
    if isinstance(declared, str):
        declared = [{"name": DEFAULT, "template": declared}]
    templates = {entry["name"]: entry["template"] for entry in declared or ()}
    for path in sorted((files.path / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = path.read_text(encoding="utf-8")
    alone = files.path / "chat_template.jinja"
    if alone.exists():
        templates[DEFAULT] = alone.read_text(encoding="utf-8")
    return templates


def _gguf_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    prefix = "tokenizer.chat_template"
    templates = {name: metadata[f"{prefix}.{name}"] for name in metadata.get("tokenizer.chat_templates", ())}
    return templates | ({DEFAULT: metadata[prefix]} if prefix in metadata else {})


def load_chat_template(files: ModelFiles, tokenizer: Tokenizer) -> ChatTemplate | None:
    """The chat template of a checkpoint, or None when it brings none."""
    templates = read_chat_templates(files)
    if not templates:
        return None
    if DEFAULT not in templates:
        raise CheckpointError(f"{files.path}: has chat templates {', '.join(templates)}, but none named {DEFAULT!r}")
    return ChatTemplate(templates, tokenizer, source=str(files.path))


class ChatTemplate:
    """Thread-safe; nothing changes after construction. Raises ConfigError for a template that is not valid Jinja."""

    def __init__(self, templates: Mapping[str, str], tokenizer: Tokenizer, *, source: str) -> None:
        self._tokenizer = tokenizer
        self._environments = {name: _environment(template, source) for name, template in templates.items()}
        self.takes_tools = "tool_calls" in templates[DEFAULT]  # shows a history's calls, and what they returned

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        extra: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of the conversation; the BOS token comes once, whether or not the template writes it.

        `extra` are further variables for the template (`enable_thinking`). Raises RequestError(param="messages") when
        the template refuses the conversation, fails or runs out of fuel, or when content is not text.
        """
        guard = _Guard(self._tokenizer)
        values = guard.hide(_values(messages, tools, extra))
        rendered = self._render(values, add_generation_prompt)
        pieces = self._tokenizer.split_control(rendered)
        ids = self._tokenizer.encode_pieces([p if isinstance(p, int) else guard.reveal(p) for p in pieces])
        return self._tokenizer.with_bos(ids)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        """The conversation as the model reads it, for people; tokenize with `encode`. Raises as `encode` does."""
        return self._render(_values(messages, tools, extra), add_generation_prompt)

    def _render(self, values: dict[str, Any], add_generation_prompt: bool) -> str:
        import minijinja

        name = TOOL_USE if values["tools"] and TOOL_USE in self._environments else DEFAULT
        context = {**self._tokenizer.named_tokens, **values, "add_generation_prompt": add_generation_prompt}
        try:
            return self._environments[name].render_template("chat", **context)
        except _RefusedByTemplateError as refusal:
            raise RequestError(f"the model's chat template refuses this: {refusal}", param="messages") from refusal
        except (minijinja.TemplateError, TypeError, ValueError) as error:  # the latter two from Python's filters
            out_of_fuel = getattr(error, "kind", None) == "OutOfFuel"
            problem = f"took more than {_FUEL:,} steps" if out_of_fuel else f"failed: {str(error).splitlines()[0]}"
            raise RequestError(f"the model's chat template {problem}", param="messages") from error


class _RefusedByTemplateError(Exception):
    """The template called `raise_exception`."""


class _Guard:
    """Stand-ins for the control strings inside the values of one rendering."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._nonce = f"{secrets.randbelow(10**20):020}"
        self._stand_ins: dict[str, str] = {}  # control string -> digits of one length

    def hide(self, value: Any) -> Any:
        """`value` with stand-ins in its strings, at any depth."""
        if isinstance(value, str):
            return self._tokenizer.replace_control(value, self._stand_in)
        if isinstance(value, Mapping):
            return {self.hide(key): self.hide(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide(item) for item in value]
        return value

    def reveal(self, text: str) -> str:
        """`text` with the control strings in their places again."""
        controls = {stand_in: control for control, stand_in in self._stand_ins.items()}
        return re.sub("|".join(controls), lambda match: controls[match[0]], text) if controls else text

    def _stand_in(self, control: str) -> str:
        return self._stand_ins.setdefault(control, f"{self._nonce}{len(self._stand_ins):06}")


def _values(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    extra: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The template's variables. Lists of text parts become strings: that is what templates of text models expect."""
    flat = [_flat(message, index) for index, message in enumerate(messages)]
    return {**(extra or {}), "messages": flat, "tools": tools or None}


def _flat(message: Mapping[str, Any], index: int) -> dict[str, Any]:
    return {**message, "content": _joined(message["content"], index)} if "content" in message else dict(message)


def _joined(content: Any, index: int) -> str | None:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        kind = type(content).__name__
        raise RequestError(f"content of message {index} is a {kind}, not text or a list of parts", param="messages")
    for part in content:
        part_type = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if part_type != "text" or not isinstance(part.get("text"), str):
            raise RequestError(
                f"message {index} has a content part of type {part_type!r}; this model reads text only",
                param="messages",
                hint='send {"type": "text", "text": "..."}',
            )
    return "".join(part["text"] for part in content)


def _environment(template: str, source: str) -> Environment:
    """What templates find in transformers: trimmed blocks, no escaping, `raise_exception`, `strftime_now`, `tojson`."""
    import minijinja

    environment = minijinja.Environment(
        fuel=_FUEL, trim_blocks=True, lstrip_blocks=True, pycompat=True, auto_escape_callback=lambda name: False
    )
    environment.add_function("raise_exception", _refuse)
    environment.add_function("strftime_now", lambda layout: datetime.now().strftime(layout))
    environment.add_filter("tojson", _tojson)
    try:
        environment.add_template("chat", _without_generation_marks(template))
    except minijinja.TemplateError as error:
        raise ConfigError(f"{source}: invalid chat template: {str(error).splitlines()[0]}") from error
    return environment


def _refuse(message: str) -> None:
    raise _RefusedByTemplateError(message)


def _tojson(
    value: Any,
    *,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _without_generation_marks(template: str) -> str:
    """transformers marks the assistant's words by {% generation %} blocks, for training masks: here, plain blocks."""
    return _GENERATION.sub(lambda match: f"{match[1]}{'endif' if match[2] else 'if true'}{match[3]}", template)
