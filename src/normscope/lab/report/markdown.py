"""Outcomes as README.md with its figures: for a repository, where people read without opening a page."""

from collections.abc import Sequence
from pathlib import Path

from normscope.display.chart_file import chart_file
from normscope.lab.catalogue import all_claims
from normscope.lab.claim import Claim
from normscope.lab.outcome import USUAL_FOLDER, Outcome, is_older, out_option
from normscope.lab.report.charts import charts_of
from normscope.lab.report.commands import commands
from normscope.lab.report.method import METHOD
from normscope.lab.report.notices import figures_notice, notices
from normscope.lab.report.words import (
    MARKS,
    OLDER,
    answer_in_words,
    deciding,
    effect_in_words,
    line_in_words,
    parts_in_words,
    seeds_in_words,
    texts_in_words,
)


def lab_markdown(found: Sequence[tuple[Claim, Outcome]], folder: Path = USUAL_FOLDER) -> dict[str, str]:
    """Texts by the names of their files, of outcomes that are kept in this folder."""
    files: dict[str, str] = {}
    lines = [
        "# The lab's verdicts",
        "",
        f"Made by {_made_by(found, folder)}.",
        "`report.html` is the same as a page, with values where the pointer is, and `claims/` has every figure of",
        "every run as JSON.",
        "",
        *(f"- **{about}.** {words}" for about, words in METHOD.items()),
        "",
        "| | claim | verdict | the figure that decides |",
        "|---|---|---|---|",
    ]
    for claim, outcome in found:
        answer = deciding(outcome)
        decisive = _cell(f"{answer.text}: {answer_in_words(answer)}")
        link, verdict = f"[{_cell(claim.statement)}](#{_anchor(claim)})", f"{MARKS[outcome.verdict]} {outcome.verdict}"
        verdict += f" ({OLDER})" if is_older(outcome, claim) else ""
        lines.append(f"| {claim.number} | {link} | {verdict} | {decisive} |")
    for claim, outcome in found:
        section, figures = _section(claim, outcome)
        lines += section
        files |= figures
    files["README.md"] = "\n".join(lines) + "\n"
    return files


def _made_by(found: Sequence[tuple[Claim, Outcome]], folder: Path) -> str:
    """The commands, as they would have to be typed again."""
    runs = commands([outcome for _, outcome in found], [claim.name for claim in all_claims()], folder)
    return " and ".join(f"`{command}`" for command in (*runs, f"normscope lab report --markdown{out_option(folder)}"))


def _section(claim: Claim, outcome: Outcome) -> tuple[list[str], dict[str, str]]:
    """Lines of the README, and the figures that they show."""
    older = is_older(outcome, claim)
    lines = ["", f"## {claim.number}. {claim.name}", "", claim.statement, ""]
    verdict = outcome.verdict.capitalize()
    # What a verdict means, and the rule, are written for the claim as it is now.
    lines += [f"**{verdict}** ({OLDER})." if older else f"**{verdict}.** {claim.meaning[outcome.verdict]}", ""]
    said = [] if older else [*parts_in_words(outcome), *([claim.remark] if claim.remark else [])]
    lines += [line for words in said for line in (words, "")]
    charts, figures = charts_of(claim, outcome), {}
    for place, chart in enumerate(charts):
        name = f"figures/{claim.name}{f'-{place + 1}' if place else ''}.svg"
        figures[name] = chart_file(chart)
        lines.append(f"![{chart.title}]({name})")
    for notice in (*figures_notice(outcome, charts), *notices(outcome)):
        lines += ["", notice]
    lines += ["", "| | what has to hold | effect | the line |", "|---|---|---|---|"]
    for answer in outcome.answers:
        cells = (MARKS[answer.verdict], answer.text, effect_in_words(answer), line_in_words(answer))
        lines.append(f"| {' | '.join(map(_cell, cells))} |")
    texts = texts_in_words(outcome)
    said = [f"Source: {claim.source}"]
    said += [] if older else [f"Design: {claim.design}", f"Rule: {claim.rule}"]
    said.append(f"{seeds_in_words(outcome).capitalize()}, {outcome.budget.name} budget.")
    said += [f"Learnt from {texts}."] if texts else []
    return [*lines, "", " ".join(said)], figures


def _anchor(claim: Claim) -> str:
    return f"{claim.number}-{claim.name}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
