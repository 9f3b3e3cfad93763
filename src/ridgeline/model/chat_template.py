"""Chat templates: a conversation to token ids.

A template is Jinja that comes with the model; `template_engine.py` renders it, to the very text that transformers
makes of it.

Control tokens are the template's to write. What messages, tools and other values say is text, also when it spells
`<|im_end|>`: before rendering, each control string inside a value gives its place to a number that is unique to this
rendering; after rendering, the text is cut at the control tokens (all of them the template's own); then the numbers
become the strings again and each piece is tokenized as plain text. A conversation that spells no control token gets
exactly the ids of its rendered text. Stand-ins are digits, so that they survive `upper`, `tojson` and the like.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.errors import CheckpointError, ConfigError, RequestError
from ridgeline.model.checkpoint_fields import CheckpointFields, read_fields
from ridgeline.model.fields import short
from ridgeline.model.resolve import ModelFiles

if TYPE_CHECKING:
    from jinja2 import Template

    from ridgeline.model.tokenizer import Tokenizer

DEFAULT = "default"
_REASONING = ("reasoning_content", "thinking", "reasoning")
TOOL_USE = "tool_use"  # a checkpoint may bring a template of its own for requests with tools


def read_chat_templates(files: ModelFiles) -> dict[str, str]:
    """The templates that a checkpoint brings, by name; files of their own win over entries in configs.

    Raises CheckpointError for an entry or a file that is no text.
    """
    if files.kind == "config":
        return {}
    if files.kind == "gguf":
        return _gguf_templates(CheckpointFields(files.gguf.metadata, str(files.path)))
    templates = _declared(read_fields(files.path / "chat_template.json"))  # what multimodal processors write
    templates |= _declared(read_fields(files.path / "tokenizer_config.json"))
    for path in sorted((files.path / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = _read_text(path)
    alone = files.path / "chat_template.jinja"
    return templates | ({DEFAULT: _read_text(alone)} if alone.exists() else {})


def _declared(config: CheckpointFields) -> dict[str, str]:
    """`chat_template` of a config: one template, or a list of named ones."""
    if not isinstance(config.get("chat_template"), list):
        template = config.optional_text("chat_template")
        return {} if template is None else {DEFAULT: template}
    entries = config.objects("chat_template")
    for entry in entries:
        for key in ("name", "template"):
            if entry.get(key) is None:
                raise entry.error(key, "is missing")
    return {entry.text("name"): entry.text("template") for entry in entries}


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = error.reason if isinstance(error, UnicodeDecodeError) else error.strerror
        raise CheckpointError(f"{path}: cannot be read as UTF-8: {problem}", hint="fetch the file again") from error


def _gguf_templates(metadata: CheckpointFields) -> dict[str, str]:
    key = "tokenizer.chat_template"
    names = metadata.items("tokenizer.chat_templates")
    if not all(isinstance(name, str) for name in names):
        raise metadata.error("tokenizer.chat_templates", f"is {short(names)}, not a list of names")
    templates = {name: metadata.optional_text(f"{key}.{name}") for name in names} | {
        DEFAULT: metadata.optional_text(key)
    }
    return {name: template for name, template in templates.items() if template is not None}


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
        from ridgeline.model.template_engine import TemplateEngine  # jinja2: not needed without a template

        self._tokenizer = tokenizer
        self.source = templates[DEFAULT]  # Jinja
        self._engine = TemplateEngine()
        self._templates = {name: self._compiled(name, template, source) for name, template in templates.items()}
        self.takes_tools = "tool_calls" in templates[DEFAULT]  # shows a history's calls, and what they returned

    def _compiled(self, name: str, template: str, source: str) -> Template:
        try:
            return self._engine.compiled(template)
        except Exception as error:  # not Jinja, or what its constant expressions raise
            line = f" (line {error.lineno})" if hasattr(error, "lineno") else ""
            problem = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ConfigError(f"{source}: invalid chat template {name!r}: {problem}{line}") from error

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
        from ridgeline.model.template_engine import RefusedByTemplateError
        from ridgeline.model.template_fuel import STEPS, OutOfFuelError

        name = TOOL_USE if values["tools"] and TOOL_USE in self._templates else DEFAULT
        context = {**self._tokenizer.named_tokens, **values, "add_generation_prompt": add_generation_prompt}
        try:
            return self._engine.rendered(self._templates[name], context)
        except RefusedByTemplateError as refusal:
            raise RequestError(f"the model's chat template refuses this: {refusal}", param="messages") from refusal
        except OutOfFuelError as error:
            raise RequestError(f"the model's chat template took more than {STEPS:,} steps", param="messages") from error
        except Exception as error:  # a template's mistakes are Python's: any kind that its operators and methods raise
            problem = f"{type(error).__name__}: {error}".splitlines()[0]
            raise RequestError(f"the model's chat template failed: {problem}", param="messages") from error


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
    """The template's variables, those that transformers gives it. Lists of text parts become strings: that is what
    templates of text models expect."""
    flat = [_flat(message, index) for index, message in enumerate(messages)]
    return {"documents": None, **(extra or {}), "messages": flat, "tools": tools or None}


def _flat(message: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Reasoning, which clients send under three names, stands under those that templates read."""
    flat = dict(message)
    if "content" in flat:
        flat["content"] = _joined(flat["content"], index)
    reasoning = next((flat[name] for name in _REASONING if flat.get(name) is not None), None)
    return flat if reasoning is None else {"thinking": reasoning, **flat, "reasoning_content": reasoning}


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
