"""Charts over several x-rays of a training run: the signal by depth at a few steps, and each point over the steps."""

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from normscope.diagnostics.record import XrayRecord
from normscope.diagnostics.report.signal_path import SignalPoint, signal_path, subsample
from normscope.render.axis_scale import Scale, fit_scale
from normscope.render.chart import Chart, ChartLine, draw_chart, draw_line
from normscope.render.chart_axes import text
from normscope.render.chart_panels import clamp_for_log, draw_figure, draw_panels, measured_line, panel, shared_x_scale
from normscope.render.formatting import format_number, one_line, truncate
from normscope.render.svg import element, escape, figure, horizontal_line

MAX_LINES = 6
MAX_CURVES = 24
MAX_POINTS = 200
MAX_WORDS = 12
"""Lines of a tooltip."""
_SIDES = (("rms", "Forward: activation rms", "a"), ("gradient", "Backward: gradient rms", "b"))


def draw_step_charts(records: Sequence[XrayRecord]) -> dict[str, Any]:
    """The section of a report about several records; empty for a single one.

    first, last: labels of the first and last record.
    charts: the loss over the steps, and the signal by depth.
    small: for each side of the signal, a title and a small chart per point.
    """
    if len(records) < 2:
        return {}
    steps = _step_numbers(records)
    paths = [{point.title: point for point in signal_path(record)} for record in records]
    points = subsample(signal_path(records[-1]), MAX_POINTS)
    loss = [(step, record.losses[0].value) for step, record in zip(steps, records, strict=True) if record.losses]
    line = ChartLine("cross-entropy", loss, "d", dots=True)
    charts = [draw_chart(Chart("Cross-entropy", "step", "nats", [line], width=1000))] if loss else []
    small = []
    if points:
        charts.append(_by_depth([_label(records, i) for i in range(len(records))], paths, points))
        chosen = subsample(points, MAX_CURVES)
        small = [(title, _small_charts(records, steps, paths, chosen, side, color)) for side, title, color in _SIDES]
    return {"first": _label(records, 0), "last": _label(records, -1), "charts": charts, "small": small}


def _by_depth(names: Sequence[str], paths: Sequence[dict[str, SignalPoint]], points: Sequence[SignalPoint]) -> str:
    """The signal by depth, one line for each of a few steps, later ones darker."""
    x = shared_x_scale(len(points))
    chosen = _spread(len(names), MAX_LINES)
    panels = []
    for side, title, color in _SIDES:
        lines = []
        for n, i in enumerate(chosen):
            values = [(k, _value(paths[i].get(point.title), side), False) for k, point in enumerate(points)]
            lines.append(measured_line(names[i], color, values, opacity=0.25 + 0.75 * (n + 1) / len(chosen)))
        panels.append(panel(title, lines, 150))
    labels = [(point.label, point.block) for point in points]
    return draw_figure("Signal by depth at several steps", draw_panels(panels, x), labels, x)


def _small_charts(
    records: Sequence[XrayRecord],
    steps: Sequence[float],
    paths: Sequence[dict[str, SignalPoint]],
    points: Sequence[SignalPoint],
    side: str,
    color: str,
) -> list[str]:
    """A small chart for each point, all on the same scales."""
    curves = [[_value(path.get(point.title), side) for path in paths] for point in points]
    x = Scale(steps[0], steps[-1], 4, 176)
    y = fit_scale([clamp_for_log(value) for curve in curves for value in curve if value], 70, 24, log=True)
    charts = []
    for point, curve in zip(points, curves, strict=True):
        last = format_number(curve[-1])
        words = [f"{_label(records, i)}: {format_number(value)}" for i, value in enumerate(curve)]
        path = [
            (x.position(step), y.position(clamp_for_log(value))) if value and 0 < value < math.inf else None
            for step, value in zip(steps, curve, strict=True)
        ]
        tooltip = element("title", escape("\n".join(words[i] for i in _spread(len(words), MAX_WORDS))))
        drawing = [
            text(4, 12, truncate(point.title, 30 - len(last)), "start"),
            text(176, 12, last, "end"),
            horizontal_line("axis", 4, 176, 74),
            *draw_line(ChartLine("", (), color), path, ()),
            element("rect", tooltip, class_="place", x=0, y=0, width=180, height=78),
        ]
        charts.append(figure(180, 78, point.title, drawing))
    return charts


def _spread(count: int, most: int) -> list[int]:
    """Up to `most` evenly spaced indices, including the first and the last."""
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


def _value(point: SignalPoint | None, side: str) -> float | None:
    value: float | None = None if point is None else getattr(point, side)
    return value


def _step_numbers(records: Sequence[XrayRecord]) -> list[float]:
    """Step numbers from the labels, or indices if the labels have none or they are not increasing."""
    found = [re.search(r"\d+", record.label) for record in records]
    steps = [float(match.group()) for match in found if match]
    rising = all(a < b for a, b in pairwise(steps))
    return steps if len(steps) == len(records) and rising else [float(i) for i in range(len(records))]


def _label(records: Sequence[XrayRecord], number: int) -> str:
    return one_line(records[number].label) or f"record {number % len(records)}"
