"""Forest plots: an interval and its threshold as a small SVG for a table row; and tables as HTML."""

import math
from collections.abc import Iterable, Sequence

from normscope.lab.report.describe import format_interval
from normscope.lab.results.statistics import Interval
from normscope.render.html_page import html_text

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


def forest_plot(interval: Interval, threshold: float, low: float, high: float, css_class: str = "") -> str:
    """Draw an interval, its middle and the threshold between `low` and `high`, clipped there."""

    def x(value: float) -> float:
        return WIDTH * min(max((value - low) / (high - low), 0.0), 1.0)

    start, end, middle, cut = map(x, (interval.low, interval.high, interval.middle, threshold))
    y = HEIGHT / 2
    return (
        f'<svg class="forest {css_class}" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
        f'aria-label="{html_text(format_interval(interval))}">'
        f'<path class="cut" d="M{cut:.1f} 0V{HEIGHT}"/>'
        f'<path class="interval" d="M{start:.1f} {y:g}H{end:.1f}"/>'
        f'<circle cx="{middle:.1f}" cy="{y:g}" r="3.5"/></svg>'
    )


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]], css_class: str = "", scroll: bool = True) -> str:
    """Build a table from HTML cells; cells may bring their own <td> or <th>."""

    def row(cells: Sequence[str], tag: str) -> str:
        return f"<tr>{''.join(cell if cell.startswith('<t') else f'<{tag}>{cell}</{tag}>' for cell in cells)}</tr>"

    body = "\n".join(row(cells, "td") for cells in rows)
    css = f' class="{css_class}"' if css_class else ""
    table = f"<table{css}>\n<thead>{row(head, 'th')}</thead>\n{body}\n</table>"
    return f'<div class="scroll">{table}</div>' if scroll else table
