"""Charts as inline SVG: they need no script and no other file, and follow the page's light or dark.

A page that shows charts puts `chart_look.CHART_STYLE` into its style, and may put `chart_look.CHART_SCRIPT` into a
script, for values where the pointer is.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from normscope.display.scale import Scale, fit, tick_label
from normscope.display.series import Point, quantile, thin

MOST_POINTS = 600  # of a line; a screen shows no more
MOST_DOTS = 40
TOP, RIGHT, BOTTOM, LEFT = 10, 14, 40, 56  # the room around the curves, for the axes' words
NARROW = 480  # the width whose words can be read on any screen
LOGARITHMIC = ", logarithmic"
COLOURS = ("a", "b", "c", "d", "e", "f", "g", "h")
"""The classes of lines, each with a colour in light and in dark."""

Reach = Sequence[tuple[float, float, float]]
"""At each x how far the values reach: from the second to the third."""


@dataclass(frozen=True)
class Line:
    """One curve.

    Args:
        label: its name in the legend.
        points: x and y; where y is not finite there is a gap.
        colour: one of `COLOURS`.
        opacity: below one for what should stay in the background.
        dots: mark every point, as long as they are few.
        rough: let single peaks leave the chart, rather than press all the rest flat.
        dashed: for what is not measured, such as a theory.
        joined: draw the line between the points; without it they are dots by themselves.
        reach: how far the values scatter: a band around a line, bars at dots by themselves.
    """

    label: str
    points: Sequence[Point]
    colour: str = "a"
    opacity: float = 1.0
    dots: bool = False
    rough: bool = False
    dashed: bool = False
    joined: bool = True
    reach: Reach = ()


@dataclass(frozen=True)
class Chart:
    """Lines over common axes.

    Args:
        title, x_label, y_label: what is seen.
        lines: the curves.
        levels: values of y that deserve a line across, with a name each.
        names: what stands below the x axis at 0, 1, 2, ... instead of numbers.
        from_zero: let y begin at zero, where a share of the whole matters more than small differences.
        log_x, log_y: whether equal distances are equal ratios.
        width, height: of the drawing; it is scaled to the room on the page.
    """

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    levels: Sequence[tuple[str, float]] = ()
    names: Sequence[str] = ()
    from_zero: bool = False
    log_x: bool = False
    log_y: bool = False
    width: int = 480
    height: int = 240

    def scales(self) -> tuple[Scale, Scale]:
        """Of x and of y, with room for everything that is shown."""
        xs = [x for line in self.lines for x, _ in line.points]
        ys = [value for _, value in self.levels]
        for line in self.lines:
            known = [y for _, y in line.points if math.isfinite(y) and (y > 0 or not self.log_y)]
            if known:
                ys += [quantile(known, 0.005), quantile(known, 0.995)] if line.rough else [min(known), max(known)]
            ys += [end for _, *ends in line.reach for end in ends if math.isfinite(end)]
        if self.from_zero:
            ys.append(0.0)
        if self.names:
            xs = [-0.3, len(self.names) - 0.7]
        x_scale = fit(xs, LEFT, self.width - RIGHT, log=self.log_x, air=0.01)
        return x_scale, fit(ys, self.height - BOTTOM, TOP, log=self.log_y)


def draw_chart(chart: Chart) -> str:
    """The chart as a figure, for an HTML page.

    >>> figure = draw_chart(Chart("Loss", "step", "nats", [Line("training", [(1, 3.0), (2, 2.0), (3, 1.5)])]))
    >>> figure.startswith('<figure class="chart">'), "<path" in figure
    (True, True)
    """
    seen = [line for line in chart.lines if any(_can_be_drawn(chart, point) for point in line.points)]
    legend = "".join(
        f'<span class="key"><i class="{"dashed " * line.dashed}{line.colour}" style="opacity:{line.opacity:g}"></i>'
        f"{escape(line.label)}</span>"
        for line in seen
        if len(chart.lines) > 1
    )
    caption = f"<figcaption><b>{escape(chart.title)}</b>{legend}</figcaption>"
    if not seen:
        body = ['<p class="faint">There is nothing to draw yet.</p>']
    elif chart.width <= NARROW:
        body = _on_page(chart)
    else:  # on a narrow screen the words of a wide one would be too small to read
        body = _on_page(chart, "wide") + _on_page(replace(chart, width=NARROW, height=NARROW // 2), "narrow")
    return "\n".join(['<figure class="chart">', caption, *body, "</figure>"])


def _on_page(chart: Chart, kind: str = "") -> list[str]:
    x, y = chart.scales()
    return [
        f'<svg class="{kind}" viewBox="0 0 {chart.width} {chart.height}" role="img" '
        f'aria-label="{escape(_spoken(chart))}" style="min-width:{0.65 * min(chart.width, NARROW):g}px" '
        f'data-lines="{escape(json.dumps(_hover(chart, x, y)))}">',
        *drawing(chart),
        "</svg>",
    ]


def drawing(chart: Chart) -> list[str]:
    """What is inside of the chart's svg: grid, levels, lines and dots."""
    x, y = chart.scales()
    body = [*_grid(chart, x, y), *_levels(chart, x, y)]
    for line in chart.lines:
        body += _reach(line, chart, x, y)
    for line in chart.lines:
        body += _line(line, chart, x, y)
    return body


def _grid(chart: Chart, x: Scale, y: Scale) -> list[str]:
    body = []
    for tick in y.ticks(6):
        place = y.place(tick)
        body.append(f'<line class="grid" x1="{x.start:g}" x2="{x.end:g}" y1="{place:.1f}" y2="{place:.1f}"/>')
        body.append(_text(x.start - 6, place + 4, tick_label(tick), "end"))
    if chart.names:
        marks = [(float(i), name) for i, name in enumerate(chart.names)]
        marks = marks[:: math.ceil(len(marks) / (chart.width // 56))]
    else:
        whole = all(float(at).is_integer() for line in chart.lines for at, _ in line.points)
        ticks = [tick for tick in x.ticks(chart.width // 60) if not whole or tick.is_integer()]  # no half a step
        marks = [(tick, tick_label(tick)) for tick in ticks]
    for value, name in marks:
        place = x.place(value)
        body.append(f'<line class="tick" x1="{place:.1f}" x2="{place:.1f}" y1="{y.start:g}" y2="{y.start + 4:g}"/>')
        body.append(_text(place, y.start + 17, name, "middle"))
    body.append(f'<line class="axis" x1="{x.start:g}" x2="{x.end:g}" y1="{y.start:g}" y2="{y.start:g}"/>')
    middle = (y.start + y.end) / 2
    body.append(_text((x.start + x.end) / 2, y.start + 34, chart.x_label + LOGARITHMIC * x.log, "middle"))
    body.append(
        _text(12, middle, chart.y_label + LOGARITHMIC * y.log, "middle", f' transform="rotate(-90 12 {middle:g})"')
    )
    return body


def _levels(chart: Chart, x: Scale, y: Scale) -> list[str]:
    body = []
    for name, value in chart.levels:
        place = y.place(value)
        body.append(f'<line class="level" x1="{x.start:g}" x2="{x.end:g}" y1="{place:.1f}" y2="{place:.1f}"/>')
        # On the left, where curves that fall are still far above it.
        body.append(_text(x.start + 6, place - 5, name, "start", kind="level"))
    return body


def _reach(line: Line, chart: Chart, x: Scale, y: Scale) -> list[str]:
    """A band, or bars; what reaches beyond the chart is cut at its edge."""
    ends = [
        (x.place(at), _height(low, chart, y), _height(high, chart, y))
        for at, low, high in line.reach
        if not (chart.log_x and at <= 0)
    ]
    if line.joined and len(ends) > 1:
        there = [f"{at:.1f},{high:.1f}" for at, _, high in ends]
        back = [f"{at:.1f},{low:.1f}" for at, low, _ in reversed(ends)]
        return [f'<polygon class="band {line.colour}" points="{" ".join(there + back)}"/>']
    return [
        f'<path class="line {line.colour}" d="M{at - 4:.1f} {high:.1f}h8M{at:.1f} {high:.1f}V{low:.1f}M{at - 4:.1f} '
        f'{low:.1f}h8"/>'
        for at, low, high in ends
    ]


def _height(value: float, chart: Chart, y: Scale) -> float:
    """The place of a value, or the nearest edge."""
    if chart.log_y and value <= 0:
        return y.start
    return min(max(y.place(value), y.end), y.start)


def _line(line: Line, chart: Chart, x: Scale, y: Scale) -> list[str]:
    path, pen_is_down = [], False
    for _, _, place in _placed(line, chart, x, y):
        if place is None:
            pen_is_down = False
            continue
        path.append(f"{'L' if pen_is_down else 'M'}{place[0]:.1f} {place[1]:.1f}")
        pen_is_down = True
    kind = "line dashed" if line.dashed else "line"
    look = f'class="{kind} {line.colour}" opacity="{line.opacity:g}"'
    body = [f'<path {look} d="{" ".join(path)}"/>'] if path and line.joined else []
    if (line.dots and len(path) <= MOST_DOTS) or len(path) == 1 or not line.joined:
        for at, value, place in _placed(line, chart, x, y):
            if place is not None:
                words = escape(f"{line.label}: {_value(value)} at {_name(chart, at)}")
                body.append(
                    f'<circle class="dot {line.colour}" opacity="{line.opacity:g}" cx="{place[0]:.1f}" '
                    f'cy="{place[1]:.1f}" r="3"><title>{words}</title></circle>'
                )
    return body


def _placed(line: Line, chart: Chart, x: Scale, y: Scale) -> list[tuple[float, float, tuple[float, float] | None]]:
    """The points and where they go, None for a gap. What is beyond the chart's ends stays at its edge."""
    placed: list[tuple[float, float, tuple[float, float] | None]] = []
    shown = [(at, value) for at, value in line.points if at > 0 or not chart.log_x]
    for at, value in thin(shown, MOST_POINTS, log_x=chart.log_x):
        if _can_be_drawn(chart, (at, value)):
            placed.append((at, value, (x.place(at), _height(value, chart, y))))
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
    return f"{chart.x_label} {chart.names[int(at)] if chart.names else f'{at:.10g}'}"


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


def _text(x: float, y: float, words: str, anchor: str, more: str = "", kind: str = "") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(words)}</text>'
