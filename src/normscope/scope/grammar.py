"""Parser of scope expressions: text -> dimensions, each axis with its position in the text.

expression = { dimension | "[" { dimension } "]" }
dimension  = name | "..." | "(" { name | "[" { name } "]" } ")"
"""

import re
import reprlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from normscope.errors import ArgumentTypeError, ScopeError

Span = tuple[int, int]

_TOKEN = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9_]*)|(?P<ellipsis>\.\.\.)|(?P<bracket>[\[\]()])|(?P<invalid>\d+|\S)")


@dataclass(frozen=True)
class Axis:
    """A named axis, or `...`, with its position in the text."""

    name: str
    bracketed: bool
    span: Span

    @property
    def is_ellipsis(self) -> bool:
        return self.name == "..."


@dataclass(frozen=True)
class SplitDimension:
    """A dimension of the tensor that is split into several axes: `(g [c])`."""

    axes: tuple[Axis, ...]
    span: Span


Dimension = Axis | SplitDimension


def flatten_axes(dims: Sequence[Dimension]) -> Iterator[Axis]:
    """Yield every axis in order, including the parts of split dimensions."""
    for dim in dims:
        if isinstance(dim, SplitDimension):
            yield from dim.axes
        else:
            yield dim


def is_ellipsis(dim: Dimension) -> bool:
    return isinstance(dim, Axis) and dim.is_ellipsis


def full_span(text: str) -> Span:
    """Return the span of the whole expression, without surrounding whitespace."""
    start = len(text) - len(text.lstrip())
    return start, max(start, len(text.rstrip()))


def parse(text: str) -> tuple[Dimension, ...]:
    """Parse an expression; errors raise a `ScopeError` that points at the position."""
    if not isinstance(text, str):
        raise ArgumentTypeError(
            f"a scope is text such as 'n [c h w]', but got {type(text).__name__}: {reprlib.repr(text)}"
        )
    return _Parser(text).run()


_CLOSING = {"[": "]", "(": ")"}
_NESTED = {
    "[": ("brackets cannot be nested", "close the first '[' before this one, or leave this one out"),
    "(": ("a split cannot be split again", "list all the parts in one pair, for instance (a b [c])"),
}
_EMPTY = {
    "[": ("the brackets are empty", "name the axes that share statistics in them"),
    "(": ("the split is empty", "name its parts, for instance (g [c])"),
}
_FIXES = {
    ",": "separate axes by spaces",
    ".": "three dots, '...', stand for any number of axes",
    "…": "write three dots, '...', for any number of axes",
    **dict.fromkeys("{}", "use [ ] for the axes that share statistics and ( ) to split an axis"),
}


class _Parser:
    """A single-pass parser. At most one `[` and one `(` are open at a time."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.dims: list[Dimension] = []
        self.names: set[str] = set()
        self.open: dict[str, tuple[int, int]] = {}  # each open '[' or '(': its position, and the dimensions before it

    def run(self) -> tuple[Dimension, ...]:
        for token in _TOKEN.finditer(self.text):
            word, span = token.group(), token.span()
            if token.lastgroup == "invalid":
                self._invalid(word, span)
            elif token.lastgroup != "bracket":
                self._axis(word, span)
            elif word in _CLOSING:
                self._open(word, span)
            else:
                self._close(word, span)
        for opening, closing in _CLOSING.items():
            if opening in self.open:
                start, _ = self.open[opening]
                self._fail(f"unclosed {opening!r}", (start, start + 1), f"add the matching {closing!r}")
        return tuple(self.dims)

    def _axis(self, name: str, span: Span) -> None:
        if name == "..." and "(" in self.open:
            self._fail("'...' cannot be a part of a split axis", span, "name the parts, for instance (g [c])")
        if name in self.names:
            fix = "write '...' once" if name == "..." else "use a different name for each axis"
            self._fail(f"duplicate axis {name!r}", span, fix)
        self.names.add(name)
        self.dims.append(Axis(name, "[" in self.open, span))

    def _open(self, opening: str, span: Span) -> None:
        if opening in self.open:
            problem, fix = _NESTED[opening]
            self._fail(problem, span, fix)
        self.open[opening] = span[0], len(self.dims)

    def _close(self, closing: str, span: Span) -> None:
        opening = "[" if closing == "]" else "("
        if opening not in self.open:
            self._fail(f"unmatched {closing!r}", span, f"add the matching {opening!r}, or remove it")
        if next(reversed(self.open)) != opening:
            fix = "close the innermost bracket first, for example (g [c])"
            self._fail("brackets and parentheses cross", span, fix)
        start, before = self.open.pop(opening)
        whole = start, span[1]
        if len(self.dims) == before:
            problem, fix = _EMPTY[opening]
            self._fail(problem, whole, fix)
        if opening == "(":
            self.dims[before:] = [SplitDimension(tuple(flatten_axes(self.dims[before:])), whole)]

    def _invalid(self, word: str, span: Span) -> NoReturn:
        fix = _FIXES.get(word, "axis names are letters a-z, digits and _, and start with a letter")
        if word.isdigit():
            fix = "give the axis a name, and its size beside the scope, for instance '(g [c])' with g=8"
        self._fail(f"unexpected {word!r} in a scope", span, fix)

    def _fail(self, problem: str, span: Span, fix: str) -> NoReturn:
        raise ScopeError(problem, text=self.text, span=span, fix=fix)
