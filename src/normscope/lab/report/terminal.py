"""Outcomes in the terminal: one line per verdict, and the deciding answer below it."""

import textwrap
from collections.abc import Sequence

from normscope.errors import FileError
from normscope.lab.claim import Claim, Kind
from normscope.lab.report.describe import BUILT_IN, OUTDATED, ClaimReport, describe_text, format_answer, notices
from normscope.lab.results.outcome import Outcome
from normscope.render.formatting import one_line, pluralize

WIDTH = 80
TAKES: dict[Kind, str] = {"exact": "takes seconds", "measured": "takes a minute", "trained": "takes minutes"}
"""Approximate time with the quick budget on one core, for claims that have not been run."""


def format_claims(claims: Sequence[tuple[Claim, Outcome | FileError | None]]) -> str:
    """List all claims with their statements and, if known, their verdicts."""
    lines = []
    for claim, outcome in claims:
        head = f"{claim.number:>3}  {claim.name:24} {claim.kind:9}"
        if not isinstance(outcome, Outcome):
            lines.append(f"{head} {TAKES[claim.kind] if outcome is None else '! damaged'}")
            lines += _wrap(claim.statement, 5)
            continue
        report, seeds = ClaimReport(claim, outcome), pluralize(len(outcome.runs.seeds), "seed")
        lines.append(f"{head} {report.mark} {report.verdict}")
        lines.append(f"     {outcome.budget.name}, {seeds}, {max(1, round(outcome.seconds))} s")
        lines += [f"     {OUTDATED}"] if report.outdated else []
        lines += _wrap(claim.statement, 5)
        lines += _wrap(f"Withdrawn: {report.reason_withdrawn}", 5) if claim.withdrawn else []
    if any(isinstance(outcome, Outcome) for _, outcome in claims):
        lines += ["", "Times (s) are CPU seconds of one core."]
    return "\n".join(lines)


def format_outcomes(found: Sequence[tuple[Claim, Outcome | Exception]]) -> str:
    """Format a few lines per claim, for 80 columns and without color."""
    lines = []
    for claim, outcome in found:
        if isinstance(outcome, Exception):
            head, texts = "! failed", [one_line(str(outcome).partition("\n")[0]) or type(outcome).__name__]
        else:
            report = ClaimReport(claim, outcome)
            head, texts = f"{report.mark} {report.status}", _summary(report)
        lines.append(f"{head:15} {claim.number:>2}  {claim.name}")
        for text in texts:
            lines += _wrap(text, 20)
    return "\n".join(lines)


def _summary(report: ClaimReport) -> list[str]:
    claim, outcome = report.claim, report.outcome
    decisive, text = report.deciding, describe_text(outcome)
    parts = "" if len(outcome.answers) == 1 else f"{report.parts}; "
    texts = [f"{parts}{decisive.text}", format_answer(decisive)]
    if claim.withdrawn:
        texts = [f"to be redone: {claim.withdrawn}"]
    texts += notices(outcome)
    texts += [f"trained on {text}"] if text not in ("", BUILT_IN) else []
    return [*texts, *([OUTDATED] if report.outdated else [])]


def _wrap(text: str, indent: int) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=" " * indent, subsequent_indent=" " * indent)


def paragraph(text: str) -> str:
    """Wrap text to the terminal; commands and paths stay whole, so that they can be copied."""
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)
