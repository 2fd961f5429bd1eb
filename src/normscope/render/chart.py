"""Charts as inline SVG, without external files, in light and dark mode.

A page with charts includes chart.css in its style and, for tooltips, chart.js; see `pages.asset`.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from normscope.render import chart_axes
from normscope.render.axis_scale import Scale, extend_to_tick, fit_scale
from normscope.render.curves import Point, downsample, quantile
from normscope.render.svg import element, escape, polyline_path

MAX_POINTS = 600  # per line; a screen shows no more
MAX_DOTS = 40
TOP, RIGHT, BOTTOM, LEFT = 10, 14, 40, 56  # margins for axis labels
NARROW = 480  # readable on any screen
COLORS = ("a", "b", "c", "d", "e", "f", "g", "h")
"""CSS classes of line colors, defined for light and dark mode."""

Interval = Sequence[tuple[float, float, float]]
"""Triples of x, lower and upper bound."""


@dataclass(frozen=True)
class ChartLine:
    """One line of a chart.

    Args:
        label: name in the legend.
        points: x and y; a non-finite y leaves a gap, a point with a non-finite x is left out.
        color: one of `COLORS`.
        opacity: below 1 for lines in the background.
        dots: mark every point, if there are few.
        clip_outliers: let single peaks leave the chart instead of flattening the rest.
        dashed: for values that are not measured, such as a theory.
        connected: connect the points; otherwise draw only dots.
        interval: uncertainty of the values: a band around a line, error bars at dots.
        interval_label: what the interval shows, such as "95% of each mean".
        offset: horizontal shift in pixels, so that lines do not hide each other.
        non_finite: for each point, whether NaN or Inf is marked there (only in panels).
        tooltips: text for each point, instead of its value.
    """

    label: str
    points: Sequence[Point]
    color: str = "a"
    opacity: float = 1.0
    dots: bool = False
    clip_outliers: bool = False
    dashed: bool = False
    connected: bool = True
    interval: Interval = ()
    interval_label: str = ""
    offset: float = 0.0
    non_finite: Sequence[bool] = ()
    tooltips: Sequence[str] = ()


@dataclass(frozen=True)
class Chart:
    """A chart with one or more lines.

    Args:
        title, x_label, y_label: texts.
        lines: the lines.
        reference_lines: labeled horizontal lines.
        category_lines: a label, and a reference value for each category.
        categories: names on the x axis at 0, 1, 2, ... instead of numbers.
        y_from_zero: start the y axis at zero.
        log_x, log_y: use logarithmic scales.
        width, height: size of the drawing; it is scaled to fit the page.
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

    def shows_x(self, x: float) -> bool:
        """Whether a point here can be drawn: finite and, on a log axis, above zero."""
        return math.isfinite(x) and (x > 0 or not self.log_x)

    def shows_y(self, y: float) -> bool:
        return math.isfinite(y) and (y > 0 or not self.log_y)

    def scales(self) -> tuple[Scale, Scale]:
        """The x and y scales, which include everything that is shown."""
        xs = [x for line in self.lines for x, _ in line.points]
        ys = [value for _, value in self.reference_lines] + list(self.category_lines[1] if self.category_lines else ())
        for line in self.lines:
            known = [y for _, y in line.points if self.shows_y(y)]
            if known:
                share = 0.005 if line.clip_outliers else 0.0
                ys += [quantile(known, share), quantile(known, 1 - share)]
            ys += [end for _, *ends in line.interval for end in ends if math.isfinite(end)]
        if self.y_from_zero:
            ys.append(0.0)
        if self.categories:
            xs = [-0.3, len(self.categories) - 0.7]
        beside = max((abs(line.offset) for line in self.lines), default=0.0)
        margin = 0.01 + 1.4 * beside / (self.width - LEFT - RIGHT)  # room for offset lines
        x_scale = fit_scale(xs, LEFT, self.width - RIGHT, log=self.log_x, margin=margin)
        y_scale = fit_scale(ys, self.height - BOTTOM, TOP, log=self.log_y)
        return x_scale, extend_to_tick(y_scale, ys, chart_axes.MAX_TICKS)


def draw_chart(chart: Chart) -> str:
    """Draw the chart as an HTML figure.

    >>> figure = draw_chart(Chart("Loss", "step", "nats", [ChartLine("training", [(1, 3.0), (2, 2.0), (3, 1.5)])]))
    >>> figure.startswith('<figure class="chart">'), "<path" in figure
    (True, True)
    """
    seen = [line for line in chart.lines if any(chart.shows_x(x) and chart.shows_y(y) for x, y in line.points)]
    keys = [_key(line) for line in seen if len(chart.lines) > 1]
    keys += [element("span", escape(words), class_="key") for words in describe_intervals(chart)]
    caption = element("figcaption", element("b", escape(chart.title)), *keys)
    if not seen:
        body = [element("p", "No data yet.", class_="faint")]
    elif chart.width <= NARROW:
        body = [_on_page(chart)]
    else:  # the text of a wide chart would be too small on a narrow screen
        body = [_on_page(chart, "wide"), _on_page(replace(chart, width=NARROW, height=NARROW // 2), "narrow")]
    return element("figure", caption, *body, class_="chart")


def _key(line: ChartLine) -> str:
    """An entry of the legend."""
    kind = f"{'point ' if not line.connected else 'dashed ' if line.dashed else ''}{line.color}"
    return element(
        "span", element("i", "", class_=kind, style=f"opacity:{line.opacity:g}"), escape(line.label), class_="key"
    )


def describe_intervals(chart: Chart) -> list[str]:
    """Describe error bars and bands, once for all lines that share a description.

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


def _on_page(chart: Chart, kind: str | None = None) -> str:
    plot = Plot(chart)
    return element(
        "svg",
        *plot.elements(),
        class_=kind,
        viewBox=f"0 0 {chart.width} {chart.height}",
        role="img",
        aria_label=_spoken(chart),
        style=f"min-width:{0.65 * min(chart.width, NARROW):g}px",
        data_lines=json.dumps(plot.hover()),
    )


class Plot:
    """The lines and intervals of a chart in pixels."""

    def __init__(self, chart: Chart) -> None:
        self.chart = chart
        self.x, self.y = chart.scales()
        self.lines = [(line, self._placed(line), self._ends(line)) for line in chart.lines]

    def _placed(self, line: ChartLine) -> list[tuple[float, float, chart_axes.Place | None]]:
        """Points with their pixel positions, None for a gap; values beyond the axis are clipped."""
        chart = self.chart
        shown = downsample([point for point in line.points if chart.shows_x(point[0])], MAX_POINTS, log_x=chart.log_x)
        places = [(self.x.position(at) + line.offset, self._height(y)) if chart.shows_y(y) else None for at, y in shown]
        return [(at, value, place) for (at, value), place in zip(shown, places, strict=True)]

    def _ends(self, line: ChartLine) -> list[tuple[float, float, float]]:
        """Pixel positions of a line's interval: x, lower and upper end, clipped at the edge of the chart."""
        return [
            (self.x.position(at) + line.offset, self._height(low), self._height(high))
            for at, low, high in line.interval
            if self.chart.shows_x(at)
        ]

    def _height(self, value: float) -> float:
        """Pixel position of a value, clipped to the chart."""
        if self.chart.log_y and value <= 0:
            return self.y.start
        return min(max(self.y.position(value), self.y.end), self.y.start)

    def elements(self) -> list[str]:
        """The SVG elements of the chart: grid, reference lines, lines and dots."""
        chart, x, y = self.chart, self.x, self.y
        levels = chart_axes.place_levels(x, y, chart.reference_lines, chart.category_lines)
        body = [*chart_axes.axes(x, y, self._marks(), chart.x_label, chart.y_label), *chart_axes.level_lines(levels)]
        for line, _, ends in self.lines:
            body += _interval(line, ends)
        for line, placed, _ in self.lines:
            visible = [(at, value, place) for at, value, place in placed if place is not None]
            with_dots = (line.dots and len(visible) <= MAX_DOTS) or len(visible) == 1 or not line.connected
            dots = [
                Dot(*place, f"{line.label}: {_value(value)} at {self._name(at)}")
                for at, value, place in visible
                if with_dots
            ]
            body += draw_line(line, (place for _, _, place in placed), dots)
        return body + chart_axes.level_names(x, y, levels, self._segments())

    def _marks(self) -> list[tuple[float, str]]:
        """Tick positions and labels of the x axis, from measured lines only: a theory has more points."""
        chart = self.chart
        if chart.categories:
            marks = [(float(i), name) for i, name in enumerate(chart.categories)]
            return marks[:: math.ceil(len(marks) / (chart.width // 56))]
        measured = [line for line in chart.lines if not line.dashed] or chart.lines
        return chart_axes.tick_marks(self.x, (at for line in measured for at, _ in line.points))

    def _segments(self) -> list[chart_axes.Segment]:
        """Everything drawn, as line segments that labels should avoid."""
        found: list[chart_axes.Segment] = []
        for line, placed, ends in self.lines:
            places = [place for _, _, place in placed if place is not None]
            found += [(place, place) for place in places]
            found += pairwise(places) if line.connected else ()
            found += [((at, high), (at, low)) for at, low, high in ends]
        return found

    def hover(self) -> list[dict[str, Any]]:
        """Tooltip data for the script: label and points of each line."""
        return [
            {
                "label": line.label,
                "points": [
                    [round(place[0], 1), self._name(at), _value(value)]
                    for at, value, place in placed
                    if place is not None
                ],
            }
            for line, placed, _ in self.lines
        ]

    def _name(self, at: float) -> str:
        """The x label of a point; points that share a category are drawn side by side."""
        names = self.chart.categories
        return f"{self.chart.x_label} {names[round(at)] if names else f'{at:.10g}'}"


def _interval(line: ChartLine, ends: list[tuple[float, float, float]]) -> list[str]:
    """A band or error bars."""
    if line.connected and len(ends) > 1:
        there = [f"{at:.1f},{high:.1f}" for at, _, high in ends]
        back = [f"{at:.1f},{low:.1f}" for at, low, _ in reversed(ends)]
        return [element("polygon", class_=f"band {line.color}", points=" ".join(there + back))]
    bar = "M{0:.1f} {3:.1f}h8M{1:.1f} {3:.1f}V{2:.1f}M{0:.1f} {2:.1f}h8"
    return [element("path", class_=f"line {line.color}", d=bar.format(at - 4, at, low, high)) for at, low, high in ends]


@dataclass(frozen=True)
class Dot:
    """A marked point: its place in pixels, its tooltip, and its shape (dot, hollow or cross)."""

    x: float
    y: float
    tooltip: str = ""
    shape: str = "dot"


def draw_line(line: ChartLine, path: Iterable[tuple[float, float] | None], dots: Iterable[Dot]) -> list[str]:
    """Draw the path, if the line is connected, and the dots."""
    opacity, body = None if line.opacity == 1 else f"{line.opacity:.2g}", []
    if line.connected and (data := polyline_path(path)):
        kind = f"line dashed {line.color}" if line.dashed else f"line {line.color}"
        body.append(element("path", class_=kind, opacity=opacity, d=data))
    for dot in dots:
        title = (element("title", escape(dot.tooltip)),) if dot.tooltip else ()
        if dot.shape == "cross":
            cross = f"M{dot.x - 4:.1f} {dot.y - 4:.1f}l8 8m0-8l-8 8"
            body.append(element("path", *title, class_="cross", opacity=opacity, d=cross))
        else:
            kind = f"dot {line.color}" + (" hollow" if dot.shape == "hollow" else "")
            place = {"cx": f"{dot.x:.1f}", "cy": f"{dot.y:.1f}", "r": 3}
            body.append(element("circle", *title, class_=kind, opacity=opacity, **place))
    return body


def _value(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def _spoken(chart: Chart) -> str:
    """Text for screen readers: first and last value of each line."""
    parts = []
    for line in chart.lines:
        known = [value for _, value in line.points if math.isfinite(value)]
        if known:
            parts.append(f"{line.label} from {known[0]:.4g} to {known[-1]:.4g}")
    return f"{chart.title}: {'; '.join(parts)}"
