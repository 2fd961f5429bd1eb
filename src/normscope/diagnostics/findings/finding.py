"""What a finding is, how its text is written, and how checks are registered."""

import re
import string
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from normscope.diagnostics.findings.record_view import RecordView
from normscope.diagnostics.module_names import module_ref
from normscope.diagnostics.record import ModuleRecord
from normscope.render.formatting import format_percent, format_short

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


class FindingKind:
    """A kind of finding: its name, and templates of its title, explanation and fix.

    Templates contain evidence by its name, other values that the check passes, and `{module}`. Floats are shown with
    three digits, or as a percentage with `:%`.

    >>> collapsed = FindingKind('''
    ... attention-collapsed: attention has collapsed in {module}: {peaked:%} of queries attend to a single key
    ... why: The scores before softmax have a standard deviation of {score std}. All other keys get weights that
    ... round to zero.
    ... fix: divide the scores by sqrt(head_dim)
    ... ''')
    >>> found = collapsed.at("blocks.0.attn", {"peaked": 0.9312, "score std": 31.25})
    >>> found.name, found.title
    ('attention-collapsed', 'attention has collapsed in `blocks.0.attn`: 93.1% of queries attend to a single key')
    """

    def __init__(self, text: str) -> None:
        self.name, _, rest = text.strip().partition(": ")
        title, why, fix = (" ".join(part.split()) for part in re.split(r"\n\s*(?:why|fix): ", rest))
        self._templates = title, why, fix

    def at(
        self, module: ModuleRecord | str, evidence: Mapping[str, Any], severity: str = "warning", **values: object
    ) -> Finding:
        """A finding of this kind in a module. Evidence that is None is omitted."""
        name = module if isinstance(module, str) else module.name
        known = {key: value for key, value in evidence.items() if value is not None}
        values = {"module": module_ref(name), **known, **values}
        title, why, fix = (_TextFormatter().vformat(template, (), values) for template in self._templates)
        return Finding(self.name, severity, name, title, known, why, fix)


class _TextFormatter(string.Formatter):
    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        return kwargs[field_name], field_name  # names of evidence have spaces and slashes

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec == "%":
            return format_percent(value)
        return format_short(value) if isinstance(value, float) and not format_spec else format(value, format_spec)


Check = Callable[[RecordView], Iterator[Finding]]
"""Checks a record for one family of problems."""

CHECKS: dict[str, list[Check]] = {"blocking": [], "structural": [], "numeric": []}
"""All checks, by what they need.

blocking: for values that make all statistics meaningless.
structural: hold whatever the tensors contain.
numeric: of tensor statistics; skipped after a blocking problem, because they would only report its consequences.
"""


def check(kind: Literal["blocking", "structural", "numeric"]) -> Callable[[Check], Check]:
    """Register a function as a check of this kind."""

    def register(function: Check) -> Check:
        CHECKS[kind].append(function)
        return function

    return register
