"""An interval and the line it is compared with, as a small drawing for a table's row."""

import math
from collections.abc import Iterable

from normscope.lab.report.describe import format_interval
from normscope.lab.statistics import Interval
from normscope.render.html_page import html_text

WIDTH, HEIGHT = 180, 18
AIR = 0.06


def common_range(rows: Iterable[tuple[Interval, float]]) -> tuple[float, float]:
    """From where to where rows of intervals and their lines have to be drawn to be compared, with a little air.

    >>> common_range([(Interval(0.5, 0.0, 1.0), 0.2)])
    (-0.06, 1.06)
    """
    rows = list(rows)
    values = [value for interval, _ in rows for value in (interval.low, interval.high, interval.middle)]
    values = [value for value in (*values, *(threshold for _, threshold in rows)) if math.isfinite(value)]
    low, high = min(values), max(values)
    air = AIR * (high - low) or 1.0
    return low - air, high + air


def forest_plot(interval: Interval, threshold: float, low: float, high: float, look: str = "") -> str:
    """The drawing, from `low` at its left to `high` at its right; what reaches beyond is cut off there.

    Args:
        interval: drawn with its middle.
        line: what it is compared with, drawn across.
        low, high: the range, the same for all rows that are to be compared.
        look: a class, for the colour.
    """

    def place(value: float) -> float:
        return WIDTH * min(max((value - low) / (high - low), 0.0), 1.0)

    start, end, middle, cut = map(place, (interval.low, interval.high, interval.middle, threshold))
    y = HEIGHT / 2
    return (
        f'<svg class="forest {look}" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
        f'aria-label="{html_text(format_interval(interval))}">'
        f'<path class="cut" d="M{cut:.1f} 0V{HEIGHT}"/>'
        f'<path class="interval" d="M{start:.1f} {y:g}H{end:.1f}"/>'
        f'<circle cx="{middle:.1f}" cy="{y:g}" r="3.5"/></svg>'
    )


FOREST_STYLE = """\
.forest { display: block; overflow: visible; --mark: var(--verdict, var(--ink)) }
.forest .cut { stroke: var(--faint); stroke-dasharray: 2 2 }
.forest .interval { stroke: var(--mark); stroke-width: 2.5 }
.forest circle { fill: var(--mark) }
"""
