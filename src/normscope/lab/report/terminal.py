"""Outcomes in the terminal: a verdict a line, and below it the figure that decides."""

import textwrap
from collections.abc import Sequence

from normscope.errors import FileError
from normscope.lab.claim import Claim, Kind
from normscope.lab.outcome import Outcome, is_outdated
from normscope.lab.report.describe import (
    BUILT_IN,
    MARKS,
    OUTDATED,
    deciding_answer,
    describe_status,
    describe_text,
    format_answer,
    parts_that_hold,
    status_of,
    why_withdrawn,
)
from normscope.lab.report.notices import notices
from normscope.render.formatting import one_line, pluralize

WIDTH = 80


TAKES: dict[Kind, str] = {"exact": "takes seconds", "measured": "takes a minute", "trained": "takes minutes"}
"""How long a claim of each kind takes with the quick budget on one core, about; for claims that have not been run."""


def format_claims(claims: Sequence[tuple[Claim, Outcome | FileError | None]]) -> str:
    """All claims by number and name, with what they say; the verdict if there is one, or that its file is damaged."""
    lines = []
    for claim, outcome in claims:
        lines.append(f"{claim.number:>3}  {claim.name:24} {claim.kind:9} {_known(claim, outcome)}")
        if isinstance(outcome, Outcome):
            lines.append(f"     {_work(outcome)}")
        if isinstance(outcome, Outcome) and is_outdated(outcome, claim):
            lines.append(f"     {OUTDATED}")
        lines += _wrapped(claim.statement, 5)
        if isinstance(outcome, Outcome) and claim.withdrawn:
            lines += _wrapped(f"Withdrawn: {why_withdrawn(claim)}", 5)
    if any(isinstance(outcome, Outcome) for _, outcome in claims):
        lines += ["", "Seconds (s) are those of one core."]
    return "\n".join(lines)


def _known(claim: Claim, outcome: Outcome | FileError | None) -> str:
    if outcome is None:
        return TAKES[claim.kind]
    if isinstance(outcome, FileError):
        return "! damaged"
    return f"{MARKS[status_of(claim, outcome)]} {describe_status(claim, outcome)}"


def _work(outcome: Outcome) -> str:
    return f"{outcome.budget.name}, {pluralize(len(outcome.runs.seeds), 'seed')}, {max(1, round(outcome.seconds))} s"


def format_outcomes(found: Sequence[tuple[Claim, Outcome | Exception]]) -> str:
    """A few lines for each claim, readable at 80 columns and without colour."""
    lines = []
    for claim, outcome in found:
        head, said = _failed(outcome) if isinstance(outcome, Exception) else _decided(claim, outcome)
        lines.append(f"{head:15} {claim.number:>2}  {claim.name}")
        for text in said:
            lines += _wrapped(text, 20)
    return "\n".join(lines)


def _failed(error: Exception) -> tuple[str, list[str]]:
    return "! failed", [one_line(str(error).partition("\n")[0]) or type(error).__name__]


def _decided(claim: Claim, outcome: Outcome) -> tuple[str, list[str]]:
    decisive = deciding_answer(outcome)
    texts = describe_text(outcome)
    hold = "" if len(outcome.answers) == 1 else f"{parts_that_hold(outcome)}; "
    said = [f"{hold}{decisive.text}", format_answer(decisive), *notices(outcome)]
    if claim.withdrawn:
        said = [f"to be redone: {claim.withdrawn}", *notices(outcome)]
    said += [f"learnt from {texts}"] if texts not in ("", BUILT_IN) else []
    said += [OUTDATED] if is_outdated(outcome, claim) else []
    return f"{MARKS[status_of(claim, outcome)]} {status_of(claim, outcome)}", said


def _wrapped(text: str, indent: int) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=" " * indent, subsequent_indent=" " * indent)


def paragraph(text: str) -> str:
    """A text in lines that fit; commands and paths in it stay whole, so that they can be copied."""
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)
