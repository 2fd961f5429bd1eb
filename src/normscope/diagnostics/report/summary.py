"""Summaries of an x-ray: the verdict, findings grouped by kind, and key facts."""

import math
import re
from collections import Counter
from collections.abc import Sequence

from normscope.diagnostics.findings.finding import SEVERITIES, Finding
from normscope.diagnostics.record import XrayRecord
from normscope.diagnostics.report.module_tree import unused_modules
from normscope.diagnostics.report.signal_path import innermost
from normscope.render.formatting import format_count, format_number, join_words, one_line, pluralize

MIN_LOSSES = 3
"""Fewer values of the loss are no curve."""


def verdict(record: XrayRecord, findings: Sequence[Finding]) -> str:
    """Summarize the findings in a sentence.

    >>> verdict(XrayRecord("Net", (), batches=0, backward_passes=0), [])
    'The model did not run during the x-ray.'
    """
    if not record.ran:
        return "The model did not run during the x-ray."
    if not findings:
        checked = "forward and backward" if record.backward_passes else "forward only, no backward pass"
        return f"No problems found (checked {checked})."
    counts = [(sum(f.severity == severity for f in findings), severity) for severity in SEVERITIES]
    words = [pluralize(number, severity) for number, severity in counts if number]
    return f"{join_words(words) if words else pluralize(len(findings), 'finding')}."


def group_by_kind(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Group findings by kind and severity, most severe first."""
    kinds: dict[tuple[str, str], list[Finding]] = {}
    for finding in sorted(findings, key=_severity):
        kinds.setdefault((finding.severity, finding.name), []).append(finding)
    return list(kinds.values())


def format_evidence(finding: Finding) -> list[tuple[str, str]]:
    """The evidence of a finding as (name, formatted value) pairs."""
    known = finding.evidence.items()
    texts = [(name.replace("_", " "), value if isinstance(value, str) else _plain(value)) for name, value in known]
    return [(one_line(name), one_line(text)) for name, text in texts]


def key_facts(record: XrayRecord) -> list[tuple[str, str]]:
    """Key facts of a record as (name, value) pairs."""
    root = next((module for module in record.modules if not module.name), None)
    found = [
        ("parameters", format_count(record.parameter_count)),
        ("module" if len(record.modules) == 1 else "modules", f"{len(record.modules):,}"),
    ]
    if root is not None and root.order is not None and root.flops is not None:
        found.append(("FLOPs per forward pass", format_count(root.flops)))
    outputs = sum(module.output_bytes for module in innermost(record))
    if outputs:
        found.append(("of outputs per batch", f"{format_count(outputs)}{'B' if outputs > 999 else ' B'}"))
    if record.losses:
        loss = record.losses[0]
        guess = f" (chance: {format_number(math.log(loss.num_classes))})" if loss.num_classes > 1 else ""
        found.append((f"cross-entropy{guess}", format_number(loss.value)))
    return found


def describe_passes(record: XrayRecord) -> str:
    """Number of passes and steps, and the optimizers."""
    passes = pluralize(record.batches, "batch"), pluralize(record.backward_passes, "backward pass")
    words = ", ".join([*passes, _steps(record)])
    return f"{one_line(record.label)}: {words}" if record.label else words


def unused_names(record: XrayRecord) -> list[str]:
    """Modules that never ran; names that differ only in an index are merged."""
    groups: dict[str, list[str]] = {}
    for module in unused_modules(record):
        groups.setdefault(re.sub(r"\d+", "*", module.name), []).append(f"{module.name or record.model} ({module.kind})")
    return [one_line(one) + (f" and {len(more)} similar" if more else "") for one, *more in groups.values()]


def notices(record: XrayRecord) -> list[str]:
    """What never ran, and what could not be observed."""
    never = unused_names(record)
    return [*([f"never ran: {', '.join(never)}"] if never else []), *map(one_line, record.notices)]


def versions(record: XrayRecord) -> str:
    return f"normscope {record.normscope or '?'}, torch {record.torch or '?'}"


def format_shape(size: Sequence[int]) -> str:
    """Format the shape of a tensor.

    >>> format_shape((2, 64, 256)), format_shape(())
    ('2 x 64 x 256', 'scalar')
    """
    return " x ".join(map(str, size)) or "scalar"


def _steps(record: XrayRecord) -> str:
    """The number of steps per optimizer; optimizers that step together share one count.

    >>> from normscope.diagnostics.record import StepRecord
    >>> steps = StepRecord("Muon", 0.02, 1, None), StepRecord("AdamW", 0.003, 1, None)
    >>> _steps(XrayRecord("Net", (), 1, 1, steps=steps))
    '1 step of Muon (lr 0.02) and AdamW (lr 0.003)'
    """
    steps = record.steps
    if not steps:
        return "0 steps"
    last = {one_line(step.optimizer): step.lr for step in steps}
    counts = Counter(one_line(step.optimizer) for step in steps)
    totals: Counter[str] = Counter()  # not all steps of a long run are kept
    for optimizer in record.loop.optimizers:
        totals[one_line(optimizer.kind)] += optimizer.steps
    counts = Counter({name: max(count, totals[name]) for name, count in counts.items()})
    named = {name: f"{name} (lr {lr:.3g})" for name, lr in last.items()}
    if len(set(counts.values())) == 1:
        return f"{pluralize(next(iter(counts.values())), 'step')} of {join_words(list(named.values()))}"
    return join_words([f"{pluralize(counts[name], 'step')} of {words}" for name, words in named.items()])


def _plain(value: float) -> str:
    return f"{int(value):,}" if abs(value) < 1e6 and value == int(value) else format_number(value)


def _severity(finding: Finding) -> int:
    return SEVERITIES.index(finding.severity) if finding.severity in SEVERITIES else len(SEVERITIES)
