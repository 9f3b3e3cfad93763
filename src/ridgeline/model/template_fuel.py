"""Fuel of a chat template: what one rendering may cost, counted before it is paid.

Jinja runs as Python, where a line of template can ask for gigabytes (`'x' * 10**10`) or years (nested loops). So each
block that runs costs a step, and so do 64 characters of each string that is made, in whatever way: by an operator, a
filter, a method, or written out. Lists and dicts are made of references, so that `[x, x]`, done forty times, writes
out as a terabyte: what a container would write out is known when it is made, and must fit the fuel as well. The
processor time of a rendering is bounded too, for what no count sees (comparing, sorting).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

from jinja2.exceptions import SecurityError

# A conversation of 5,000 messages takes a tenth of it by Qwen3's template, one of the longest. All of it makes 0.5 s of
# empty loops, or 128 million characters.
STEPS = 2_000_000
CPU_S = 10.0
_CHARACTERS = 64  # to a step
_MAX_BITS = 1 << 15  # of an integer; Python writes at most 4,300 digits
_MAX_KNOWN = 256  # containers whose sizes are kept
_CONTAINERS = (list, tuple, dict, type({}.keys()), type({}.values()), type({}.items()))


class OutOfFuelError(Exception):
    """The template asks for more than one rendering may cost."""


class Meter:
    """The fuel of one rendering."""

    def __init__(self) -> None:
        self._left = STEPS
        self._num_payments = 0
        self._deadline_s = time.thread_time() + CPU_S
        self._sizes: dict[int, tuple[Any, int]] = {}  # id -> container, which keeps its id, and its size

    def spend(self, steps: int = 1) -> None:
        self._left -= steps
        self._num_payments += 1
        if self._left < 0 or (self._num_payments % 16 == 0 and time.thread_time() > self._deadline_s):
            raise OutOfFuelError

    def spend_text(self, num_characters: int) -> None:
        self.spend(1 + num_characters // _CHARACTERS)

    def size(self, value: Any) -> int:
        """Steps to write `value` out, with everything in it as often as it occurs."""
        if isinstance(value, str):
            return 1 + len(value) // _CHARACTERS
        if not isinstance(value, _CONTAINERS):
            return 1
        known = self._sizes.get(id(value))
        if known is not None:
            return known[1]
        self.spend(1 + len(value) // 8)
        size = 1 + sum(map(self.size, value))
        if isinstance(value, dict):
            size += sum(map(self.size, value.values()))
        return self._remember(value, size)

    def write(self, value: Any) -> Any:
        """Pays for writing `value` out; returns it."""
        self.spend(self.size(value))
        return value

    def keep(self, value: Any) -> Any:
        """Checks that a container just made could be written out; returns it."""
        self.size(value)
        return value

    def joined(self, left: Any, right: Any) -> None:
        """Pays for `left + right`, two sequences."""
        self.spend_text(len(left) + len(right))
        if not isinstance(left, str) and self.size(left) + self.size(right) > STEPS:
            raise OutOfFuelError

    def repeated(self, value: Any, times: int) -> None:
        """Pays for `value * times`."""
        self.spend_text(len(value) * max(0, times))
        if not isinstance(value, str) and self.size(value) * times > STEPS:
            raise OutOfFuelError

    def _remember(self, value: Any, size: int) -> int:
        if size > STEPS:
            raise OutOfFuelError
        if size > 64:
            if len(self._sizes) >= _MAX_KNOWN:
                del self._sizes[next(iter(self._sizes))]
            self._sizes[id(value)] = value, size
        return size


def pay_operator(meter: Meter, operator: str, left: Any, right: Any) -> None:
    """Pays for `left operator right`, of +, *, ** and %."""
    if operator == "%":
        if isinstance(left, str):
            pay_percent(meter, left, right)
    elif isinstance(left, int) and isinstance(right, int):
        if operator != "+":
            times = right if operator == "**" else 1
            if left.bit_length() * times > _MAX_BITS or (operator == "*" and right.bit_length() > _MAX_BITS):
                raise OutOfFuelError
    elif operator == "+" and isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
        meter.joined(left, right)
    elif operator == "*":
        sequence, times = (right, left) if isinstance(left, int) else (left, right)
        if isinstance(sequence, str | list | tuple) and isinstance(times, int):
            meter.repeated(sequence, times)


_PERCENT = re.compile(r"%(?:\([^)]*\))?[-#0 +]*(\*|\d*)(?:\.(\*|\d*))?")


def pay_percent(meter: Meter, layout: str, values: Any) -> None:
    """Pays for `layout % values`."""
    widths = [number for match in _PERCENT.finditer(layout) for number in match.groups() if number]
    if "*" in widths:
        raise SecurityError("a width taken from the values ('%*d') is not offered in templates")
    meter.spend_text(len(layout) + sum(map(int, widths)))
    meter.spend(meter.size(values) * layout.count("%"))


def pay_spec(meter: Meter, spec: str) -> None:
    """Pays for the width and precision of a field of `str.format`."""
    meter.spend_text(sum(map(int, re.findall(r"\d+", spec))))


def pay_method(meter: Meter, text: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Pays for `text.name(*args)` where it may make much more than it is given; returns the arguments."""
    if name == "join" and args:
        return (_paid_items(meter, text, args[0]), *args[1:])
    if name == "replace" and len(args) > 1:
        _pay_replace(meter, text, *args[:2])
    elif name in ("ljust", "rjust", "center", "zfill") and args and isinstance(args[0], int):
        meter.spend_text(args[0])
    elif name == "expandtabs":
        size = args[0] if args else kwargs.get("tabsize", 8)
        meter.spend_text(text.count("\t") * max(0, size) if isinstance(size, int) else 0)
    elif name in ("strip", "lstrip", "rstrip") and args and isinstance(args[0], str):
        meter.spend_text(len(text) * len(args[0]) // 16)
    elif name in ("split", "rsplit", "splitlines"):
        separator = args[0] if args else kwargs.get("sep")
        meter.spend(text.count(separator) if isinstance(separator, str) and separator else len(text) // 16)
    return args


def _paid_items(meter: Meter, separator: str, items: Iterable[Any]) -> list[Any]:
    """`items` in a list, with what joining them makes paid for."""
    if isinstance(items, str):
        meter.spend(len(items))
    listed = list(items)
    meter.spend_text(len(listed) * len(separator))
    for item in listed:
        meter.write(item)
    return listed


def _pay_replace(meter: Meter, text: Any, old: Any, new: Any) -> None:
    texts = [str(meter.write(value)) for value in (text, old, new)]
    num_found = texts[0].count(texts[1])
    meter.spend_text(len(texts[0]) + num_found * len(texts[2]))


# Filters by what they cost; those that are in neither set write out what they are given.
_READERS = """
abs attr count d default first float int items last length map max min reject rejectattr round select selectattr tojson
"""  # tojson pays for itself
_LISTERS = ("batch", "dictsort", "groupby", "list", "reverse", "slice", "sort", "sum", "unique")


def metered_filter(name: str, function: Callable[..., Any], meter_of: Callable[[], Meter]) -> Callable[..., Any]:
    """The filter `function`, which pays before it works and for the text that it makes."""
    place = 1 if hasattr(function, "jinja_pass_arg") else 0  # of the value: the context or so comes first

    @wraps(function)
    def paying(*args: Any, **kwargs: Any) -> Any:
        meter = meter_of()
        if len(args) > place:
            values = _pay_filter(meter, name, list(args[place:]), kwargs)
            args = (*args[:place], *values)
        result = function(*args, **kwargs)
        if isinstance(result, str):
            meter.spend_text(len(result))
        return result

    return paying


def _pay_filter(meter: Meter, name: str, values: list[Any], kwargs: dict[str, Any]) -> list[Any]:
    value, first = values[0], values[1] if len(values) > 1 else None
    if name in _LISTERS:
        if not hasattr(value, "__len__"):
            values[0] = value = list(value)
        meter.spend(len(value))
        _pay_lister(meter, name, value, first, kwargs)
    elif name == "round":
        precision = first if first is not None else kwargs.get("precision", 0)
        if isinstance(precision, int) and abs(precision) > 1000:
            raise OutOfFuelError
    elif name == "join":
        separator = first if first is not None else kwargs.get("d", "")
        values[0] = _paid_items(meter, str(meter.write(separator)), value)
    elif name == "format":
        pay_percent(meter, str(meter.write(value)), kwargs or tuple(values[1:]))
    elif name == "replace":
        _pay_replace(meter, value, *[*values[1:3], *(kwargs.get(key, "") for key in ("old", "new"))][:2])
    elif name not in _READERS.split():
        meter.write(value)
        _pay_margins(meter, name, value, first, kwargs)
    return values


def _pay_lister(meter: Meter, name: str, value: Any, first: Any, kwargs: dict[str, Any]) -> None:
    if name in ("batch", "slice"):
        number = first if first is not None else kwargs.get("linecount", kwargs.get("slices"))
        meter.spend(number if isinstance(number, int) and number > 0 else 0)
    elif name == "sum" and not isinstance(kwargs.get("start", 0), int | float):
        meter.spend(len(value) ** 2 // _CHARACTERS)  # adds lists one by one


def _pay_margins(meter: Meter, name: str, value: Any, first: Any, kwargs: dict[str, Any]) -> None:
    width = first if first is not None else kwargs.get("width", 0)
    if name == "center" and isinstance(width, int):
        meter.spend_text(width)
    elif name == "indent":
        num_characters = width if isinstance(width, int) else len(str(meter.write(width)))
        meter.spend_text(max(0, num_characters) * (1 + str(value).count("\n")))
    elif name == "trim" and isinstance(chars := first or kwargs.get("chars"), str):
        meter.spend_text(len(str(value)) * len(chars) // 16)
