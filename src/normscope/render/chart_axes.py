"""What stands around the lines of a chart: the grid, the axes with their words, and levels with their names."""

import math
from collections.abc import Iterable, Sequence
from html import escape
from itertools import pairwise

from normscope.render.axis_scale import Scale, tick_label

LETTER = 6.0
"""The width of a letter of a chart's words, about."""
LOGARITHMIC = ", logarithmic"
MAX_TICKS = 6
"""Of the y axis."""
FEW = 7
"""So many places along x are named each, rather than round numbers near them."""
STEP = 6.0
"""How near each other the samples of what is drawn are."""

HALF = 0.4
"""Of the way to the next name below the axis: how far a level of one name reaches to both sides."""

Place = tuple[float, float]
Segment = tuple[Place, Place]
Level = tuple[str, float, float, float]
"""A name, from where to where its line goes, and at which height."""


def axes(x: Scale, y: Scale, marks: Sequence[tuple[float, str]], x_label: str, y_label: str) -> list[str]:
    """The grid, both axes, and what stands at them; `marks` are what stands below the x axis."""
    body = []
    for tick in y.ticks(MAX_TICKS):
        place = y.position(tick)
        body.append(f'<line class="grid" x1="{x.start:g}" x2="{x.end:g}" y1="{place:.1f}" y2="{place:.1f}"/>')
        body.append(text(x.start - 6, place + 4, tick_label(tick), "end"))
    for value, name in marks:
        place = x.position(value)
        body.append(f'<line class="tick" x1="{place:.1f}" x2="{place:.1f}" y1="{y.start:g}" y2="{y.start + 4:g}"/>')
        body.append(text(place, y.start + 17, name, "middle"))
    body.append(f'<line class="axis" x1="{x.start:g}" x2="{x.end:g}" y1="{y.start:g}" y2="{y.start:g}"/>')
    middle = (y.start + y.end) / 2
    body.append(text((x.start + x.end) / 2, y.start + 34, x_label + LOGARITHMIC * x.log, "middle"))
    turned = f' transform="rotate(-90 12 {middle:g})"'
    body.append(text(12, middle, y_label + LOGARITHMIC * y.log, "middle", turned))
    return body


def tick_marks(x: Scale, values: Iterable[float]) -> list[tuple[float, str]]:
    """What to write below an axis of numbers: on a logarithmic one the values themselves, if they are few.

    >>> [name for _, name in tick_marks(Scale(2, 32, 0, 400, log=True), [2, 4, 8, 32])]
    ['2', '4', '8', '32']
    >>> [name for _, name in tick_marks(Scale(1, 4096, 0, 400, log=True), [1, 5 / 3, 4096])]
    ['1', '1.67', '4096']
    >>> [name for _, name in tick_marks(Scale(0.5, 3.5, 0, 400), [1, 2, 3])]
    ['1', '2', '3']
    """
    known = sorted({float(value) for value in values if value > 0 or not x.log})
    own = [(value, f"{value:.0f}" if value.is_integer() and value < 1e6 else f"{value:.3g}") for value in known]
    if x.log and len(known) <= FEW and _have_room(x, own):
        return own
    whole = all(value.is_integer() for value in known)
    ticks = x.ticks(int(x.end - x.start) // 50)
    return [(tick, tick_label(tick)) for tick in ticks if not whole or tick.is_integer()]  # no half a step


def _have_room(x: Scale, marks: Sequence[tuple[float, str]]) -> bool:
    """Whether these names stand beside each other and not on one another."""
    ends = [(x.position(at) - LETTER * len(name) / 2, x.position(at) + LETTER * len(name) / 2) for at, name in marks]
    return all(end + LETTER <= start for (_, end), (start, _) in pairwise(ends))


def place_levels(
    x: Scale, y: Scale, levels: Sequence[tuple[str, float]], own: tuple[str, Sequence[float]] | None
) -> list[Level]:
    """Levels by where they are drawn; one that is another for each name below the axis stays near the names."""
    name, values = own or ("", ())
    across = [(name, value, x.start, x.end) for name, value in levels]
    across += [(name, value, x.position(i - HALF), x.position(i + HALF)) for i, value in enumerate(values)]
    return [
        (name, max(start, x.start), min(end, x.end), y.position(value))
        for name, value, start, end in across
        if math.isfinite(value) and (value > 0 or not y.log)  # others have no place; fit() made no room either
    ]


def level_lines(levels: Sequence[Level]) -> list[str]:
    return [
        f'<line class="level" x1="{start:.1f}" x2="{end:.1f}" y1="{height:.1f}" y2="{height:.1f}"/>'
        for _, start, end, height in levels
    ]


def level_names(x: Scale, y: Scale, levels: Sequence[Level], drawn: Sequence[Segment]) -> list[str]:
    """The name of each level, once, beside a line of it where the least is drawn.

    Args:
        x, y: the scales, whose ends are the frame.
        levels: as `place_levels` gives them.
        drawn: where lines, bars and dots are.
    """
    ink = [place for stretch in drawn for place in _samples(*stretch)]
    body = []
    for name in dict.fromkeys(level[0] for level in levels):
        width = LETTER * len(name)
        places = [place for level in levels if level[0] == name for place in _beside(level, width, x, y)]
        at, base = min(places, key=lambda place: sum(_covers(place, width, spot) for spot in ink))
        body.append(text(at, base, name, "start", kind="level"))
        ink += _samples((at, base - 4), (at + width, base - 4))  # the next name goes elsewhere
    return body


def _beside(level: Level, width: float, x: Scale, y: Scale) -> list[Place]:
    """Where a name of this width may begin: above the line or below; on the left first, where curves fall later."""
    _, start, end, height = level
    starts = (start + 6, end - 6 - width, (start + end - width) / 2)
    inside = [min(max(at, x.start + 6), max(x.end - 6 - width, x.start + 6)) for at in starts]
    heights = [base for base in (height - 5, height + 13) if y.end + 4 <= base <= y.start - 2]
    return [(at, base) for base in heights or [height - 5] for at in inside]


def _covers(start: Place, width: float, spot: Place) -> bool:
    """Whether a name that begins here is written over a spot."""
    (left, base), (x, y) = start, spot
    return left - 4 <= x <= left + width + 4 and base - 12 <= y <= base + 4


def _samples(one: Place, other: Place) -> list[Place]:
    """Places along a straight stretch."""
    parts = max(1, math.ceil(math.dist(one, other) / STEP))
    (x0, y0), (x1, y1) = one, other
    return [(x0 + (x1 - x0) * part / parts, y0 + (y1 - y0) * part / parts) for part in range(parts + 1)]


def text(x: float, y: float, words: str, anchor: str, more: str = "", kind: str = "") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(words)}</text>'
