"""Find problems in a model: `find(record)` checks an x-ray and returns findings with their module, evidence and fix.

To add a finding, write its text as a `FindingKind` and its rule as a check, in the file of its topic or in a new one:

    NEVER_RAN = FindingKind('''
    never-ran: {module} never ran; it has {parameters} parameters
    why: It takes up memory.
    fix: call it in forward, or remove it
    ''')

    @check("structural")
    def check_unused_modules(view: RecordView) -> Iterator[Finding]:
        for module in view.modules.values():
            if module.order is None and module.parameters:
                yield NEVER_RAN.found_in(module, {"parameters": module.parameter_count}, "note")

`RecordView` lists the modules that ran, linear layers, norms, attentions, residual additions, parameters and matrices,
and which modules read an output; `ModuleRecord` and `ParameterRecord` have the rest.
"""

import pkgutil
from dataclasses import replace
from importlib import import_module

from normscope.diagnostics.findings.consequences import without_consequences
from normscope.diagnostics.findings.finding import CHECKS, SEVERITIES, Finding, RecordView
from normscope.diagnostics.module_names import name_pattern
from normscope.diagnostics.record import XrayRecord

__all__ = ["SEVERITIES", "Finding", "find"]

MIN_TO_MERGE = 3
"""Merge this many equal findings in corresponding places of different blocks into one."""

for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")  # registers its checks


def find(record: XrayRecord) -> list[Finding]:
    """Return the findings of a record, most severe first, then in order of execution.

    >>> from normscope.diagnostics.record import ModuleRecord
    >>> find(XrayRecord("Sequential", (ModuleRecord("", "Sequential"),), batches=0, backward_passes=0))
    []
    """
    view = RecordView(record)
    found = [finding for check in CHECKS["blocking"] for finding in check(view)]
    blocked = any(finding.severity != "note" for finding in found)
    for check in CHECKS["structural"] + ([] if blocked else CHECKS["numeric"]):
        found += check(view)
    found.sort(key=lambda finding: (SEVERITIES.index(finding.severity), view.execution_order(finding.module)))
    return _merge_repeated(without_consequences(found))


def _merge_repeated(found: list[Finding]) -> list[Finding]:
    """Merge the same finding in the same part of many blocks into the first, which names the others."""
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in found:
        groups.setdefault(_merge_key(finding), []).append(finding)
    kept = []
    for finding in found:
        first, *others = groups[_merge_key(finding)]
        if len(others) + 1 < MIN_TO_MERGE:
            kept.append(finding)
        elif finding is first:
            title = f"{first.title}; same in {len(others)} similar modules"
            names = ", ".join(other.module for other in others)
            kept.append(replace(first, title=title, evidence={**first.evidence, "also in": names}))
    return kept


def _merge_key(finding: Finding) -> tuple[str, str, str]:
    return finding.name, finding.severity, name_pattern(finding.module)
