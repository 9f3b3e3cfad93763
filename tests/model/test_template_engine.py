"""The template engine against transformers', expression by expression; and what a template must not be able to do."""

from __future__ import annotations

import contextlib
import re
import tracemalloc
from pathlib import Path

import pytest
import transformers
from jinja2.exceptions import SecurityError, TemplateError
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from ridgeline.model.template_engine import TemplateEngine
from ridgeline.model.template_fuel import OutOfFuelError

GOLDEN = Path(__file__).parents[1] / "golden"
LINES = (GOLDEN / "template_expressions.txt").read_text(encoding="utf-8").splitlines()
EXPRESSIONS = [line.replace(r"\r", "\r") for line in LINES if line and not line.startswith(("# ",))]

VALUES = {
    "nothing": None,
    "text": "Hello world",
    "unicode": 'é 東京 👋 "q" \\ \n\t\u2028',
    "html": "<b>1 & 2</b> 'q'",
    "words": ["apple", "pear", "fig"],
    "table": {"b": 2, "a": "one", "c": 3} | {"c": 1},
    "shadow": {"items": [1, 2], "get": "got"},
    "nested": {"list": [1, {"k": "v", "empty": []}], "none": None, "é": {"z": True, "a": 1.5}},
    "numbers": {
        "five": 5.0, "small": 1e-7, "large": 1e16, "zero": -0.0, "big": 10**20, "int": 3, "max": 2**53 + 1,
        "list": [0.1, 1e22, 1.0e-5, 123456789.125, True],
    },
    "people": [
        {"name": "Ann", "age": 30, "city": "Köln"},
        {"name": "Bob", "age": 41, "city": "東京"},
        {"name": "Cy", "age": 0, "city": "Köln"},
    ],
    "tree": [{"name": "a", "kids": [{"name": "b", "kids": []}]}, {"name": "c"}],
}  # fmt: skip


@pytest.fixture(scope="module")
def engine() -> TemplateEngine:
    return TemplateEngine()


@pytest.fixture(scope="module")
def render_by_transformers():
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=Backend(BPE()))

    def render(template: str) -> str:
        message = [{"role": "user", "content": ""}]
        return tokenizer.apply_chat_template(message, chat_template=template, tokenize=False, **VALUES)

    return render


def render(engine: TemplateEngine, template: str, **values: object) -> str:
    return engine.rendered(engine.compiled(template), values)


def outcome(attempt) -> str | None:
    """What was rendered, without addresses in memory, or None when the template was refused."""
    try:
        return re.sub(r"0x[0-9a-f]{8,}", "0x", attempt())
    except Exception:
        return None


def test_the_list_is_long():
    assert len(EXPRESSIONS) > 200


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expressions_render_as_in_transformers(engine, render_by_transformers, expression):
    for template in dict.fromkeys((expression, expression.replace(r"\n", "\n"))):
        expected = outcome(lambda template=template: render_by_transformers(template))
        assert outcome(lambda template=template: render(engine, template, **VALUES)) == expected


def grow(step: str, times: int = 60, start: str = "'ab'") -> str:
    """A template that makes `ns.x` of itself again and again, and writes out its end."""
    loop = f"{{% for i in range({times}) %}}{{% set ns.x = {step} %}}{{% endfor %}}"
    return f"{{% set ns = namespace(x={start}) %}}{loop}{{{{ ns.x }}}}"


X = "{% set x = 'x' * 9000000 %}"
HUNGRY = [
    "{{ 'x' * 10000000000 }}",
    "{{ [1] * 10000000000 }}",
    "{% set x = 10000000000 * 'x' %}",
    "{{ 10 ** (10 ** 10) }}",
    "{{ 1.5 | round(10 ** 9, 'ceil') }}",
    grow("ns.x + ns.x"),
    grow("ns.x ~ ns.x"),
    grow("ns.x * ns.x", start="99"),
    grow("ns.x * 9"),
    grow("[ns.x, ns.x]"),
    grow("(ns.x, ns.x)"),
    grow("{'a': ns.x, 'b': ns.x}"),
    grow("dict(a=ns.x, b=ns.x)"),
    grow("dict.fromkeys('abc', ns.x)"),
    grow("[ns.x] + [ns.x]"),
    grow("[ns.x] * 9"),
    grow("ns.x + ns.x", start="[1]"),
    grow("'%s%s' % (ns.x, ns.x)"),
    grow("'{0}{0}'.format(ns.x)"),
    grow("'%s%s' | format(ns.x, ns.x)"),
    grow("ns.x.replace('a', ns.x)"),
    grow("ns.x | replace('a', ns.x)"),
    grow("ns.x.join([ns.x, ns.x])"),
    grow("[ns.x, ns.x] | join(ns.x)"),
    grow("ns.x | tojson | tojson"),
    "{% macro f() %}{{ varargs | length }}{% if varargs[0] is string or varargs[0][0] is string %}{% endif %}"
    "{{ f(varargs, varargs) }}{% endmacro %}{{ f('x') }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%.1000000000f' % 1 }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ '{:{w}}'.format(1, w=1000000000) }}",
    "{{ 'x'.center(1000000000) }}",
    "{{ 'x'.ljust(1000000000) }}{{ 'x'.zfill(1000000000) }}",
    "{{ '\t'.expandtabs(1000000000) }}",
    "{{ 'x' | center(1000000000) }}",
    "{{ 'a\nb' | indent(1000000000) }}",
    "{{ [1] | tojson(indent=1000000000) }}",
    "{{ [1, 2] | tojson(separators=('x' * 90000000, ':')) }}",
    "{{ [1] | batch(1000000000, 'x') | list }}",
    "{{ [1] | slice(1000000000) | list }}",
    X + "{{ (x | list) | length }}",
    X + "{{ x.split('x') | length }}",
    X + "{% for i in range(99999) %}{{ x }}{% endfor %}",
    X + "{% set y %}{% for i in range(99999) %}{{ x }}{% endfor %}{% endset %}",
    X + "{% macro m() %}{% for i in range(99999) %}{{ x }}{% endfor %}{% endmacro %}{{ m() }}",
    X + "{% filter upper %}{% for i in range(99999) %}{{ x }}{% endfor %}{% endfilter %}",
    X + "{{ x.strip(x) }}",
    X + "{{ range(9999) | map('replace', 1, x) | list | length }}",
    "{% set x = range(99999) | batch(1) | list %}{{ x | sum(start=[]) | length }}",
]


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(90) }}",
    ],
)
def test_a_template_without_end_is_stopped(engine, template):
    with pytest.raises(OutOfFuelError):
        render(engine, template)


@pytest.mark.parametrize("template", HUNGRY)
def test_a_hungry_template_is_stopped_before_it_has_eaten(engine, template):
    tracemalloc.start()
    try:
        with pytest.raises((OutOfFuelError, RecursionError)):
            render(engine, template)
        assert tracemalloc.get_traced_memory()[1] < 400e6
    finally:
        tracemalloc.stop()


def test_fuel_is_new_for_each_rendering(engine):
    template = engine.compiled("{% for i in range(90000) %}{% endfor %}")
    for _ in range(30):
        assert engine.rendered(template, {}) == ""


@pytest.mark.parametrize("used", ["random", "urlize", "pprint", "wordwrap", "xmlattr"])
def test_a_filter_that_is_left_out_is_named_when_the_template_is_read(engine, used):
    with pytest.raises(TemplateError, match=f"the filter '{used}' is not offered"):
        engine.compiled("\n{% if false %}{{ x | " + used + " }}{% endif %}")


@pytest.mark.parametrize(
    "expression",
    [
        "text.__class__.__mro__", "text.encode", "text.translate", "text.maketrans", "table.clear", "words.extend",
        "raise_exception.__globals__", "strftime_now.__code__", "range.__class__", "namespace.mro", "dict.__init__",
        "cycler.mro", "m.__call__", "m._func", "self._TemplateReference__context", "caller", "'%*d' % (9, 1)",
        "text | attr('__class__') | string", "'{0.__class__.__mro__}'.format(text)", "ns._Namespace__attrs", "ns",
    ],
)  # fmt: skip
def test_nothing_but_data_can_be_read(engine, expression):
    template = f"{{% macro m() %}}{{% endmacro %}}{{% set ns = namespace(a=1) %}}{{{{ {expression} }}}}"
    with contextlib.suppress(SecurityError):
        assert render(engine, template, **VALUES) == ""  # undefined
