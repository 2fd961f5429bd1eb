"""The lab's HTML report, in one self-contained file: `lab.html` is its template."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from normscope.lab.claim import Claim
from normscope.lab.report.describe import (
    OUTDATED,
    ClaimReport,
    format_answer,
    format_effect,
    format_threshold,
    notices,
    prose_html,
)
from normscope.lab.report.forest_plot import common_range, forest_plot
from normscope.lab.report.overview import METHOD, caveats
from normscope.lab.results.outcome import DEFAULT_FOLDER, Outcome, out_option
from normscope.lab.results.verdict import VERDICTS, Answer
from normscope.render.chart import Chart, draw_chart
from normscope.render.formatting import format_count, format_number
from normscope.render.pages import render_page


def lab_page(found: Sequence[tuple[Claim, Outcome]], folder: Path = DEFAULT_FOLDER) -> str:
    """Return the report of outcomes that are stored in this folder."""
    reports = [ClaimReport(claim, outcome) for claim, outcome in found]
    counted = [one.status if one.claim.withdrawn or not one.outdated else "outdated" for one in reports]
    names = (*VERDICTS, *(name for name in ("withdrawn", "outdated") if name in counted))
    return render_page(
        "lab/report/lab.html",
        counts={name: counted.count(name) for name in names},
        out=out_option(folder),
        prose=prose_html,
        draw=_draw,
        answer_plot=_answer_plot,
        tried_lrs=_tried_lrs,
        parameters=_parameters,
        to_json=json.dumps,
        format_number=format_number,
        **report_values(reports),
    )


def report_values(reports: Sequence[ClaimReport]) -> dict[str, Any]:
    """What both templates show: the page's and the README's."""
    return {
        "reports": reports,
        "caveats": caveats([(report.claim, report.outcome) for report in reports]),
        "method": METHOD,
        "OUTDATED": OUTDATED,
        "notices": notices,
        "format_answer": format_answer,
        "format_effect": format_effect,
        "format_threshold": format_threshold,
    }


def _draw(chart: Chart) -> Markup:
    return Markup(draw_chart(chart))


def _answer_plot(report: ClaimReport, answer: Answer) -> Markup:
    """Draw an answer on the common scale of those with the same unit and threshold."""
    same = [one for one in report.outcome.answers if (one.unit, one.threshold) == (answer.unit, answer.threshold)]
    low, high = common_range((one.interval, one.threshold) for one in same)
    css_class = "" if report.claim.withdrawn else answer.verdict
    return forest_plot(answer.interval, answer.threshold, low, high, css_class)


def _tried_lrs(outcome: Outcome) -> list[float]:
    return sorted({lr for losses in outcome.tuned.values() for lr in losses})


def _parameters(outcome: Outcome, variant: str) -> str:
    count = outcome.runs.metrics[variant][0].get("parameters")
    return "" if count is None else format_count(float(count))
