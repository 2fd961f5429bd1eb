"""Forest plots: an interval and its threshold as a small SVG for a table row."""

import math
from collections.abc import Iterable

from markupsafe import Markup

from normscope.lab.report.describe import format_interval
from normscope.lab.results.statistics import Interval

WIDTH, HEIGHT = 180, 18
PADDING = 0.06


def common_range(rows: Iterable[tuple[Interval, float]]) -> tuple[float, float]:
    """Return the x range that shows all intervals and thresholds, with some padding.

    >>> common_range([(Interval(0.5, 0.0, 1.0), 0.2)])
    (-0.06, 1.06)
    """
    values = [value for one, threshold in rows for value in (one.low, one.high, one.middle, threshold)]
    values = [value for value in values if math.isfinite(value)]
    low, high = min(values), max(values)
    padding = PADDING * (high - low) or 1.0
    return low - padding, high + padding


def forest_plot(interval: Interval, threshold: float, low: float, high: float, css_class: str = "") -> Markup:
    """Draw an interval, its middle and the threshold between `low` and `high`, clipped there."""

    def x(value: float) -> float:
        return WIDTH * min(max((value - low) / (high - low), 0.0), 1.0)

    start, end, middle, cut = map(x, (interval.low, interval.high, interval.middle, threshold))
    y = HEIGHT / 2
    return Markup(
        '<svg class="forest {}" viewBox="0 0 {} {}" width="{}" height="{}" role="img" aria-label="{}">'
        '<path class="cut" d="M{:.1f} 0V{}"/><path class="interval" d="M{:.1f} {:g}H{:.1f}"/>'
        '<circle cx="{:.1f}" cy="{:g}" r="3.5"/></svg>'
    ).format(
        *(css_class, WIDTH, HEIGHT, WIDTH, HEIGHT, format_interval(interval)), *(cut, HEIGHT, start, y, end, middle, y)
    )
