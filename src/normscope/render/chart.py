"""Charts as inline SVG: they need no script and no other file, and follow the page's light or dark.

A page that shows charts puts `chart_look.CHART_STYLE` into its style, and may put `chart_look.CHART_SCRIPT` into a
script, for values where the pointer is.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import pairwise
from typing import Any

from normscope.render.axis_scale import Scale, extend_to_tick, fit_scale
from normscope.render.chart_axes import (
    MAX_TICKS,
    Segment,
    axes,
    level_lines,
    level_names,
    place_levels,
    tick_marks,
)
from normscope.render.curves import Point, downsample, quantile

MAX_POINTS = 600  # of a line; a screen shows no more
MAX_DOTS = 40
TOP, RIGHT, BOTTOM, LEFT = 10, 14, 40, 56  # the room around the curves, for the axes' words
NARROW = 480  # the width whose words can be read on any screen
COLORS = ("a", "b", "c", "d", "e", "f", "g", "h")
"""The classes of lines, each with a colour in light and in dark."""

Reach = Sequence[tuple[float, float, float]]
"""At each x how far the values reach: from the second to the third."""


@dataclass(frozen=True)
class ChartLine:
    """One curve.

    Args:
        label: its name in the legend.
        points: x and y; where y is not finite there is a gap.
        colour: one of `COLORS`.
        opacity: below one for what should stay in the background.
        dots: mark every point, as long as they are few.
        rough: let single peaks leave the chart, rather than press all the rest flat.
        dashed: for what is not measured, such as a theory.
        joined: draw the line between the points; without it they are dots by themselves.
        reach: how far the values scatter: a band around a line, bars at dots by themselves.
        reach_is: what the reach shows, such as "95% of each mean": a bar that does not say so can be read in two ways.
        beside: how far right of its place all of it is drawn, so that lines do not hide each other.
    """

    label: str
    points: Sequence[Point]
    color: str = "a"
    opacity: float = 1.0
    dots: bool = False
    clip_outliers: bool = False
    dashed: bool = False
    connected: bool = True
    interval: Reach = ()
    interval_label: str = ""
    offset: float = 0.0


@dataclass(frozen=True)
class Chart:
    """Lines over common axes.

    Args:
        title, x_label, y_label: what is seen.
        lines: the curves.
        levels: values of y that deserve a line across, with a name each.
        own_levels: a level that is another for each of `names`: what it is called, and its value at each of them.
        names: what stands below the x axis at 0, 1, 2, ... instead of numbers.
        from_zero: let y begin at zero, where a share of the whole matters more than small differences.
        log_x, log_y: whether equal distances are equal ratios.
        width, height: of the drawing; it is scaled to the room on the page.
    """

    title: str
    x_label: str
    y_label: str
    lines: Sequence[ChartLine]
    reference_lines: Sequence[tuple[str, float]] = ()
    categories: Sequence[str] = ()
    y_from_zero: bool = False
    log_x: bool = False
    log_y: bool = False
    width: int = 480
    height: int = 240
    category_lines: tuple[str, Sequence[float]] | None = None

    def scales(self) -> tuple[Scale, Scale]:
        """Of x and of y, with room for everything that is shown."""
        xs = [x for line in self.lines for x, _ in line.points]
        ys = [value for _, value in self.reference_lines] + list(self.category_lines[1] if self.category_lines else ())
        for line in self.lines:
            known = [y for _, y in line.points if math.isfinite(y) and (y > 0 or not self.log_y)]
            if known:
                ys += (
                    [quantile(known, 0.005), quantile(known, 0.995)] if line.clip_outliers else [min(known), max(known)]
                )
            ys += [end for _, *ends in line.interval for end in ends if math.isfinite(end)]
        if self.y_from_zero:
            ys.append(0.0)
        if self.categories:
            xs = [-0.3, len(self.categories) - 0.7]
        beside = max((abs(line.offset) for line in self.lines), default=0.0)
        margin = 0.01 + 1.4 * beside / (self.width - LEFT - RIGHT)  # what is drawn beside the first is inside too
        x_scale = fit_scale(xs, LEFT, self.width - RIGHT, log=self.log_x, margin=margin)
        y_scale = fit_scale(ys, self.height - BOTTOM, TOP, log=self.log_y)
        return x_scale, extend_to_tick(y_scale, ys, MAX_TICKS)


def draw_chart(chart: Chart) -> str:
    """The chart as a figure, for an HTML page.

    >>> figure = draw_chart(Chart("Loss", "step", "nats", [ChartLine("training", [(1, 3.0), (2, 2.0), (3, 1.5)])]))
    >>> figure.startswith('<figure class="chart">'), "<path" in figure
    (True, True)
    """
    seen = [line for line in chart.lines if any(_can_be_drawn(chart, point) for point in line.points)]
    legend = "".join(
        f'<span class="key"><i class="{"dashed " * line.dashed if line.connected else "point "}{line.color}" '
        f'style="opacity:{line.opacity:g}"></i>{escape(line.label)}</span>'
        for line in seen
        if len(chart.lines) > 1
    )
    legend += "".join(f'<span class="key">{escape(words)}</span>' for words in describe_intervals(chart))
    caption = f"<figcaption><b>{escape(chart.title)}</b>{legend}</figcaption>"
    if not seen:
        body = ['<p class="faint">There is nothing to draw yet.</p>']
    elif chart.width <= NARROW:
        body = _on_page(chart)
    else:  # on a narrow screen the words of a wide one would be too small to read
        body = _on_page(chart, "wide") + _on_page(replace(chart, width=NARROW, height=NARROW // 2), "narrow")
    return "\n".join(['<figure class="chart">', caption, *body, "</figure>"])


def describe_intervals(chart: Chart) -> list[str]:
    """What bars and bands are, once for all lines that have the same.

    >>> line = ChartLine("a", [(1, 2.0)], interval=[(1, 1.0, 3.0)], interval_label="95% of each mean")
    >>> describe_intervals(Chart("", "", "", [line]))
    ['band: 95% of each mean']
    """
    kinds = (
        (line.interval_label, "band" if line.connected else "bars")
        for line in chart.lines
        if line.interval and line.interval_label
    )
    return list(dict.fromkeys(f"{kind}: {words}" for words, kind in kinds))


def _on_page(chart: Chart, kind: str = "") -> list[str]:
    x, y = chart.scales()
    return [
        f'<svg class="{kind}" viewBox="0 0 {chart.width} {chart.height}" role="img" '
        f'aria-label="{escape(_spoken(chart))}" style="min-width:{0.65 * min(chart.width, NARROW):g}px" '
        f'data-lines="{escape(json.dumps(_hover(chart, x, y)))}">',
        *chart_elements(chart),
        "</svg>",
    ]


def chart_elements(chart: Chart) -> list[str]:
    """What is inside of the chart's svg: grid, levels, lines and dots."""
    x, y = chart.scales()
    levels = place_levels(x, y, chart.reference_lines, chart.category_lines)
    body = [*axes(x, y, _marks(chart, x), chart.x_label, chart.y_label), *level_lines(levels)]
    for line in chart.lines:
        body += _reach(line, chart, x, y)
    for line in chart.lines:
        body += _line(line, chart, x, y)
    return body + level_names(x, y, levels, _stretches(chart, x, y))


def _marks(chart: Chart, x: Scale) -> list[tuple[float, str]]:
    """What stands below the x axis, and where; a theory is drawn at more places than were measured."""
    if chart.categories:
        marks = [(float(i), name) for i, name in enumerate(chart.categories)]
        return marks[:: math.ceil(len(marks) / (chart.width // 56))]
    measured = [line for line in chart.lines if not line.dashed] or chart.lines
    return tick_marks(x, (at for line in measured for at, _ in line.points))


def _stretches(chart: Chart, x: Scale, y: Scale) -> list[Segment]:
    """All that is drawn, as straight stretches: what a name should not stand on."""
    found: list[Segment] = []
    for line in chart.lines:
        places = [place for _, _, place in _placed(line, chart, x, y) if place is not None]
        found += [(place, place) for place in places]
        found += pairwise(places) if line.connected else ()
        found += [((at, high), (at, low)) for at, low, high in _ends(line, chart, x, y)]
    return found


def _reach(line: ChartLine, chart: Chart, x: Scale, y: Scale) -> list[str]:
    """A band, or bars; what reaches beyond the chart is cut at its edge."""
    ends = _ends(line, chart, x, y)
    if line.connected and len(ends) > 1:
        there = [f"{at:.1f},{high:.1f}" for at, _, high in ends]
        back = [f"{at:.1f},{low:.1f}" for at, low, _ in reversed(ends)]
        return [f'<polygon class="band {line.color}" points="{" ".join(there + back)}"/>']
    return [
        f'<path class="line {line.color}" d="M{at - 4:.1f} {high:.1f}h8M{at:.1f} {high:.1f}V{low:.1f}M{at - 4:.1f} '
        f'{low:.1f}h8"/>'
        for at, low, high in ends
    ]


def _ends(line: ChartLine, chart: Chart, x: Scale, y: Scale) -> list[tuple[float, float, float]]:
    """The places of a line's reach: along x, and those of the lower and the upper end."""
    return [
        (x.position(at) + line.offset, _height(low, chart, y), _height(high, chart, y))
        for at, low, high in line.interval
        if not (chart.log_x and at <= 0)
    ]


def _height(value: float, chart: Chart, y: Scale) -> float:
    """The place of a value, or the nearest edge."""
    if chart.log_y and value <= 0:
        return y.start
    return min(max(y.position(value), y.end), y.start)


def _line(line: ChartLine, chart: Chart, x: Scale, y: Scale) -> list[str]:
    path, pen_is_down = [], False
    for _, _, place in _placed(line, chart, x, y):
        if place is None:
            pen_is_down = False
            continue
        path.append(f"{'L' if pen_is_down else 'M'}{place[0]:.1f} {place[1]:.1f}")
        pen_is_down = True
    kind = "line dashed" if line.dashed else "line"
    look = f'class="{kind} {line.color}" opacity="{line.opacity:g}"'
    body = [f'<path {look} d="{" ".join(path)}"/>'] if path and line.connected else []
    if (line.dots and len(path) <= MAX_DOTS) or len(path) == 1 or not line.connected:
        for at, value, place in _placed(line, chart, x, y):
            if place is not None:
                words = escape(f"{line.label}: {_value(value)} at {_name(chart, at)}")
                body.append(
                    f'<circle class="dot {line.color}" opacity="{line.opacity:g}" cx="{place[0]:.1f}" '
                    f'cy="{place[1]:.1f}" r="3"><title>{words}</title></circle>'
                )
    return body


def _placed(line: ChartLine, chart: Chart, x: Scale, y: Scale) -> list[tuple[float, float, tuple[float, float] | None]]:
    """The points and where they go, None for a gap. What is beyond the chart's ends stays at its edge."""
    placed: list[tuple[float, float, tuple[float, float] | None]] = []
    shown = [(at, value) for at, value in line.points if at > 0 or not chart.log_x]
    for at, value in downsample(shown, MAX_POINTS, log_x=chart.log_x):
        if _can_be_drawn(chart, (at, value)):
            placed.append((at, value, (x.position(at) + line.offset, _height(value, chart, y))))
        else:
            placed.append((at, value, None))
    return placed


def _can_be_drawn(chart: Chart, point: Point) -> bool:
    """Whether a point has a place: on a logarithmic axis only what is above zero has one."""
    at, value = point
    return math.isfinite(value) and (value > 0 or not chart.log_y) and (at > 0 or not chart.log_x)


def _hover(chart: Chart, x: Scale, y: Scale) -> list[dict[str, Any]]:
    """For the script: each line's name, and its points: the place along x, and what to say there."""
    return [
        {
            "label": line.label,
            "points": [
                [round(place[0], 1), _name(chart, at), _value(value)]
                for at, value, place in _placed(line, chart, x, y)
                if place is not None
            ],
        }
        for line in chart.lines
    ]


def _name(chart: Chart, at: float) -> str:
    """What stands below a point; those that share a name are drawn side by side, a little off its place."""
    return f"{chart.x_label} {chart.categories[round(at)] if chart.categories else f'{at:.10g}'}"


def _value(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def _spoken(chart: Chart) -> str:
    """What a screen reader says: each line's first and last value."""
    parts = []
    for line in chart.lines:
        known = [value for _, value in line.points if math.isfinite(value)]
        if known:
            parts.append(f"{line.label} from {known[0]:.4g} to {known[-1]:.4g}")
    return f"{chart.title}: {'; '.join(parts)}"
