"""Several x-rays of one model, taken while it learns: all depths at a few steps, and each depth over the steps."""

import math
import re
from collections.abc import Sequence
from html import escape
from itertools import pairwise

from normscope.diagnostics.record import XrayRecord
from normscope.diagnostics.report.panels import (
    TITLE,
    WIDTH,
    Panel,
    Trace,
    across,
    bounded,
    draw_axis,
    draw_bands,
    draw_panel,
    shortened,
    text,
)
from normscope.diagnostics.report.signal_path import Station, few, stations_of
from normscope.render.axis_scale import Scale, fit_scale
from normscope.render.chart import Chart, ChartLine, draw_chart
from normscope.render.formatting import format_number, one_line
from normscope.render.html_page import html_text

MOST_LINES = 6
MOST_CURVES = 24
MOST_STATIONS = 200
_SIDES = (("forward", "Forward: the size of the signal", "a"), ("backward", "Backward: the loss's gradient", "b"))


def draw_steps(records: Sequence[XrayRecord]) -> list[str]:
    """The section; nothing for a single record."""
    if len(records) < 2:
        return []
    ways = [{station.title: station for station in stations_of(record)} for record in records]
    stations = few(stations_of(records[-1]), MOST_STATIONS)
    lines = ["<h2>Over the steps</h2>"]
    loss = [(x, record.losses[0].value) for x, record in zip(_xs(records), records, strict=True) if record.losses]
    if loss:
        chart = Chart("Cross-entropy", "step", "nats", [ChartLine("cross-entropy", loss, "d", dots=True)], width=1000)
        lines.append(draw_chart(chart))
    if stations:
        lines += [_depths(records, ways, stations)]
        for side, title, color in _SIDES:
            lines.append(f"<h3>{html_text(title)}, each depth over the steps</h3>")
            words = f"from {_step(records, 0)} to {_step(records, -1)}, all on one logarithmic scale"
            lines.append(f'<p class="faint">{html_text(words)}; the figure is the last one.</p><section class="tiny">')
            lines += [*_curves(records, ways, few(stations, MOST_CURVES), side, color), "</section>"]
    return lines


def _depths(records: Sequence[XrayRecord], ways: Sequence[dict[str, Station]], stations: Sequence[Station]) -> str:
    """The signal by depth, a line for each of a few steps: the later the stronger."""
    x = across(len(stations))
    chosen = sorted({round(i * (len(records) - 1) / (MOST_LINES - 1)) for i in range(MOST_LINES)})
    body: list[str] = []
    top = 0
    for side, title, color in _SIDES:
        traces = []
        for n, i in enumerate(chosen):
            points = [(float(k), _value(ways[i].get(place.title), side), False) for k, place in enumerate(stations)]
            traces.append(Trace(_step(records, i), color, points, opacity=0.25 + 0.75 * (n + 1) / len(chosen)))
        panel = Panel(title, traces, 150)
        body += draw_panel(panel, x, top)
        top += panel.room + 14
    labels = [(station.label, station.block) for station in stations]
    names, room = draw_axis(labels, x, top - 14)
    size = f"0 0 {WIDTH} {top - 14 + room:.0f}"
    lines = [
        f'<figure class="picture"><svg viewBox="{size}" role="img" aria-label="The signal by depth, at several steps">',
        *draw_bands(labels, x, TITLE, top - 14),
        *body,
        *names,
        "</svg></figure>",
    ]
    return "\n".join(lines)


def _curves(
    records: Sequence[XrayRecord],
    ways: Sequence[dict[str, Station]],
    stations: Sequence[Station],
    side: str,
    color: str,
) -> list[str]:
    """A small curve for each depth, all on the same scales."""
    steps = _xs(records)
    curves = [[_value(way.get(station.title), side) for way in ways] for station in stations]
    x = Scale(steps[0], steps[-1], 4, 176)
    y = fit_scale([bounded(value) for curve in curves for value in curve if value], 70, 24, log=True)
    lines = []
    for station, curve in zip(stations, curves, strict=True):
        last = format_number(curve[-1])
        words = [f"{_step(records, i)}: {format_number(value)}" for i, value in enumerate(curve)]
        title = f"<title>{escape(_few_lines(words))}</title>"
        lines += [
            f'<figure class="picture"><svg viewBox="0 0 180 78" role="img" aria-label="{escape(station.title)}">',
            text(4, 12, shortened(station.title, 30 - len(last)), "start"),
            text(176, 12, last, "end"),
            '<line class="axis" x1="4" x2="176" y1="74" y2="74"/>',
            *_curve(steps, curve, x, y, color),
            f'<rect class="place" x="0" y="0" width="180" height="78">{title}</rect>',
            "</svg></figure>",
        ]
    return lines


def _curve(steps: Sequence[float], curve: Sequence[float | None], x: Scale, y: Scale, color: str) -> list[str]:
    path, pen_is_down = [], False
    for step, value in zip(steps, curve, strict=True):
        fits = value is not None and math.isfinite(value) and value > 0
        if fits and value is not None:
            path.append(f"{'L' if pen_is_down else 'M'}{x.position(step):.1f} {y.position(bounded(value)):.1f}")
        pen_is_down = fits
    return [f'<path class="line {color}" d="{"".join(path)}"/>'] if path else []


def _few_lines(lines: Sequence[str], most: int = 12) -> str:
    chosen = sorted({round(i * (len(lines) - 1) / (most - 1)) for i in range(most)})
    return "\n".join(lines[i] for i in chosen)


def _value(station: Station | None, side: str) -> float | None:
    return None if station is None else station.rms if side == "forward" else station.gradient


def _xs(records: Sequence[XrayRecord]) -> list[float]:
    """The steps that the labels name; if they name none, or not in order, the places in the sequence."""
    found = [re.search(r"\d+", record.label) for record in records]
    steps = [float(match.group()) for match in found if match]
    rising = all(a < b for a, b in pairwise(steps))
    return steps if len(steps) == len(records) and rising else [float(i) for i in range(len(records))]


def _step(records: Sequence[XrayRecord], number: int) -> str:
    return one_line(records[number].label) or f"record {number % len(records)}"
