"""The engine that renders chat templates: jinja2, set up as transformers sets it up, under stricter guard.

A checkpoint's template was written against transformers, and a prompt that differs from what the model was trained on
by one space or digit is a quiet fault: so the same engine renders it, the same filters and the same numbers. But a
template is also a program out of a file that somebody uploaded. So attributes are listed, not excepted: data, loops and
namespaces can be read, nothing else of Python; and all it does costs fuel (`template_fuel.py`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from jinja2 import Template, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError, TemplateAssertionError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEscapeFormatter, SandboxedFormatter
from jinja2.utils import Cycler, Namespace
from markupsafe import Markup

from ridgeline.model.template_fuel import Meter, metered_filter, pay_method, pay_operator, pay_spec

_TEXT_METHODS = """
capitalize casefold center count endswith expandtabs find format format_map index isalnum isalpha isascii isdecimal
isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower lstrip partition
removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip split splitlines startswith strip
swapcase title upper zfill
"""
_LOOP = """
changed cycle depth depth0 first index index0 last length nextitem previtem revindex revindex0
"""
# What a template may read of a value, by its type; of a namespace, all that it put there.
_READABLE: dict[type, set[str]] = {
    str: set(_TEXT_METHODS.split()),
    Markup: set(_TEXT_METHODS.split()),
    dict: {"copy", "get", "items", "keys", "values"},
    list: {"copy", "count", "index"},
    tuple: {"count", "index"},
    range: {"count", "index", "start", "step", "stop"},
    int: {"bit_length", "denominator", "imag", "numerator", "real"},
    float: {"imag", "is_integer", "real"},
    LoopContext: set(_LOOP.split()),
    Macro: {"arguments", "caller", "catch_kwargs", "catch_varargs", "name"},
    Cycler: {"current", "next", "reset"},
}
# They draw at random, run regular expressions over what they are given, or show Python's own side of a value.
_FILTERS_LEFT_OUT = ("pprint", "random", "urlize", "wordwrap", "xmlattr")


class RefusedByTemplateError(Exception):
    """The template called `raise_exception`."""


class TemplateEngine(ImmutableSandboxedEnvironment):
    """Thread-safe. Compiles templates, and renders each with a fuel of its own.

    `compiled` raises jinja2's TemplateError for what is no template, and both raise OutOfFuelError and whatever Python
    raises when a template misuses its values or is nested too deeply; `rendered`, RefusedByTemplateError as well.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        self._local = threading.local()
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationMarks, loopcontrols],
            finalize=self.write,
            optimized=False,
        )
        self.code_generator_class = _MeteredCode
        for name in _FILTERS_LEFT_OUT:
            del self.filters[name]
        for name, function in {**self.filters, "tojson": self._tojson}.items():
            self.filters[name] = metered_filter(name, function, lambda: self.meter)
        del self.globals["lipsum"]
        self.globals |= {
            "dict": _DictMaker(self),
            "namespace": _PlainNamespace,
            "raise_exception": _refuse,
            "strftime_now": lambda layout: datetime.now().strftime(layout),
        }

    def compiled(self, source: str) -> Template:
        with self._metered():  # constant expressions are computed here
            tree = self.parse(source)
            for used in tree.find_all(nodes.Filter):
                if used.name in _FILTERS_LEFT_OUT:
                    raise TemplateAssertionError(f"the filter {used.name!r} is not offered", used.lineno)
            return self.from_string(tree)

    def rendered(self, template: Template, values: dict[str, Any]) -> str:
        with self._metered():
            return template.render(values)

    @contextmanager
    def _metered(self) -> Iterator[None]:
        self._local.meter = Meter()
        try:
            yield
        finally:
            del self._local.meter

    @property
    def meter(self) -> Meter:
        """That of the rendering in this thread."""
        meter: Meter = self._local.meter
        return meter

    # Called by the code that templates become.

    def spend(self) -> None:
        self.meter.spend()

    def write(self, value: Any) -> Any:
        return self.meter.write(value)

    def keep(self, value: Any) -> Any:
        return self.meter.keep(value)

    def concat(self, pieces: Iterable[str]) -> str:  # type: ignore[override]
        return "".join(self._paid(pieces))

    def _paid(self, pieces: Iterable[str]) -> Iterator[str]:
        meter = self.meter
        for piece in pieces:
            meter.spend_text(len(piece))
            yield piece

    # What the sandbox asks.

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, Namespace):
            return not attr.startswith("_")
        return attr in _READABLE.get(type(obj), ())

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        pay_operator(self.meter, operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        meter = self.meter
        owner = getattr(function, "__self__", None)
        if isinstance(owner, str):
            args = pay_method(meter, owner, function.__name__, args, kwargs)
        elif isinstance(function, Macro):
            meter.keep(args)
            meter.keep(kwargs)
        result = super().call(context, function, *args, **kwargs)
        if isinstance(result, str):
            meter.spend_text(len(result))
        elif isinstance(result, list):
            meter.spend(len(result))
        return result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """A `format` or `format_map` of text that pays for its fields and reads no attribute that is not listed."""
        text, name = getattr(value, "__self__", None), getattr(value, "__name__", "")
        if name not in ("format", "format_map") or not isinstance(text, str):
            return None

        def formatted(*args: Any, **kwargs: Any) -> str:
            if name == "format_map":
                if kwargs or len(args) != 1:
                    raise TypeError("format_map() takes exactly one argument")
                args, kwargs = (), args[0]
            meter = self.meter
            meter.spend((meter.size(args) + meter.size(kwargs)) * text.count("{"))
            if isinstance(text, Markup):
                formatter: SandboxedFormatter = _PayingEscapeFormatter(self, escape=text.escape)
            else:
                formatter = _PayingFormatter(self)
            return type(text)(formatter.vformat(text, args, kwargs))

        return formatted

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | str | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """As in transformers: Python's own JSON, without HTML's escapes, in the same order of arguments."""
        encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        meter = self.meter
        meter.spend(meter.size(value) * (1 + sum(map(len, separators or ())) // 64))
        if indent is None:
            return encoder.encode(value)
        meter.spend_text(indent if isinstance(indent, int) else len(indent))
        return self.concat(encoder.iterencode(value))


class _MeteredCode(CodeGenerator):
    """Python code that pays: a step for each block that runs, the text of `~`, the size of lists, tuples and dicts."""

    def blockvisit(self, body: Iterable[nodes.Node], frame: Frame) -> None:
        self.writeline("environment.spend()")
        super().blockvisit(body, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        paid = [nodes.Call(nodes.EnvironmentAttribute("write"), [part], [], None, None) for part in node.nodes]
        super().visit_Concat(nodes.Concat(paid), frame)

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self._kept(super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self._kept(super().visit_Dict, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        if node.ctx == "load":
            self._kept(super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def _kept(self, visit: Callable[[Any, Frame], None], node: nodes.Node, frame: Frame) -> None:
        self.write("environment.keep(")
        visit(node, frame)
        self.write(")")


class _GenerationMarks(Extension):
    """transformers marks the assistant's words by {% generation %} blocks, for training masks: here, plain blocks, with
    the scope of a macro's body, as there."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_as_it_is"), [], [], body).set_lineno(line)

    def _as_it_is(self, caller: Macro) -> Any:
        return caller()


class _DictMaker:
    """The global `dict`, which is no type that leads further into Python."""

    def __init__(self, engine: TemplateEngine) -> None:
        self._engine = engine

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._engine.keep(dict(*args, **kwargs))

    def fromkeys(self, *args: Any) -> Any:
        return self._engine.keep(dict.fromkeys(*args))


_READABLE[_DictMaker] = {"fromkeys"}


class _PlainNamespace(Namespace):
    """A namespace whose names do not begin with `_`, and that is not written out: it may hold itself."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # so that an attribute may be called `self`
        self, *given = args
        values = dict(*given, **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        raise SecurityError("a namespace cannot be written out, only what it holds")


def _check_name(name: str) -> None:
    if name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r}: names must not begin with an underscore")


class _Paying:
    """Before a formatter: pays for widths."""

    _env: TemplateEngine

    def format_field(self, value: Any, format_spec: str) -> Any:
        pay_spec(self._env.meter, format_spec)
        return super().format_field(value, format_spec)  # type: ignore[misc]


class _PayingFormatter(_Paying, SandboxedFormatter):
    pass


class _PayingEscapeFormatter(_Paying, SandboxedEscapeFormatter):
    pass


def _refuse(message: str) -> None:
    raise RefusedByTemplateError(message)
