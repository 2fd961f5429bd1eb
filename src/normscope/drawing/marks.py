"""The marks of a drawing, in cells: rectangles, wires, labels, operator signs, and groups of them.

Every group has an axis: the column where the dataflow enters at the top and leaves at the bottom. Columns are relative
to the axis, rows to the top of the group. So groups can be stacked without knowing their contents.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

Cell = tuple[int, int]
"""A column and a row."""


@dataclass(frozen=True)
class Rectangle:
    """A box or a frame: its upper left cell, its size in cells, and its text."""

    x: int
    y: int
    width: int
    height: int
    lines: tuple[str, ...]
    kind: Literal["module", "function", "norm", "frame", "repeated"]
    axis: int = 0
    """The column where a frame is entered. Its title is to the right of it."""
    module: str | None = None
    """The name of the module that the box is; None for a function."""

    @property
    def is_frame(self) -> bool:
        return self.kind in ("frame", "repeated")


@dataclass(frozen=True)
class Wire:
    """A line with corners. A thick wire is the residual stream."""

    points: tuple[Cell, ...]
    is_thick: bool = False
    has_arrowhead: bool = False


@dataclass(frozen=True)
class Label:
    """Text centered on a cell, or starting at it."""

    x: int
    y: int
    text: str
    kind: Literal["shape", "name", "faint"]
    is_centered: bool = True

    @property
    def first_column(self) -> int:
        return self.x - len(self.text) // 2 if self.is_centered else self.x


@dataclass(frozen=True)
class OperatorSign:
    """The sign of an addition or multiplication. `is_join` marks additions to the residual stream."""

    x: int
    y: int
    text: str
    is_join: bool = False


Mark = Rectangle | Wire | Label | OperatorSign


@dataclass
class MarkGroup:
    """Marks around an axis, with their extent to the left, to the right and down."""

    left: int = 0
    right: int = 0
    height: int = 0
    marks: list[Mark] = field(default_factory=list)

    @property
    def width(self) -> int:
        return self.left + self.right + 1

    def add(self, *marks: Mark) -> None:
        self.marks += marks
        for mark in marks:
            first, last = _column_range(mark)
            self.left, self.right = max(self.left, -first), max(self.right, last)

    def place(self, other: "MarkGroup", x: int, y: int) -> None:
        """Add another group with its axis at this column and its top at this row."""
        self.add(*(_translate(mark, x, y) for mark in other.marks))
        self.left, self.right = max(self.left, other.left - x), max(self.right, other.right + x)
        self.height = max(self.height, y + other.height)


def _column_range(mark: Mark) -> tuple[int, int]:
    """Return the first and the last column of a mark."""
    if isinstance(mark, Rectangle):
        return mark.x, mark.x + mark.width - 1
    if isinstance(mark, Wire):
        return min(x for x, _ in mark.points), max(x for x, _ in mark.points)
    if isinstance(mark, Label):
        return mark.first_column, mark.first_column + len(mark.text) - 1
    return mark.x - 1, mark.x + 1


def _translate(mark: Mark, x: int, y: int) -> Mark:
    if isinstance(mark, Wire):
        return replace(mark, points=tuple((column + x, row + y) for column, row in mark.points))
    if isinstance(mark, Rectangle):
        return replace(mark, x=mark.x + x, y=mark.y + y, axis=mark.axis + x)
    return replace(mark, x=mark.x + x, y=mark.y + y)
