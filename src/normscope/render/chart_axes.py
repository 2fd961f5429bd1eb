"""Grid, axes, ticks and labeled reference lines of a chart."""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

from normscope.render.axis_scale import Scale, tick_label
from normscope.render.formatting import one_line
from normscope.render.svg import element, escape, horizontal_line

CHAR_WIDTH = 6.0
"""Approximate width of a character in a chart."""
LOGARITHMIC = ", logarithmic"
MAX_TICKS = 6
"""On the y axis."""
MAX_OWN_LABELS = 7
"""Up to this many x values are labeled themselves, instead of round numbers."""
SAMPLE_STEP = 6.0
"""Distance between samples of drawn segments, in pixels."""

HALF = 0.4
"""Half width of a category's reference line, as a fraction of the distance between categories."""

Place = tuple[float, float]
Segment = tuple[Place, Place]
Level = tuple[str, float, float, float]
"""Label, start, end and height of a reference line."""


def axes(x: Scale, y: Scale, marks: Sequence[tuple[float, str]], x_label: str, y_label: str) -> list[str]:
    """Draw the grid and both axes; `marks` are the ticks of the x axis."""
    body = grid(x, y, MAX_TICKS)
    for value, name in marks:
        place = x.position(value)
        ends = {"x1": f"{place:.1f}", "x2": f"{place:.1f}", "y1": f"{y.start:g}", "y2": f"{y.start + 4:g}"}
        body.append(element("line", class_="tick", **ends))
        body.append(text(place, y.start + 17, name, "middle"))
    body.append(horizontal_line("axis", x.start, x.end, y.start))
    middle = (y.start + y.end) / 2
    body.append(text((x.start + x.end) / 2, y.start + 34, x_label + LOGARITHMIC * x.log, "middle"))
    turned = f"rotate(-90 12 {middle:g})"
    body.append(text(12, middle, y_label + LOGARITHMIC * y.log, "middle", turned))
    return body


def grid(x: Scale, y: Scale, max_ticks: int) -> list[str]:
    """Draw a labeled line at each tick of the y axis."""
    body = []
    for tick in y.ticks(max_ticks):
        place = y.position(tick)
        body.append(horizontal_line("grid", x.start, x.end, place))
        body.append(text(x.start - 6, place + 4, tick_label(tick), "end"))
    return body


def tick_marks(x: Scale, values: Iterable[float]) -> list[tuple[float, str]]:
    """Ticks of a numeric axis: on a log axis the values themselves, if there are few.

    >>> [name for _, name in tick_marks(Scale(2, 32, 0, 400, log=True), [2, 4, 8, 32])]
    ['2', '4', '8', '32']
    >>> [name for _, name in tick_marks(Scale(1, 4096, 0, 400, log=True), [1, 5 / 3, 4096])]
    ['1', '1.67', '4096']
    >>> [name for _, name in tick_marks(Scale(0.5, 3.5, 0, 400), [1, 2, 3])]
    ['1', '2', '3']
    """
    known = sorted({float(value) for value in values if math.isfinite(value) and (value > 0 or not x.log)})
    own = [(value, f"{value:.0f}" if value.is_integer() and value < 1e6 else f"{value:.3g}") for value in known]
    if x.log and len(known) <= MAX_OWN_LABELS and _labels_fit(x, own):
        return own
    whole = all(value.is_integer() for value in known)
    ticks = x.ticks(int(x.end - x.start) // 50)
    return [(tick, tick_label(tick)) for tick in ticks if not whole or tick.is_integer()]  # no fractional steps


def _labels_fit(x: Scale, marks: Sequence[tuple[float, str]]) -> bool:
    """Whether the labels fit without overlapping."""
    ends = [
        (x.position(at) - CHAR_WIDTH * len(name) / 2, x.position(at) + CHAR_WIDTH * len(name) / 2) for at, name in marks
    ]
    return all(end + CHAR_WIDTH <= start for (_, end), (start, _) in pairwise(ends))


def place_levels(
    x: Scale, y: Scale, levels: Sequence[tuple[str, float]], own: tuple[str, Sequence[float]] | None
) -> list[Level]:
    """Position the reference lines; those per category span only their category."""
    name, values = own or ("", ())
    across = [(name, value, x.start, x.end) for name, value in levels]
    across += [(name, value, x.position(i - HALF), x.position(i + HALF)) for i, value in enumerate(values)]
    return [
        (name, max(start, x.start), min(end, x.end), y.position(value))
        for name, value, start, end in across
        if math.isfinite(value) and (value > 0 or not y.log)  # others have no position
    ]


def level_lines(levels: Sequence[Level]) -> list[str]:
    return [horizontal_line("level", start, end, height) for _, start, end, height in levels]


def level_names(x: Scale, y: Scale, levels: Sequence[Level], drawn: Sequence[Segment]) -> list[str]:
    """Label each reference line once, where the fewest drawn elements are.

    Args:
        x, y: the scales.
        levels: from `place_levels`.
        drawn: segments of lines, bars and dots.
    """
    ink = [place for stretch in drawn for place in _samples(*stretch)]
    body = []
    for name in dict.fromkeys(level[0] for level in levels):
        width = CHAR_WIDTH * len(name)
        places = [place for level in levels if level[0] == name for place in _beside(level, width, x, y)]
        at, base = min(places, key=lambda place: sum(_covers(place, width, spot) for spot in ink))
        body.append(text(at, base, name, "start", kind="level"))
        ink += _samples((at, base - 4), (at + width, base - 4))  # the next label avoids this one
    return body


def _beside(level: Level, width: float, x: Scale, y: Scale) -> list[Place]:
    """Candidate positions for a label of this width: above or below the line, left first."""
    _, start, end, height = level
    starts = (start + 6, end - 6 - width, (start + end - width) / 2)
    inside = [min(max(at, x.start + 6), max(x.end - 6 - width, x.start + 6)) for at in starts]
    heights = [base for base in (height - 5, height + 13) if y.end + 4 <= base <= y.start - 2]
    return [(at, base) for base in heights or [height - 5] for at in inside]


def _covers(start: Place, width: float, spot: Place) -> bool:
    """Whether a label that starts here covers a point."""
    (left, base), (x, y) = start, spot
    return left - 4 <= x <= left + width + 4 and base - 12 <= y <= base + 4


def _samples(one: Place, other: Place) -> list[Place]:
    """Points along a segment."""
    parts = max(1, math.ceil(math.dist(one, other) / SAMPLE_STEP))
    (x0, y0), (x1, y1) = one, other
    return [(x0 + (x1 - x0) * part / parts, y0 + (y1 - y0) * part / parts) for part in range(parts + 1)]


def text(x: float, y: float, words: str, anchor: str, transform: str | None = None, kind: str = "") -> str:
    """A line of text in a chart; `kind` is its CSS class."""
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text_anchor": anchor, "transform": transform}
    return element("text", escape(one_line(words)), class_=kind or None, **place)
