"""Draw the named norms side by side, each as a block of cells.

The block is the one of the Group Normalization paper (https://arxiv.org/abs/1803.08494): samples in depth, channels
across, and all positions of an image downwards.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from string import ascii_lowercase

from normscope.drawing.scopes.statistic_map import statistic_at
from normscope.render.svg import element, palette_color, shade, svg_document, text
from normscope.scope import Plan, Scope

Point = tuple[float, float]

ACROSS, DOWN, DEPTH = (23.0, 0.0), (0.0, 11.5), (17.0, -13.0)  # where the next cell is, along each edge of a block
SPACE = 186.0  # from one block to the next
TOP = 126.0  # of the front faces


@dataclass(frozen=True)
class GalleryEntry:
    """One norm. `across`, `down` and `deep` are the axes of the split tensor along each edge of the block."""

    title: str
    where: str
    scope: str
    shape: tuple[int, ...] = (2, 4, 3, 3)
    sizes: dict[str, int] = field(default_factory=dict)
    across: tuple[int, ...] = (1,)
    down: tuple[int, ...] = (2, 3)
    deep: tuple[int, ...] = (0,)
    labels: tuple[str, str, str] = ("c", "h w", "n")

    @property
    def plan(self) -> Plan:
        return Scope.parse(self.scope).bind(self.shape, **self.sizes)


GALLERY = (
    GalleryEntry("LayerNorm, RMSNorm", "in a transformer", "... [d]", (2, 4, 9), down=(2,), labels=("s", "d", "b")),
    GalleryEntry("LayerNorm", "in a convnet", "n [c h w]"),
    GalleryEntry("BatchNorm", "in a convnet", "[n] c [...]"),
    GalleryEntry("InstanceNorm", "in a convnet", "n c [...]"),
    GalleryEntry(
        *("GroupNorm", "in a convnet", "n (g [c]) [...]"),
        sizes={"g": 2},
        across=(1, 2),
        down=(3, 4),
        labels=("c, in g=2 groups", "h w", "n"),
    ),
)


def gallery_svg(entries: tuple[GalleryEntry, ...] = GALLERY) -> str:
    """Return the gallery as an SVG document."""
    width, height = SPACE * len(entries) + 28, 342
    body = [line for i, entry in enumerate(entries) for line in _entry(entry, SPACE * i + 44)]
    note = "Cells with the same color and letter share one mean. The brackets of a scope hold the axes it reduces over."
    body.append(text(width / 2, height - 18, note, "faint middle"))
    described = [f"{entry.title} {entry.where}: {entry.scope}, {' '.join(_counted(entry.plan))}." for entry in entries]
    return svg_document(width, height, "The scopes of the named norms", " ".join(described), body)


def _entry(entry: GalleryEntry, x: float) -> Iterator[str]:
    plan = entry.plan
    sizes = [math.prod(plan.split_shape[i] for i in axes) for axes in (entry.across, entry.down, entry.deep)]
    right, bottom = x + sizes[0] * ACROSS[0], TOP + sizes[1] * DOWN[1]
    middle = (x + right + sizes[2] * DEPTH[0]) / 2
    yield text(middle, 34, entry.title, "ink title middle")
    yield text(middle, 52, entry.where, "faint middle")
    yield text(middle, 75, entry.scope, "ink code middle")
    yield from _faces(entry, plan, (x, TOP), sizes)
    across, down, deep = entry.labels
    yield text((x + right) / 2, bottom + 19, across, "faint middle")
    turned = f' transform="rotate(-90 {x - 10:g} {(TOP + bottom) / 2:g})"'
    yield text(x - 10, (TOP + bottom) / 2, down, "faint middle", turned)
    yield text(right + sizes[2] * DEPTH[0] / 2 + 9, bottom + sizes[2] * DEPTH[1] / 2 + 8, deep, "faint")
    for i, line in enumerate(_counted(plan)):
        yield text(middle, bottom + 42 + 17 * i, line, "ink middle")


def _faces(entry: GalleryEntry, plan: Plan, corner: Point, sizes: list[int]) -> Iterator[str]:
    """Yield the three visible faces. The top face has letters, so that color is not the only cue."""
    wide, high, deep = sizes
    order: dict[int, int] = {}

    def number(i: int, j: int, k: int) -> int:
        return order.setdefault(_statistic(entry, plan, i, j, k), len(order))

    for k in range(deep):
        for i in range(wide):
            yield _cell(_at(corner, i, 0, k), ACROSS, DEPTH, shade(palette_color(number(i, 0, k)), 1.25))
    for j in range(high):
        for k in range(deep):
            yield _cell(_at(corner, wide, j, k), DEPTH, DOWN, shade(palette_color(number(wide - 1, j, k)), 0.8))
        for i in range(wide):
            yield _cell(_at(corner, i, j, 0), ACROSS, DOWN, palette_color(number(i, j, 0)))
    for k in range(deep):
        for i in range(wide):
            x, y = _at(corner, i + 0.5, 0, k + 0.5)
            lean = f"matrix(1 0 {DEPTH[0] / DEPTH[1] * 0.8:.3g} 1 {x:g} {y + 3:g})"
            letter = ascii_lowercase[number(i, 0, k) % 26]
            yield text(0, 0, letter, "letter", f' style="font-size:10.5px" transform="{lean}"')


def _statistic(entry: GalleryEntry, plan: Plan, i: int, j: int, k: int) -> int:
    """Return the statistic of the cell at i across, j down and k deep."""
    index = [0] * len(plan.split_shape)
    for axes, position in ((entry.across, i), (entry.down, j), (entry.deep, k)):
        for axis in reversed(axes):
            position, index[axis] = divmod(position, plan.split_shape[axis])
    return statistic_at(plan, index)


def _at(corner: Point, i: float, j: float, k: float) -> Point:
    x, y = (start + i * a + j * b + k * c for start, a, b, c in zip(corner, ACROSS, DOWN, DEPTH, strict=True))
    return x, y


def _cell(at: Point, one: Point, other: Point, fill: str) -> str:
    (x, y), (ax, ay), (bx, by) = at, one, other
    path = f"M{x:g} {y:g}l{ax:g} {ay:g}l{bx:g} {by:g}l{-ax:g} {-ay:g}z"
    return element("path", class_="cell", d=path, fill=fill)


def _counted(plan: Plan) -> tuple[str, str]:
    return f"{math.prod(plan.statistics_shape)} means,", f"each over {plan.count} values"
