"""Stacked chart panels that share one x axis: the points along the model."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from normscope.diagnostics.report.text_columns import fit_left
from normscope.render.axis_scale import Scale, fit_scale, tick_label
from normscope.render.formatting import format_number, one_line
from normscope.render.svg import element, escape, horizontal_line

WIDTH, LEFT, RIGHT = 1000, 64, 16
TITLE = 26
"""Space above a panel's frame for title and legend."""

MAX_LABEL = 20
"""Longer axis labels are truncated in the middle."""


@dataclass(frozen=True)
class PanelSeries:
    """A series of values.

    Args:
        label: name in the legend; "" for none.
        color: CSS class of its color.
        points: x, value, and whether some of its elements are non-finite.
        joined: connect the points with a line.
        words: tooltip of each point, if any.
        opacity: below 1 for series in the background.
    """

    label: str
    color: str
    points: Sequence[tuple[float, float | None, bool]]
    joined: bool = True
    words: Sequence[str] = ()
    opacity: float = 1.0


@dataclass(frozen=True)
class Panel:
    """One panel of series.

    Args:
        title: its title.
        traces: the series.
        height: height of the frame.
        levels: labeled horizontal lines.
        arrow: direction of the signal: "→", "←", or "".
        air: space between title and frame, for flags.
    """

    title: str
    traces: Sequence[PanelSeries]
    height: int
    levels: Sequence[tuple[str, float]] = ()
    arrow: str = ""
    air: int = 0

    @property
    def total_height(self) -> int:
        """Height from the top of the title to the bottom of the frame."""
        return TITLE + self.air + self.height


def shared_x_scale(places: int) -> Scale:
    """The shared x axis."""
    return Scale(-0.6, max(places, 1) - 0.4, LEFT, WIDTH - RIGHT)


def draw_panel(panel: Panel, x: Scale, top: float) -> list[str]:
    """Draw a panel with its title at `top`."""
    start, end = top + panel.total_height, top + panel.total_height - panel.height
    values = [value for trace in panel.traces for _, value, _ in trace.points if _fits(value)]
    levels = [value for _, value in panel.levels]
    known = [clamp_for_log(value) for value in values if value is not None] + levels
    if known and max(known) < 10 * min(known):  # keep small differences small
        middle = math.sqrt(max(known) * min(known))
        known += [middle / math.sqrt(10), middle * math.sqrt(10)]
    y = fit_scale(known, start - 12, end + 6, log=True)
    body = [_title(panel, top)]
    for tick in y.ticks(max(2, panel.height // 32)):
        place = y.position(tick)
        body.append(horizontal_line("grid", x.start, x.end, place))
        body.append(text(x.start - 7, place + 4, tick_label(tick), "end"))
    body.append(f'<line class="axis" x1="{x.start:g}" x2="{x.end:g}" y1="{start:g}" y2="{start:g}"/>')
    for name, value in panel.levels:
        place = y.position(value)
        body.append(horizontal_line("level", x.start, x.end, place))
        body.append(text(x.end - 4, place - 5, name, "end", kind="level"))
    for trace in panel.traces:
        body += _trace(trace, x, y, start)
    if all(value is None for trace in panel.traces for _, value, _ in trace.points):
        body.append(text((x.start + x.end) / 2, (start + end) / 2, "no data", "middle"))
    return body


def _title(panel: Panel, top: float) -> str:
    """Title and legend in one text element, so that they cannot overlap."""
    parts = [f'<tspan class="name">{escape(panel.title)}</tspan>']
    if panel.arrow:
        parts.append(f'<tspan dx="6">{panel.arrow}</tspan>')
    for trace in panel.traces:
        if trace.label:
            faint = "" if trace.opacity == 1 else f' style="fill-opacity:{trace.opacity:.2f}"'
            parts.append(f'<tspan dx="14" class="{trace.color} mark"{faint}>●</tspan>')
            parts.append(f'<tspan dx="4">{escape(truncate(trace.label, 28))}</tspan>')
    return f'<text x="{LEFT}" y="{top + 16:g}">{"".join(parts)}</text>'


def _trace(trace: PanelSeries, x: Scale, y: Scale, bottom: float) -> list[str]:
    path, dots, connected = [], [], False
    for number, (place, value, non_finite) in enumerate(trace.points):
        left = x.position(place)
        if value is None:
            connected = False
            continue
        if _fits(value):
            at = y.position(clamp_for_log(value))
            path.append(f"{'L' if connected else 'M'}{left:.1f} {at:.1f}")
        else:
            at = bottom  # zero and nan have no position on a log scale
        connected = _fits(value)
        words = trace.words[number] if number < len(trace.words) else ""
        if len(trace.points) <= 120 or non_finite or not connected:
            dots.append(_dot(left, at, value, non_finite, trace.color, words))
    line = [f'<path class="line {trace.color}" d="{"".join(path)}"/>'] if trace.joined and path else []
    return line + dots if trace.opacity == 1 else [f'<g opacity="{trace.opacity:.2f}">', *line, *dots, "</g>"]


def _dot(x: float, y: float, value: float, non_finite: bool, color: str, words: str) -> str:
    title = (element("title", escape(words)),) if words else ()
    if non_finite or not math.isfinite(value):
        return element("path", *title, class_="cross", d=f"M{x - 4:.1f} {y - 4:.1f}l8 8m0-8l-8 8")
    hollow = "" if value > 0 else " hollow"
    return element("circle", *title, class_=f"dot {color}{hollow}", cx=f"{x:.1f}", cy=f"{y:.1f}", r=3)


def draw_axis(labels: Sequence[tuple[str, str]], x: Scale, top: float) -> tuple[list[str], float]:
    """Draw the labels of the points and, below them, of their blocks; also returns the height used.

    Args:
        labels: label and block of each point.
    """
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


def draw_bands(labels: Sequence[tuple[str, str]], x: Scale, top: float, bottom: float) -> list[str]:
    """Shade every second block across all panels."""
    blocks = [block for block in blocks_of([block for _, block in labels]) if block[0]]
    half = (x.position(1) - x.position(0)) / 2
    return [
        f'<rect class="band" x="{x.position(first) - half:.1f}" y="{top:g}" '
        f'width="{x.position(last) - x.position(first) + 2 * half:.1f}" height="{bottom - top:g}"/>'
        for _, first, last in blocks[::2]
    ]


def _block_names(blocks: Sequence[tuple[str, int, int]], x: Scale, top: float) -> list[str]:
    body = []
    free = -math.inf  # where the last name ended
    for block, first, last in blocks:
        if not block:
            continue
        left, right = x.position(first - 0.4), x.position(last + 0.4)
        body.append(f'<line class="axis" x1="{left:.1f}" x2="{right:.1f}" y1="{top:g}" y2="{top:g}"/>')
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
    runs: list[tuple[str, int, int]] = []
    for i, name in enumerate(names):
        if runs and runs[-1][0] == name:
            runs[-1] = (name, runs[-1][1], i)
        else:
            runs.append((name, i, i))
    return runs


def truncate(words: str, longest: int) -> str:
    """Truncate a text that is too long.

    >>> truncate("attention", 6)
    'atten…'
    """
    line = one_line(words)
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def text(x: float, y: float, words: str, anchor: str, transform: str | None = None, kind: str = "") -> str:
    attributes = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text_anchor": anchor, "transform": transform}
    return element("text", escape(one_line(words)), class_=kind or None, **attributes)


def labeled_value(name: str, value: float | None, non_finite: bool = False) -> str:
    """A labeled number, for tooltips."""
    return f"{name} {format_number(value)}{' (some non-finite)' if non_finite else ''}"


def clamp_for_log(value: float) -> float:
    """Clamp extreme values, so that their ratios do not overflow."""
    return min(max(value, 1e-140), 1e140)


def _fits(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and value > 0
