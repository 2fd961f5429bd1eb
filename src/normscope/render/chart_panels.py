"""Charts below each other that share one x axis: named points, grouped into blocks. Their y axes are logarithmic."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from normscope.render.axis_scale import Scale, fit_scale
from normscope.render.chart import Chart, ChartLine, Dot, draw_line
from normscope.render.chart_axes import grid, text
from normscope.render.formatting import one_line, truncate
from normscope.render.svg import element, escape, figure, horizontal_line
from normscope.render.text_columns import fit_left

WIDTH, LEFT, RIGHT = 1000, 64, 16
TITLE, GAP = 26, 14
"""Space above a panel for its title and legend, and between panels."""

MAX_LABEL = 20
"""Longer axis labels are truncated in the middle."""

MAX_DOTS = 120


def panel(title: str, lines: Sequence[ChartLine], height: int, levels: Sequence[tuple[str, float]] = ()) -> Chart:
    """A chart to be drawn as a panel of this height, with labeled horizontal lines."""
    return Chart(title, "", "", lines, levels, log_y=True, width=WIDTH, height=height)


def measured_line(
    label: str, color: str, values: Sequence[tuple[float, float | None, bool]], **options: Any
) -> ChartLine:
    """A line through x, value, and whether NaN or Inf is marked there; None is a gap."""
    return ChartLine(
        label,
        [(x, math.nan if value is None else value) for x, value, _ in values],
        color,
        non_finite=[value is not None and (mark or not math.isfinite(value)) for _, value, mark in values],
        **options,
    )


def shared_x_scale(points: int) -> Scale:
    """The shared x axis."""
    return Scale(-0.6, max(points, 1) - 0.4, LEFT, WIDTH - RIGHT)


def draw_panels(panels: Sequence[Chart], x: Scale, *, headroom: int = 0) -> tuple[list[str], float]:
    """Draw the panels from the top; also returns where the last one ends.

    Args:
        headroom: space between the title and the frame of the first panel.
    """
    body: list[str] = []
    bottom = -float(GAP)
    for number, chart in enumerate(panels):
        top = bottom + GAP
        bottom = top + TITLE + (0 if number else headroom) + chart.height
        y = fit_scale(_known(chart), bottom - 12, bottom - chart.height + 6, log=True)
        body += [_title(chart, top), *grid(x, y, max(2, chart.height // 32))]
        body.append(horizontal_line("axis", x.start, x.end, bottom))
        for name, value in chart.reference_lines:
            body.append(horizontal_line("level", x.start, x.end, y.position(value)))
            body.append(text(x.end - 4, y.position(value) - 5, name, "end", kind="level"))
        for line in chart.lines:
            body += _line(line, x, y, bottom)
        if not any(any(line.non_finite) or not all(math.isnan(y) for _, y in line.points) for line in chart.lines):
            body.append(text((x.start + x.end) / 2, bottom - chart.height / 2, "no data", "middle"))
    return body, bottom


def _known(chart: Chart) -> list[float]:
    """Values for the y axis; it spans at least a factor of ten, so that small differences look small."""
    known = [clamp_for_log(value) for line in chart.lines for _, value in line.points if _has_logarithm(value)]
    known += [value for _, value in chart.reference_lines]
    if known and max(known) < 10 * min(known):
        middle = math.sqrt(max(known) * min(known))
        known += [middle / math.sqrt(10), middle * math.sqrt(10)]
    return known


def _title(chart: Chart, top: float) -> str:
    """Title and legend in one text element, so that they cannot overlap."""
    parts = [element("tspan", escape(chart.title), class_="name")]
    for line in chart.lines:
        if line.label:
            faint = None if line.opacity == 1 else f"fill-opacity:{line.opacity:.2f}"
            parts.append(element("tspan", "●", dx=14, class_=f"{line.color} mark", style=faint))
            parts.append(element("tspan", escape(truncate(line.label, 28)), dx=4))
    return element("text", *parts, x=LEFT, y=f"{top + 16:g}")


def _line(line: ChartLine, x: Scale, y: Scale, bottom: float) -> list[str]:
    path: list[tuple[float, float] | None] = []
    dots = []
    for i, (at, value) in enumerate(line.points):
        fits, left = _has_logarithm(value), x.position(at)
        height = y.position(clamp_for_log(value)) if fits else bottom  # zero and NaN are marked at the bottom
        path.append((left, height) if fits else None)
        cross = i < len(line.non_finite) and line.non_finite[i]
        if cross or not math.isnan(value):
            shape = "cross" if cross else "dot" if value > 0 else "hollow"
            if len(line.points) <= MAX_DOTS or shape != "dot":
                dots.append(Dot(left, height, line.tooltips[i] if line.tooltips else "", shape))
    drawn = draw_line(replace(line, opacity=1.0), path, dots)
    return drawn if line.opacity == 1 else [element("g", *drawn, opacity=f"{line.opacity:.2f}")]


def draw_figure(
    title: str,
    panels: tuple[list[str], float],
    labels: Sequence[tuple[str, str]],
    x: Scale,
    *,
    behind: Sequence[str] = (),
    front: Sequence[str] = (),
    caption: str = "",
) -> str:
    """Draw drawn panels, which end at a height, with the labels and bands of the points.

    Args:
        title: for screen readers.
        labels: label and block of each point.
        behind, front: drawn between the bands and the panels, and on top.
    """
    body, bottom = panels
    names, room = _axis(labels, x, bottom)
    blocks = [block for block in blocks_of([block for _, block in labels]) if block[0]]
    bands = [draw_column("band", first, last, x, bottom) for _, first, last in blocks[::2]]  # every second block
    return figure(WIDTH, bottom + room, title, [*bands, *behind, *body, *names, *front], caption)


def _axis(labels: Sequence[tuple[str, str]], x: Scale, top: float) -> tuple[list[str], float]:
    """Draw the labels of the points and, below them, of their blocks; also returns the height used."""
    pitch = x.position(1) - x.position(0)
    longest = max((len(own) for own, _ in labels), default=0)
    body, room = [], 8.0
    if 6.4 * longest <= pitch - 4:
        body = [text(x.position(i), top + 16, own, "middle") for i, (own, _) in enumerate(labels)]
        room += 16
    elif pitch >= 12:
        for i, (own, _) in enumerate(labels):
            left = x.position(i) + 4
            turned = f"rotate(-55 {left:.1f} {top + 12:g})"
            name = fit_left(one_line(own), min(longest, MAX_LABEL), "…").rstrip()
            body.append(text(left, top + 12, name, "end", turned))
        room += 12 + 5.4 * min(longest, MAX_LABEL)
    blocks = blocks_of([block for _, block in labels])
    if any(block for block, _, _ in blocks):
        body += _block_names(blocks, x, top + room)
        room += 22
    return body, room


def draw_column(kind: str, first: float, last: float, x: Scale, bottom: float, *content: str) -> str:
    """A rectangle across all panels, from one point to another."""
    left, right = x.position(first - 0.5), x.position(last + 0.5)
    size = {"width": f"{right - left:.1f}", "height": f"{bottom - TITLE:g}"}
    return element("rect", *content, class_=kind, x=f"{left:.1f}", y=f"{TITLE:g}", **size)


def _block_names(blocks: Sequence[tuple[str, int, int]], x: Scale, top: float) -> list[str]:
    body = []
    free = -math.inf  # where the last name ended
    for block, first, last in blocks:
        if not block:
            continue
        left, right = x.position(first - 0.4), x.position(last + 0.4)
        body.append(horizontal_line("axis", left, right, top))
        for name in (block, block.rpartition(".")[2]):
            wide, middle = 6.4 * len(name), (left + right) / 2
            if wide <= right - left + 8 or (name != block and middle - wide / 2 > free + 4):
                body.append(text(middle, top + 15, name, "middle"))
                free = middle + wide / 2
                break
    return body


def blocks_of(names: Sequence[str]) -> list[tuple[str, int, int]]:
    """Runs of the same block as (name, first index, last index).

    >>> blocks_of(["", "a", "a", "b"])
    [('', 0, 0), ('a', 1, 2), ('b', 3, 3)]
    """
    runs = [(name, [i for i, _ in run]) for name, run in groupby(enumerate(names), key=lambda pair: pair[1])]
    return [(name, indices[0], indices[-1]) for name, indices in runs]


def clamp_for_log(value: float) -> float:
    """Clamp extreme values, so that their ratios do not overflow."""
    return min(max(value, 1e-140), 1e140)


def _has_logarithm(value: float) -> bool:
    return math.isfinite(value) and value > 0
