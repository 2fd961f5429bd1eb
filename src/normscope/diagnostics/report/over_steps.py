"""Charts over several x-rays of a training run: the signal by depth at a few steps, and each point over the steps."""

import math
import re
from collections.abc import Sequence
from itertools import pairwise

from normscope.diagnostics.record import XrayRecord
from normscope.diagnostics.report.panels import (
    TITLE,
    WIDTH,
    Panel,
    PanelSeries,
    clamp_for_log,
    draw_axis,
    draw_bands,
    draw_panel,
    shared_x_scale,
    text,
    truncate,
)
from normscope.diagnostics.report.signal_path import SignalPoint, signal_path, subsample
from normscope.render.axis_scale import Scale, fit_scale
from normscope.render.chart import Chart, ChartLine, draw_chart
from normscope.render.formatting import format_number, one_line
from normscope.render.html_page import html_text
from normscope.render.svg import element, escape, polyline_path

MAX_LINES = 6
MAX_CURVES = 24
MAX_POINTS = 200
_SIDES = (("forward", "Forward: activation rms", "a"), ("backward", "Backward: gradient rms", "b"))


def draw_training_steps(records: Sequence[XrayRecord]) -> list[str]:
    """The section; empty for a single record."""
    if len(records) < 2:
        return []
    paths = [{point.title: point for point in signal_path(record)} for record in records]
    points = subsample(signal_path(records[-1]), MAX_POINTS)
    lines = ["<h2>Training steps</h2>"]
    loss = [(x, record.losses[0].value) for x, record in zip(_xs(records), records, strict=True) if record.losses]
    if loss:
        chart = Chart("Cross-entropy", "step", "nats", [ChartLine("cross-entropy", loss, "d", dots=True)], width=1000)
        lines.append(draw_chart(chart))
    if points:
        lines += [_depths(records, paths, points)]
        for side, title, color in _SIDES:
            lines.append(f"<h3>{html_text(title)}, over the steps</h3>")
            words = f"from {_step(records, 0)} to {_step(records, -1)}, all on one log scale"
            lines.append(
                f'<p class="faint">{html_text(words)}; the number is the last value.</p><section class="tiny">'
            )
            lines += [*_curves(records, paths, subsample(points, MAX_CURVES), side, color), "</section>"]
    return lines


def _depths(
    records: Sequence[XrayRecord], paths: Sequence[dict[str, SignalPoint]], points: Sequence[SignalPoint]
) -> str:
    """The signal by depth, one line for each of a few steps, later ones darker."""
    x = shared_x_scale(len(points))
    chosen = sorted({round(i * (len(records) - 1) / (MAX_LINES - 1)) for i in range(MAX_LINES)})
    body: list[str] = []
    top = 0
    for side, title, color in _SIDES:
        traces = []
        for n, i in enumerate(chosen):
            values = [(float(k), _value(paths[i].get(point.title), side), False) for k, point in enumerate(points)]
            traces.append(PanelSeries(_step(records, i), color, values, opacity=0.25 + 0.75 * (n + 1) / len(chosen)))
        panel = Panel(title, traces, 150)
        body += draw_panel(panel, x, top)
        top += panel.total_height + 14
    labels = [(point.label, point.block) for point in points]
    names, room = draw_axis(labels, x, top - 14)
    size = f"0 0 {WIDTH} {top - 14 + room:.0f}"
    lines = [
        f'<figure class="picture"><svg viewBox="{size}" role="img" aria-label="Signal by depth at several steps">',
        *draw_bands(labels, x, TITLE, top - 14),
        *body,
        *names,
        "</svg></figure>",
    ]
    return "\n".join(lines)


def _curves(
    records: Sequence[XrayRecord],
    paths: Sequence[dict[str, SignalPoint]],
    points: Sequence[SignalPoint],
    side: str,
    color: str,
) -> list[str]:
    """A small chart for each point, all on the same scales."""
    steps = _xs(records)
    curves = [[_value(way.get(point.title), side) for way in paths] for point in points]
    x = Scale(steps[0], steps[-1], 4, 176)
    y = fit_scale([clamp_for_log(value) for curve in curves for value in curve if value], 70, 24, log=True)
    lines = []
    for point, curve in zip(points, curves, strict=True):
        last = format_number(curve[-1])
        words = [f"{_step(records, i)}: {format_number(value)}" for i, value in enumerate(curve)]
        title = f"<title>{escape(_few_lines(words))}</title>"
        lines += [
            f'<figure class="picture"><svg viewBox="0 0 180 78" role="img" aria-label="{escape(point.title)}">',
            text(4, 12, truncate(point.title, 30 - len(last)), "start"),
            text(176, 12, last, "end"),
            '<line class="axis" x1="4" x2="176" y1="74" y2="74"/>',
            *_curve(steps, curve, x, y, color),
            f'<rect class="place" x="0" y="0" width="180" height="78">{title}</rect>',
            "</svg></figure>",
        ]
    return lines


def _curve(steps: Sequence[float], curve: Sequence[float | None], x: Scale, y: Scale, color: str) -> list[str]:
    points = [
        (x.position(step), y.position(clamp_for_log(value)))
        if value is not None and math.isfinite(value) and value > 0
        else None
        for step, value in zip(steps, curve, strict=True)
    ]
    path = polyline_path(points)
    return [element("path", class_=f"line {color}", d=path)] if path else []


def _few_lines(lines: Sequence[str], most: int = 12) -> str:
    chosen = sorted({round(i * (len(lines) - 1) / (most - 1)) for i in range(most)})
    return "\n".join(lines[i] for i in chosen)


def _value(point: SignalPoint | None, side: str) -> float | None:
    return None if point is None else point.rms if side == "forward" else point.gradient


def _xs(records: Sequence[XrayRecord]) -> list[float]:
    """Step numbers from the labels, or indices if the labels have none or they are not increasing."""
    found = [re.search(r"\d+", record.label) for record in records]
    steps = [float(match.group()) for match in found if match]
    rising = all(a < b for a, b in pairwise(steps))
    return steps if len(steps) == len(records) and rising else [float(i) for i in range(len(records))]


def _step(records: Sequence[XrayRecord], number: int) -> str:
    return one_line(records[number].label) or f"record {number % len(records)}"
