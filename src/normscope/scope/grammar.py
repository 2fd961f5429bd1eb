"""Parser of scope expressions: text -> dimensions, each axis with its position in the text.

expression = { dimension | "[" { dimension } "]" }
dimension  = name | "..." | "(" { name | "[" { name } "]" } ")"
"""

import re
import reprlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from normscope.errors import DtypeError, ScopeError

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
        raise DtypeError(f"a scope is text such as 'n [c h w]', but got {type(text).__name__}: {reprlib.repr(text)}")
    return _Parser(text).run()


class _Parser:
    """A single-pass parser. At most one `[` and one `(` are open at a time."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.dims: list[Dimension] = []
        self.bracket: int | None = None  # position of the open '['
        self.split: int | None = None  # position of the open '('
        self.bracket_in_split = False  # whether that '[' was opened inside that '('
        self.bracket_axes = 0
        self.split_axes: list[Axis] = []
        self.names: set[str] = set()

    def run(self) -> tuple[Dimension, ...]:
        for token in _TOKEN.finditer(self.text):
            word, span = token.group(), token.span()
            match token.lastgroup:
                case "name" | "ellipsis":
                    self._axis(word, span)
                case "invalid":
                    self._invalid(word, span)
                case _:
                    {"[": self._open, "]": self._close, "(": self._open_split, ")": self._close_split}[word](span)
        if self.bracket is not None:
            self._fail("unclosed '['", (self.bracket, self.bracket + 1), "add the matching ']'")
        if self.split is not None:
            self._fail("unclosed '('", (self.split, self.split + 1), "add the matching ')'")
        return tuple(self.dims)

    def _axis(self, name: str, span: Span) -> None:
        if name == "..." and self.split is not None:
            self._fail("'...' cannot be a part of a split axis", span, "name the parts, for instance (g [c])")
        if name in self.names:
            fix = "write '...' once" if name == "..." else "give every axis a name of its own"
            self._fail(f"duplicate axis {name!r}", span, fix)
        self.names.add(name)
        axis = Axis(name, self.bracket is not None, span)
        self.bracket_axes += 1
        if self.split is None:
            self.dims.append(axis)
        else:
            self.split_axes.append(axis)

    def _open(self, span: Span) -> None:
        if self.bracket is not None:
            self._fail(
                "brackets cannot be nested",
                span,
                "close the first '[' before this one, or leave this one out",
            )
        self.bracket, self.bracket_axes = span[0], 0
        self.bracket_in_split = self.split is not None

    def _close(self, span: Span) -> None:
        if self.bracket is None:
            self._fail("unmatched ']'", span, "add the matching '[', or remove it")
        if self.bracket_in_split != (self.split is not None):
            self._crossed(span)
        if self.bracket_axes == 0:
            self._fail(
                "the brackets are empty",
                (self.bracket, span[1]),
                "name the axes that share statistics in them",
            )
        self.bracket = None

    def _open_split(self, span: Span) -> None:
        if self.split is not None:
            self._fail(
                "a split cannot be split again",
                span,
                "list all the parts in one pair, for instance (a b [c])",
            )
        self.split, self.split_axes = span[0], []

    def _close_split(self, span: Span) -> None:
        if self.split is None:
            self._fail("unmatched ')'", span, "add the matching '(', or remove it")
        if self.bracket is not None and self.bracket_in_split:
            self._crossed(span)
        if not self.split_axes:
            self._fail("the split is empty", (self.split, span[1]), "name its parts, for instance (g [c])")
        self.dims.append(SplitDimension(tuple(self.split_axes), (self.split, span[1])))
        self.split, self.split_axes = None, []

    def _crossed(self, span: Span) -> NoReturn:
        self._fail("brackets and parentheses cross", span, "close first what was opened last, for instance (g [c])")

    def _invalid(self, word: str, span: Span) -> NoReturn:
        fixes = {
            ",": "separate axes by spaces",
            ".": "three dots, '...', stand for any number of axes",
            "…": "write three dots, '...', for any number of axes",
            "{": "use [ ] for the axes that share statistics and ( ) to split an axis",
            "}": "use [ ] for the axes that share statistics and ( ) to split an axis",
        }
        fix = fixes.get(word, "axis names are letters a-z, digits and _, and start with a letter")
        if word.isdigit():
            fix = "give the axis a name, and its size beside the scope, for instance '(g [c])' with g=8"
        self._fail(f"unexpected {word!r} in a scope", span, fix)

    def _fail(self, problem: str, span: Span, fix: str) -> NoReturn:
        raise ScopeError(problem, text=self.text, span=span, fix=fix)
