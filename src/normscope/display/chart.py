"""Charts as inline SVG: they need no script and no other file, and follow the page's light or dark.

A page that shows charts puts `CHART_STYLE` into its style, and may put `CHART_SCRIPT` into a script, for values where
the pointer is.
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
COLOURS = ("a", "b", "c", "d")
"""The classes of lines, each with a colour in light and in dark."""


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
    """

    label: str
    points: Sequence[Point]
    colour: str = "a"
    opacity: float = 1.0
    dots: bool = False
    rough: bool = False


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
        f'<span class="key"><i class="{line.colour}" style="opacity:{line.opacity:g}"></i>{escape(line.label)}</span>'
        for line in seen
        if len(chart.lines) > 1
    )
    caption = f"<figcaption><b>{escape(chart.title)}</b>{legend}</figcaption>"
    if not seen:
        body = ['<p class="faint">There is nothing to draw yet.</p>']
    elif chart.width <= NARROW:
        body = _drawing(chart)
    else:  # on a narrow screen the words of a wide one would be too small to read
        body = _drawing(chart, "wide") + _drawing(replace(chart, width=NARROW, height=NARROW // 2), "narrow")
    return "\n".join(['<figure class="chart">', caption, *body, "</figure>"])


def _drawing(chart: Chart, kind: str = "") -> list[str]:
    x, y = chart.scales()
    body = [*_grid(chart, x, y), *_levels(chart, x, y)]
    for line in chart.lines:
        body += _line(line, chart, x, y)
    return [
        f'<svg class="{kind}" viewBox="0 0 {chart.width} {chart.height}" role="img" '
        f'aria-label="{escape(_spoken(chart))}" style="min-width:{0.65 * min(chart.width, NARROW):g}px" '
        f'data-lines="{escape(json.dumps(_hover(chart, x, y)))}">',
        *body,
        "</svg>",
    ]


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


def _line(line: Line, chart: Chart, x: Scale, y: Scale) -> list[str]:
    path, pen_is_down = [], False
    for _, _, place in _placed(line, chart, x, y):
        if place is None:
            pen_is_down = False
            continue
        path.append(f"{'L' if pen_is_down else 'M'}{place[0]:.1f} {place[1]:.1f}")
        pen_is_down = True
    look = f'class="line {line.colour}" opacity="{line.opacity:g}"'
    body = [f'<path {look} d="{" ".join(path)}"/>'] if path else []
    if (line.dots and len(path) <= MOST_DOTS) or len(path) == 1:
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
            placed.append((at, value, (x.place(at), min(max(y.place(value), y.end), y.start))))
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


CHART_STYLE = """\
:root { --a: #2f6fb7; --b: #b35900; --c: #2a7d3f; --d: #8250a8; --grid: #e6e9ed; --axis: #8c959f; --level: #b4232c }
@media (prefers-color-scheme: dark) {
  :root { --a: #8ec1f0; --b: #ffb870; --c: #93d68c; --d: #cfa9e3; --grid: #242b33; --axis: #6e7681; --level: #f59a98 }
}
.chart { margin: 0; position: relative; overflow-x: auto; overflow-y: hidden }
.chart svg { display: block; width: 100%; height: auto; touch-action: pan-y }
.chart svg.narrow { display: none }
@media (max-width: 700px) { .chart svg.wide { display: none } .chart svg.narrow { display: block } }
.chart text { fill: var(--faint); font-size: 11px; font-variant-numeric: tabular-nums }
.chart text.level { fill: var(--level) }
.chart .grid { stroke: var(--grid) }
.chart .axis, .chart .tick { stroke: var(--axis) }
.chart .level { stroke: var(--level); stroke-dasharray: 5 4 }
.chart text.level { stroke: none }
.chart .line { fill: none; stroke: currentColor; stroke-width: 1.6; stroke-linejoin: round }
.chart .dot { fill: currentColor; stroke: var(--paper) }
.chart .a { color: var(--a) } .chart .b { color: var(--b) } .chart .c { color: var(--c) } .chart .d { color: var(--d) }
.chart figcaption { display: flex; flex-wrap: wrap; gap: 2px 14px; margin-bottom: 4px }
.chart .key { color: var(--faint); font-size: 13px; white-space: nowrap }
.chart .key i { display: inline-block; width: 14px; height: 3px; margin: 0 5px 3px 0; background: currentColor }
.chart .pointer { stroke: var(--axis); stroke-dasharray: 2 3 }
.chart output { position: absolute; pointer-events: none; padding: 4px 8px; border: 1px solid var(--edge);
  border-radius: 6px; background: var(--paper); font-size: 12px; white-space: pre; z-index: 1 }
"""

CHART_SCRIPT = """\
for (const svg of document.querySelectorAll(".chart svg")) {
  const lines = JSON.parse(svg.dataset.lines).filter(line => line.points.length);
  const box = document.createElement("output");
  const pointer = document.createElementNS(svg.namespaceURI, "line");
  pointer.setAttribute("class", "pointer");
  box.hidden = true;
  svg.parentNode.append(box);
  svg.addEventListener("pointermove", event => {
    const frame = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / frame.width;
    const x = (event.clientX - frame.left) * scale;
    const nearest = lines.map(line => line.points.reduce((a, b) => Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a));
    if (!nearest.length) return;
    const first = nearest.reduce((a, b) => Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a);
    const words = lines.map((line, i) =>
      line.label + " " + nearest[i][2] + (nearest[i][1] === first[1] ? "" : " (" + nearest[i][1] + ")"));
    box.textContent = [first[1], ...words].join("\\n");
    box.hidden = false;
    const room = frame.width - box.offsetWidth - 8;
    box.style.left = Math.max(0, Math.min(first[0] / scale + 12, room)) + "px";
    box.style.top = frame.top - svg.parentNode.getBoundingClientRect().top + 12 + "px";
    const bottom = svg.viewBox.baseVal.height - 40;
    for (const [name, value] of [["x1", first[0]], ["x2", first[0]], ["y1", 8], ["y2", bottom]])
      pointer.setAttribute(name, value);
    svg.append(pointer);
  });
  svg.addEventListener("pointerleave", () => { box.hidden = true; pointer.remove(); });
}
"""
