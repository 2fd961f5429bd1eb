"""The lab's report of outcomes, as one HTML file and as README.md with SVG figures: `lab.html` and `lab.md.jinja`."""

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from normscope.lab.catalog import all_claims
from normscope.lab.claim import Claim
from normscope.lab.report import describe
from normscope.lab.report.describe import ClaimReport, format_interval
from normscope.lab.report.overview import METHOD, caveats, commands
from normscope.lab.results.folders import DEFAULT_FOLDER, out_option
from normscope.lab.results.outcome import Outcome
from normscope.lab.results.statistics import Interval
from normscope.lab.results.verdict import VERDICTS, Answer
from normscope.render.chart import Chart, draw_chart
from normscope.render.chart_svg_file import chart_file
from normscope.render.formatting import format_count, format_number
from normscope.render.pages import render_page

WIDTH, HEIGHT = 180, 18
PADDING = 0.06


def lab_page(found: Sequence[tuple[Claim, Outcome]], folder: Path = DEFAULT_FOLDER) -> str:
    """Return the report of outcomes that are stored in this folder."""
    reports = [ClaimReport(claim, outcome) for claim, outcome in found]
    counted = [one.status if one.claim.withdrawn or not one.outdated else "outdated" for one in reports]
    names = (*VERDICTS, *(name for name in ("withdrawn", "outdated") if name in counted))
    return render_page(
        "lab/report/lab.html",
        counts={name: counted.count(name) for name in names},
        out=out_option(folder),
        draw=lambda chart: Markup(draw_chart(chart)),
        answer_plot=_answer_plot,
        tried_lrs=lambda outcome: sorted({lr for losses in outcome.tuned.values() for lr in losses}),
        parameters=_parameters,
        to_json=json.dumps,
        format_number=format_number,
        **_report_values(reports),
    )


def lab_markdown(found: Sequence[tuple[Claim, Outcome]], folder: Path = DEFAULT_FOLDER) -> dict[str, str]:
    """Return files by name, for outcomes that are stored in this folder."""
    reports = [ClaimReport(claim, outcome) for claim, outcome in found]
    runs = commands([outcome for _, outcome in found], [claim.name for claim in all_claims()], folder)
    text = render_page(
        "lab/report/lab.md.jinja",
        commands=[*runs, f"normscope lab report --markdown{out_option(folder)}"],
        figures=_figures,
        **_report_values(reports),
    )
    files = {name: chart_file(chart) for report in reports for name, chart in _figures(report).items()}
    return {**files, "README.md": text}


def _figures(report: ClaimReport) -> dict[str, Chart]:
    """The charts of a claim by file name."""
    return {f"figures/{report.claim.name}{f'-{i + 1}' if i else ''}.svg": one for i, one in enumerate(report.charts)}


def _report_values(reports: Sequence[ClaimReport]) -> dict[str, Any]:
    """What both templates show: the page's and the README's."""
    return {
        "describe": describe,
        "reports": reports,
        "caveats": caveats([(report.claim, report.outcome) for report in reports]),
        "method": METHOD,
    }


def _answer_plot(report: ClaimReport, answer: Answer) -> Markup:
    """Draw an answer on the common scale of those with the same unit and threshold."""
    same = [one for one in report.outcome.answers if (one.unit, one.threshold) == (answer.unit, answer.threshold)]
    low, high = common_range((one.interval, one.threshold) for one in same)
    css_class = "" if report.claim.withdrawn else answer.verdict
    return forest_plot(answer.interval, answer.threshold, low, high, css_class)


def _parameters(outcome: Outcome, variant: str) -> str:
    count = outcome.runs.metrics[variant][0].get("parameters")
    return "" if count is None else format_count(float(count))


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
