"""The Jinja environment of chat templates: what Hugging Face templates use, with limits.

A template comes with a model and may be hostile. The sandbox denies access to Python's internals; the limits here deny
what needs neither: endless loops, and values that fill the memory.
"""

import ctypes
import datetime
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from jinja2 import TemplateError, nodes, pass_environment
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.filters import do_batch, make_attrgetter, sync_do_slice
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MARK_START, MARK_END = "\ufdd0", "\ufdd1"
"""Noncharacters of Unicode, which no text has, around what is in {% generation %}."""
MAX_SECONDS = 2.0
MAX_OUTPUT = 2**22
"""Characters of a rendered conversation, and of every string and list on the way, with what is in it."""
MAX_BITS = 1024
"""Bits of every number."""
MAX_TEMPLATE = 2**18
# fmt: off
_KEPT_FILTERS = frozenset((
    "abs", "batch", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float",
    "forceescape", "groupby", "int", "items", "join", "last", "length", "list", "lower", "map", "max", "min",
    "reject", "rejectattr", "replace", "reverse", "round", "safe", "select", "selectattr", "slice", "sort",
    "string", "sum", "title", "trim", "truncate", "unique", "upper",
))
# fmt: on


class TemplateTimeoutError(Exception):
    """Raised in a template that runs for too long."""


class _Generation(Extension):
    """The tag {% generation %}, which marks what the assistant writes."""

    tags = {"generation"}  # noqa: RUF012  # as in jinja2

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller: Macro) -> str:
        return f"{MARK_START}{caller()}{MARK_END}"


class _Namespace(Namespace):
    """Is not shown with its contents, which may be namespaces with the same contents, and so on."""

    def __repr__(self) -> str:
        return "<Namespace>"


class _CodeGenerator(CodeGenerator):
    """Sends the operator ~ and literals of containers through functions that have a limit."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802  # as in jinja2
        self.write("environment.concat((")
        for part in node.nodes:
            self.write("str(")
            self.visit(part, frame)
            self.write("), ")
        self.write("))")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:  # noqa: N802
        self._visit_limited(super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802
        self._visit_limited(super().visit_Dict, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:  # noqa: N802
        if node.ctx == "load":
            self._visit_limited(super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def _visit_limited(self, visit: Callable[..., None], node: nodes.Node, frame: Frame) -> None:
        self.write("environment.limited(")
        visit(node, frame)
        self.write(")")


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox with limits on products, powers, formats and calls."""

    code_generator_class = _CodeGenerator
    concat = staticmethod(lambda parts: _concat(parts))
    limited = staticmethod(lambda value: _limited(value))
    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, LoopControlExtension])
        self.filters = {name: self.filters[name] for name in self.filters if name in _KEPT_FILTERS}
        self.filters["tojson"] = _to_json
        self.filters |= {"batch": _batch, "join": _join, "replace": _replace, "slice": _slice}
        self.filters = {name: _limited_filter(one) for name, one in self.filters.items()}
        self.globals = {"range": self.globals["range"], "dict": dict, "namespace": _Namespace}
        self.globals |= {"raise_exception": _raise, "strftime_now": _strftime_now}

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            raise SecurityError("powers are not available in chat templates")
        if operator == "%" and isinstance(left, str):
            _check_format(left)
        if operator == "*":
            for one, other in ((left, right), (right, left)):
                if isinstance(one, str | list | tuple) and isinstance(other, int) and len(one) * other > MAX_OUTPUT:
                    raise SecurityError("a product is too long")
            if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > MAX_BITS:
                raise SecurityError("a number is too large")
        return _limited(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        owner = getattr(value, "__self__", None)
        if isinstance(owner, str) and value.__name__ in ("format", "format_map"):
            _check_format(owner)
        return super().wrap_str_format(value)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805  # as in jinja2
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if name in ("encode", "to_bytes", "from_bytes"):  # bytes have the methods of strings, but none of their limits
            raise SecurityError(f"{name} is not available in chat templates")
        if isinstance(owner, str):
            if name in ("center", "ljust", "rjust", "zfill", "expandtabs") and any(
                isinstance(value, int) and value > 10_000 for value in (*args, *kwargs.values())
            ):
                raise SecurityError(f"{name} is asked for too many characters")
            if name == "translate":
                raise SecurityError("translate is not available in chat templates")
            if name == "replace" and len(args) >= 2 and all(isinstance(one, str) for one in args[:2]):
                _check_replaced(owner, *args[:2])
            if name == "join":
                args = (_checked_parts(owner, *args),)
        return _limited(super().call(__context, __obj, *args, **kwargs))


def render(template: Any, **variables: Any) -> str:
    """Render a template within the limits; raises a TemplateError or TemplateTimeoutError."""
    parts, size = [], 0
    with _deadline(MAX_SECONDS):
        for part in template.generate(**variables):
            parts.append(part)
            size += len(part)
            if size > MAX_OUTPUT:
                raise SecurityError(f"the output has more than {MAX_OUTPUT:,} characters")
    return "".join(parts)


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """Raise TemplateTimeoutError in this thread if the block takes longer. Works in any thread, unlike signals."""
    thread, lock, is_over = threading.get_ident(), threading.Lock(), False

    def interrupt() -> None:
        with lock:
            if not is_over:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread), ctypes.py_object(TemplateTimeoutError)
                )

    timer = threading.Timer(seconds, interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with lock:
            is_over = True
        timer.cancel()


def _check_format(text: str) -> None:
    if re.search(r"[0-9]{4}|\{[^}]*\{|%[^a-zA-Z%]*\*", text):
        raise SecurityError("a format asks for too many characters")


def _limited(value: Any) -> Any:
    """The value, unless it is too large: a container counts what is in it each time, as its text would.

    Everything that a template makes goes through this. So [x, x] of [x, x] of ... stops, before something that can't be
    interrupted, such as comparing it or writing it out, takes forever.
    """
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise SecurityError("a number is too large")
    size, pending = 0, [value]
    while pending:
        one = pending.pop()
        if isinstance(one, str | list | tuple | dict):
            size += len(one)
            if size > MAX_OUTPUT:
                raise SecurityError("a value is too long")
        if isinstance(one, dict):
            pending += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple):
            pending += one
    return value


def _limited_filter(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def limited(*arguments: Any, **options: Any) -> Any:
        return _limited(function(*arguments, **options))

    return limited


def _concat(parts: Iterable[str]) -> str:
    found, size = [], 0
    for part in parts:
        found.append(part)
        size += len(part)
        if size > MAX_OUTPUT:
            raise SecurityError("a value is too long")
    return "".join(found)


def _checked_parts(separator: str, parts: Iterable[Any]) -> list[str]:
    found, size = [], 0
    for part in parts:
        found.append(str(part))
        size += len(found[-1]) + len(separator)
        if size > MAX_OUTPUT:
            raise SecurityError("join: the result is too long")
    return found


def _check_replaced(text: str, old: str, new: str) -> None:
    if len(text) + (text.count(old) if old else len(text) + 1) * len(new) > MAX_OUTPUT:
        raise SecurityError("replace: the result is too long")


def _replace(text: Any, old: Any, new: Any, count: int = -1) -> str:
    _check_replaced(str(text), str(old), str(new))
    return str(text).replace(str(old), str(new), -1 if count is None else count)


@pass_environment
def _join(environment: Any, values: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    if attribute is not None:
        values = map(make_attrgetter(environment, attribute), values)
    return str(d).join(_checked_parts(str(d), values))


def _batch(values: Iterable[Any], linecount: int, fill_with: Any = None) -> Iterator[list[Any]]:
    _check_count(linecount)
    return do_batch(values, linecount, fill_with)


def _slice(values: Any, slices: int, fill_with: Any = None) -> Iterator[list[Any]]:
    _check_count(slices)
    return sync_do_slice(values, slices, fill_with)


def _check_count(count: Any) -> None:
    if not isinstance(count, int) or count > 10_000:
        raise SecurityError("a filter is asked for too many values")


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    if indent is not None and not 0 <= indent <= 16:
        raise SecurityError("tojson: the indentation is too large")
    known = {name: options[name] for name in ("separators", "sort_keys") if name in options}
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **known)


def _raise(message: str) -> str:
    raise TemplateError(message)


_strftime_now: Callable[[str], str] = lambda form: datetime.datetime.now().strftime(form[:200])  # noqa: E731
