"""Outcomes as README.md with its figures: for a repository, where people read without opening a page."""

from collections.abc import Sequence

from normscope.display.chart_file import chart_file
from normscope.lab.claim import Claim
from normscope.lab.outcome import Outcome
from normscope.lab.report.words import MARKS, answer_in_words, deciding, interval_in_words


def lab_markdown(found: Sequence[tuple[Claim, Outcome]]) -> dict[str, str]:
    """Texts by the names of their files."""
    files: dict[str, str] = {}
    lines = [
        "# The lab's verdicts",
        "",
        "Made by `normscope lab run --all` and `normscope lab report --markdown`; `report.html` is the same as a page,",
        "with values where the pointer is, and `claims/` has every figure of every run as JSON.",
        "",
        "| | claim | verdict | the figure that decides |",
        "|---|---|---|---|",
    ]
    for claim, outcome in found:
        decisive = _cell(answer_in_words(deciding(outcome)))
        link, verdict = f"[{_cell(claim.statement)}](#{_anchor(claim)})", f"{MARKS[outcome.verdict]} {outcome.verdict}"
        lines.append(f"| {claim.number} | {link} | {verdict} | {decisive} |")
    for claim, outcome in found:
        lines += ["", f"## {claim.number}. {claim.name}", "", f"{claim.statement}", ""]
        lines += [f"**{outcome.verdict.capitalize()}.** {claim.meaning[outcome.verdict]}", ""]
        lines += [claim.remark, ""] if claim.remark else []
        for place, chart in enumerate(claim.charts(outcome.runs)):
            name = f"figures/{claim.name}{f'-{place + 1}' if place else ''}.svg"
            files[name] = chart_file(chart)
            lines.append(f"![{chart.title}]({name})")
        lines += ["", "| | what has to hold | effect (95%) |", "|---|---|---|"]
        for answer in outcome.answers:
            effect = _cell(interval_in_words(answer.interval, answer.unit))
            lines.append(f"| {MARKS[answer.verdict]} | {_cell(answer.text)} | {effect} |")
        seeds = f"Seeds 0 to {len(outcome.runs.seeds) - 1}, {outcome.budget.name} budget."
        lines += ["", f"Source: {claim.source} Design: {claim.design} Rule: {claim.rule} {seeds}"]
    files["README.md"] = "\n".join(lines) + "\n"
    return files


def _anchor(claim: Claim) -> str:
    return f"{claim.number}-{claim.name}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
