"""Outcomes in the terminal: a verdict a line, and below it the figure that decides."""

import textwrap
from collections.abc import Sequence

from normscope.lab.claim import Claim
from normscope.lab.outcome import Outcome
from normscope.lab.report.words import MARKS, answer_in_words, deciding

WIDTH = 80


def outcomes_in_words(found: Sequence[tuple[Claim, Outcome]]) -> str:
    """A few lines for each claim, readable at 80 columns and without colour."""
    lines = []
    for claim, outcome in found:
        lines.append(f"{MARKS[outcome.verdict]} {outcome.verdict:13} {claim.number:>2}  {claim.name}")
        decisive = deciding(outcome)
        for text in (decisive.text, answer_in_words(decisive)):
            lines += textwrap.wrap(text, WIDTH, initial_indent=" " * 20, subsequent_indent=" " * 20)
    return "\n".join(lines)
