"""Outcomes as README.md with its figures: for a repository, where people read without opening a page."""

from collections.abc import Sequence
from pathlib import Path

from normscope.lab.catalog import all_claims
from normscope.lab.claim import Claim
from normscope.lab.outcome import DEFAULT_FOLDER, Outcome, is_outdated, out_option
from normscope.lab.report.caveats import caveats
from normscope.lab.report.charts import charts_of
from normscope.lab.report.commands import commands
from normscope.lab.report.describe import (
    MARKS,
    OUTDATED,
    WITHDRAWN,
    deciding_answer,
    describe_failed_parts,
    describe_revision,
    describe_status,
    describe_text,
    format_answer,
    format_effect,
    format_seeds,
    format_threshold,
    mark_of,
    parts_that_hold,
    status_of,
    why_withdrawn,
)
from normscope.lab.report.method import METHOD
from normscope.lab.report.notices import figures_notice, notices
from normscope.render.chart_svg_file import chart_file


def lab_markdown(found: Sequence[tuple[Claim, Outcome]], folder: Path = DEFAULT_FOLDER) -> dict[str, str]:
    """Texts by the names of their files, of outcomes that are kept in this folder."""
    files: dict[str, str] = {}
    lines = [
        "# The lab's verdicts",
        "",
        f"Made by {_made_by(found, folder)}.",
        "`report.html` is the same as a page, with values where the pointer is, and `claims/` has every figure of",
        "every run as JSON.",
        "",
        *_mind(found),
        "How a verdict comes about:",
        "",
        *(f"- **{about}.** {words}" for about, words in METHOD.items()),
        "",
        "| | claim | verdict | the figure that decides |",
        "|---|---|---|---|",
    ]
    for claim, outcome in found:
        answer = deciding_answer(outcome)
        decisive = why_withdrawn(claim) or f"{answer.text}: {format_answer(answer)}"
        link = f"[{_cell(claim.statement)}](#{_anchor(claim)})"
        verdict = f"{MARKS[status_of(claim, outcome)]} {describe_status(claim, outcome)}"
        verdict += f" ({OUTDATED})" if is_outdated(outcome, claim) else ""
        lines.append(f"| {claim.number} | {link} | {verdict} | {_cell(decisive)} |")
    for claim, outcome in found:
        section, figures = _section(claim, outcome)
        lines += section
        files |= figures
    files["README.md"] = "\n".join(lines) + "\n"
    return files


def _mind(found: Sequence[tuple[Claim, Outcome]]) -> list[str]:
    said = caveats(found)
    if not said:
        return []
    return ["Before you rely on any of it:", "", *(f"- **{about}.** {words}" for about, words in said.items()), ""]


def _made_by(found: Sequence[tuple[Claim, Outcome]], folder: Path) -> str:
    """The commands, as they would have to be typed again."""
    runs = commands([outcome for _, outcome in found], [claim.name for claim in all_claims()], folder)
    return " and ".join(f"`{command}`" for command in (*runs, f"normscope lab report --markdown{out_option(folder)}"))


def _section(claim: Claim, outcome: Outcome) -> tuple[list[str], dict[str, str]]:
    """Lines of the README, and the figures that they show."""
    older = is_outdated(outcome, claim)
    lines = ["", f"## {claim.number}. {claim.name}", "", claim.statement, ""]
    lines += [line for words in _verdict(claim, outcome, older) for line in (words, "")]
    charts, figures = charts_of(claim, outcome), {}
    for place, chart in enumerate(charts):
        name = f"figures/{claim.name}{f'-{place + 1}' if place else ''}.svg"
        figures[name] = chart_file(chart)
        lines.append(f"![{chart.title}]({name})")
    for notice in (*figures_notice(outcome, charts), *notices(outcome)):
        lines += ["", notice]
    lines += ["", "| | what has to hold | effect | the line |", "|---|---|---|---|"]
    for answer in outcome.answers:
        cells = (mark_of(claim, answer), answer.text, format_effect(answer), format_threshold(answer))
        lines.append(f"| {' | '.join(map(_cell, cells))} |")
    texts = describe_text(outcome)
    said = [f"Source: {claim.source}"]
    said += [] if older else [f"Design: {claim.design}", f"Rule: {claim.rule}"]
    said += [revision] if (revision := describe_revision(claim)) else []
    said.append(f"{format_seeds(outcome).capitalize()}, {outcome.budget.name} budget.")
    said += [f"Learnt from {texts}."] if texts else []
    return [*lines, "", " ".join(said)], figures


def _verdict(claim: Claim, outcome: Outcome, older: bool) -> list[str]:
    """Paragraphs. What a verdict means, and the rule, are written for the claim as it is now."""
    remark = [claim.remark] if claim.remark and not older else []
    if claim.withdrawn:
        return [f"**{WITHDRAWN.capitalize()}.** {claim.withdrawn}", *remark]
    head = f"**{outcome.verdict.capitalize()}, {parts_that_hold(outcome)}**"
    if older:
        return [f"{head} ({OUTDATED})."]
    return [f"{head}. {claim.meaning[outcome.verdict]}", *describe_failed_parts(outcome), *remark]


def _anchor(claim: Claim) -> str:
    return f"{claim.number}-{claim.name}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
