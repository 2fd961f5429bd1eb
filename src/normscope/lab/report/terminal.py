"""Outcomes in the terminal: a verdict a line, and below it the figure that decides."""

import textwrap
from collections.abc import Sequence

from normscope.lab.claim import Claim
from normscope.lab.outcome import Outcome
from normscope.lab.report.words import MARKS, answer_in_words, deciding

WIDTH = 80


def claims_in_words(claims: Sequence[tuple[Claim, Outcome | None]]) -> str:
    """All claims by number and name, with what they say and the verdict if there is one."""
    lines = []
    for claim, outcome in claims:
        verdict = "" if outcome is None else f"{MARKS[outcome.verdict]} {outcome.verdict}"
        lines.append(f"{claim.number:>3}  {claim.name:24} {claim.kind:9} {verdict}".rstrip())
        lines += textwrap.wrap(claim.statement, WIDTH, initial_indent=" " * 5, subsequent_indent=" " * 5)
    return "\n".join(lines)


def outcomes_in_words(found: Sequence[tuple[Claim, Outcome]]) -> str:
    """A few lines for each claim, readable at 80 columns and without colour."""
    lines = []
    for claim, outcome in found:
        lines.append(f"{MARKS[outcome.verdict]} {outcome.verdict:13} {claim.number:>2}  {claim.name}")
        decisive = deciding(outcome)
        for text in (decisive.text, answer_in_words(decisive)):
            lines += textwrap.wrap(text, WIDTH, initial_indent=" " * 20, subsequent_indent=" " * 20)
    return "\n".join(lines)
