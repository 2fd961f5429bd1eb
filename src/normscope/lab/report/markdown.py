"""The lab's report as README.md with SVG figures, for reading in a repository: `lab.md.jinja` is its template."""

from collections.abc import Sequence
from pathlib import Path

from normscope.lab.catalog import all_claims
from normscope.lab.claim import Claim
from normscope.lab.report.describe import ClaimReport, describe_text, format_seeds
from normscope.lab.report.overview import commands
from normscope.lab.report.page import report_values
from normscope.lab.results.outcome import DEFAULT_FOLDER, Outcome, out_option
from normscope.render.chart import Chart
from normscope.render.chart_svg_file import chart_file
from normscope.render.pages import render_page


def lab_markdown(found: Sequence[tuple[Claim, Outcome]], folder: Path = DEFAULT_FOLDER) -> dict[str, str]:
    """Return files by name, for outcomes that are stored in this folder."""
    reports = [ClaimReport(claim, outcome) for claim, outcome in found]
    runs = commands([outcome for _, outcome in found], [claim.name for claim in all_claims()], folder)
    text = render_page(
        "lab/report/lab.md.jinja",
        commands=[*runs, f"normscope lab report --markdown{out_option(folder)}"],
        figures=_figures,
        format_seeds=format_seeds,
        describe_text=describe_text,
        **report_values(reports),
    )
    files = {name: chart_file(chart) for report in reports for name, chart in _figures(report).items()}
    return {**files, "README.md": text}


def _figures(report: ClaimReport) -> dict[str, Chart]:
    """The charts of a claim by file name."""
    return {f"figures/{report.claim.name}{f'-{i + 1}' if i else ''}.svg": one for i, one in enumerate(report.charts)}
