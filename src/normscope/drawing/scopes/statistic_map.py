"""Compute which statistic each value of a tensor belongs to, arranged in boxes of rows and columns.

The last two axes form a box. The axes before them form boxes side by side. If there are two or more of those, the first
one forms rows of boxes, one below the other.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from string import ascii_letters, ascii_lowercase

from normscope.render.formatting import pluralize
from normscope.scope import Plan, Scope
from normscope.scope.grammar import flatten_axes

Limit = tuple[int, int]
"""Show an axis in full up to the first size; of a longer axis, show only the second size."""

ROWS, COLUMNS = (6, 3), (12, 4)
OUTER: dict[int, list[Limit]] = {1: [(6, 4)], 2: [(3, 2), (6, 4)], 3: [(2, 2), (3, 2), (3, 2)]}
LONE_ROWS, LONE_COLUMNS = (12, 8), (24, 16)  # of a single box


@dataclass(frozen=True)
class CellGrid:
    """The last two axes at one index of the others. Cells are indices of statistics, in order of appearance."""

    label: str
    rows: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class GridRow:
    """The boxes at one index of the first axis."""

    label: str
    boxes: tuple[CellGrid, ...]


@dataclass(frozen=True)
class StatisticMap:
    """The part of a scope on a shape that a drawing shows."""

    scope: str
    plan: Plan
    names: tuple[str, ...]
    shown: tuple[int, ...]
    bands: tuple[GridRow, ...]

    @property
    def rows_are_cut(self) -> bool:
        return len(self.shown) > 1 and self.shown[-2] < self.plan.split_shape[-2]

    @property
    def columns_are_cut(self) -> bool:
        return self.shown[-1] < self.plan.split_shape[-1]

    @cached_property
    def letters(self) -> tuple[str, ...]:
        """A name for each visible statistic: one letter if there are enough, otherwise several."""
        count = 1 + max((s for band in self.bands for box in band.boxes for row in box.rows for s in row), default=-1)
        if count <= len(ascii_letters):
            return tuple(ascii_letters[:count])
        width = math.ceil(math.log(count, len(ascii_lowercase)) - 1e-9)
        words = map("".join, itertools.product(ascii_lowercase, repeat=width))
        return tuple(itertools.islice(words, count))

    @property
    def heading(self) -> str:
        """The shape, and the sizes of the named axes."""
        return f"shape {' × '.join(map(str, self.plan.shape))}, read as {_label(self.names, self.plan.split_shape)}"

    @property
    def legend(self) -> tuple[str, ...]:
        """What the drawing shows, and what it leaves out."""
        means, values = math.prod(self.plan.statistics_shape), self.plan.count
        each = f"each over {pluralize(values, 'value')}" if means != 1 else f"over {pluralize(values, 'value')}"
        lines = [f"{pluralize(means, 'mean')}, {each}. Cells with the same letter share one mean."]
        if not self.bands:
            return (*lines, "There is nothing to draw: the tensor holds no values.")
        down = f"{self.names[-2]} down, " if len(self.names) > 1 else ""
        box = "the box" if len(self.bands) == len(self.bands[0].boxes) == 1 else "each box"
        lines.append(f"In {box}: {down}{self.names[-1]} across.")
        axes = zip(self.names, self.shown, self.plan.split_shape, strict=True)
        cut = [f"{name} {shown} of {size}" for name, shown, size in axes if shown < size]
        if cut:
            lines.append(f"Too large to draw in full. Shown: {', '.join(cut)}.")
        return tuple(lines)


def measure(scope: str | Scope, shape: Sequence[int], sizes: dict[str, int]) -> StatisticMap:
    """Compute which values share a statistic, for the part of the tensor that a drawing can show."""
    scope = Scope.parse(scope)
    plan = scope.bind(shape, **sizes)
    dims = enumerate(scope.dimensions(len(plan.shape)))
    names = tuple(f"dim{i}" if axis.is_ellipsis else axis.name for i, dim in dims for axis in flatten_axes([dim]))
    shown = _shown(plan.split_shape)
    bands = tuple(_bands(plan, names, shown)) if math.prod(plan.shape) else ()
    return StatisticMap(" ".join(scope.text.split()), plan, names, shown, bands)


def statistic_at(plan: Plan, index: Sequence[int]) -> int:
    """Return the index of the statistic of a value of the split tensor, in row-major order."""
    number = 0
    for i in plan.kept:
        number = number * plan.split_shape[i] + index[i]
    return number


def _bands(plan: Plan, names: Sequence[str], shown: Sequence[int]) -> Iterator[GridRow]:
    order: dict[int, int] = {}  # in order of appearance

    def cell(index: tuple[int, ...]) -> int:
        return order.setdefault(statistic_at(plan, index), len(order))

    def box(outer: tuple[int, ...], label: str) -> CellGrid:
        rows = [(*outer, i) for i in range(shown[-2])] if len(shown) > 1 else [()]
        return CellGrid(label, tuple(tuple(cell((*row, i)) for i in range(shown[-1])) for row in rows))

    outer = [range(size) for size in shown[:-2]]
    leading = 1 if len(outer) > 1 else 0
    for first in itertools.product(*outer[:leading]):
        others = itertools.product(*outer[leading:])
        boxes = [box((*first, *other), _label(names[leading:], other)) for other in others]
        yield GridRow(_label(names, first), tuple(boxes))


def _shown(shape: Sequence[int]) -> tuple[int, ...]:
    """Return how much of each axis is shown."""
    count = len(shape) - 2
    outer = OUTER.get(count) or [*[(1, 1)] * (count - 4), *[(2, 2)] * 4]
    limits = [*outer, ROWS, COLUMNS] if count > 0 else [LONE_ROWS, LONE_COLUMNS]
    sizes = zip(shape, limits[-len(shape) :], strict=True)
    return tuple(size if size <= full else cut for size, (full, cut) in sizes)


def _label(names: Sequence[str], index: Sequence[int]) -> str:
    return " ".join(f"{name}={i}" for name, i in zip(names, index, strict=False))
