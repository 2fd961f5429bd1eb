"""What a finding is: one thing that is wrong with a model, where, by which figures, and what to do about it."""

from collections.abc import Callable
from dataclasses import dataclass, field

from normscope.diagnostics.findings.record_view import View

SEVERITIES = ("error", "warning", "note")
"""An error spoils the model; a warning makes it worse or slower to learn; a note is worth knowing."""


@dataclass(frozen=True)
class Finding:
    """One thing that an x-ray found.

    Args:
        name: what kind of thing, such as `dead-units`; the same for all findings of its kind.
        severity: `error`, `warning` or `note`.
        module: the full name of the module where it is; "" for the model as a whole.
        title: one line that says it, with the figure that matters most.
        figures: the evidence, by name.
        why: a paragraph on what it does to the model.
        fix: what to change. Lines after the first are code.
    """

    name: str
    severity: str
    module: str
    title: str
    figures: dict[str, float | str] = field(default_factory=dict)
    why: str = ""
    fix: str = ""


Finder = Callable[[View], list[Finding]]
"""Looks at a record for one family of faults."""
