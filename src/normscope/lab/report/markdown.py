"""The lab's report as README.md with SVG figures, for reading in a repository."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from normscope.lab.catalog import all_claims
from normscope.lab.claim import Claim
from normscope.lab.report.describe import (
    OUTDATED,
    WITHDRAWN,
    ClaimReport,
    describe_text,
    format_answer,
    format_effect,
    format_seeds,
    format_threshold,
    notices,
)
from normscope.lab.report.overview import METHOD, caveats, commands
from normscope.lab.results.outcome import DEFAULT_FOLDER, Outcome, out_option
from normscope.render.chart_svg_file import chart_file


def lab_markdown(found: Sequence[tuple[Claim, Outcome]], folder: Path = DEFAULT_FOLDER) -> dict[str, str]:
    """Return files by name, for outcomes that are stored in this folder."""
    reports = [ClaimReport(claim, outcome) for claim, outcome in found]
    runs = commands([outcome for _, outcome in found], [claim.name for claim in all_claims()], folder)
    made_by = " and ".join(f"`{one}`" for one in (*runs, f"normscope lab report --markdown{out_option(folder)}"))
    warnings = _list(caveats(found))
    lines = [
        "# Lab results",
        "",
        f"Made by {made_by}.",
        "`report.html` has the same as an interactive page, and `claims/` the metrics of every run as JSON.",
        "",
        *(["Before you rely on this:", "", *warnings, ""] if warnings else []),
        "How verdicts are reached:",
        "",
        *_list(METHOD),
        "",
        *_table(("", "claim", "verdict", "deciding answer"), map(_row, reports)),
    ]
    files: dict[str, str] = {}
    for report in reports:
        section, figures = _section(report)
        lines += section
        files |= figures
    files["README.md"] = "\n".join(lines) + "\n"
    return files


def _list(paragraphs: dict[str, str]) -> list[str]:
    return [f"- **{heading}.** {text}" for heading, text in paragraphs.items()]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [" | ".join(cell.replace("|", "\\|") for cell in cells) for cells in rows]
    return [
        f"| {' | '.join(head)} |".replace("|  |", "| |"),
        "|---" * len(head) + "|",
        *(f"| {line} |" for line in lines),
    ]


def _row(report: ClaimReport) -> Sequence[str]:
    claim, answer = report.claim, report.deciding
    link = f"[{claim.statement}](#{claim.number}-{claim.name})"
    verdict = f"{report.mark} {report.verdict}{f' ({OUTDATED})' if report.outdated else ''}"
    return str(claim.number), link, verdict, report.reason_withdrawn or f"{answer.text}: {format_answer(answer)}"


def _section(report: ClaimReport) -> tuple[list[str], dict[str, str]]:
    """Return the lines of a section, and its figures by file name."""
    claim, outcome = report.claim, report.outcome
    first, *rest = report.paragraphs or [f"({OUTDATED})."]
    verdict = WITHDRAWN if claim.withdrawn else report.verdict
    stop = "." if report.paragraphs else ""
    lines = ["", f"## {claim.number}. {claim.name}", "", claim.statement, ""]
    lines += [line for text in (f"**{verdict.capitalize()}{stop}** {first}", *rest) for line in (text, "")]
    figures = {}
    for i, chart in enumerate(report.charts):
        name = f"figures/{claim.name}{f'-{i + 1}' if i else ''}.svg"
        figures[name] = chart_file(chart)
        lines.append(f"![{chart.title}]({name})")
    for notice in (*report.chart_notices, *notices(outcome)):
        lines += ["", notice]
    answers = [(report.mark_of(one), one.text, format_effect(one), format_threshold(one)) for one in outcome.answers]
    lines += ["", *_table(("", "what has to hold", "effect", "threshold"), answers)]
    details = [text if heading == "History" else f"{heading}: {text}" for heading, text in report.details.items()]
    details.append(f"{format_seeds(outcome).capitalize()}, {outcome.budget.name} budget.")
    details += [f"Trained on {text}."] if (text := describe_text(outcome)) else []
    return [*lines, "", " ".join(details)], figures
