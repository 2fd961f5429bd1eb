"""The `Finding` class: one problem in a model, with its location, evidence and fix."""

from collections.abc import Callable
from dataclasses import dataclass, field

from normscope.diagnostics.findings.record_view import RecordView

SEVERITIES = ("error", "warning", "note")
"""An error breaks the model, a warning slows or hurts training, a note is for information."""


@dataclass(frozen=True)
class Finding:
    """One problem that an x-ray found.

    Args:
        name: the kind of problem, such as `dead-units`.
        severity: `error`, `warning` or `note`.
        module: full name of the affected module; "" for the whole model.
        title: one line that states the problem and its key number.
        evidence: the measured values, by name.
        why: a paragraph on the effect on the model.
        fix: what to change. Lines after the first are code.
    """

    name: str
    severity: str
    module: str
    title: str
    evidence: dict[str, float | str] = field(default_factory=dict)
    why: str = ""
    fix: str = ""


Check = Callable[[RecordView], list[Finding]]
"""Checks a record for one family of problems."""
