"""What an x-ray says in a few words: the verdict, the findings by kind, and the facts of the run."""

import math
import re
from collections import Counter
from collections.abc import Sequence

from normscope.diagnostics.findings.base import SEVERITIES, Finding
from normscope.diagnostics.record import StepRecord, XrayRecord
from normscope.diagnostics.report.module_tree import never_ran
from normscope.diagnostics.report.signal_path import innermost
from normscope.render.formatting import format_count, format_number, one_line, pluralize


def verdict(record: XrayRecord, findings: Sequence[Finding]) -> str:
    """One sentence: how it stands with the model.

    >>> verdict(XrayRecord("Net", (), batches=0, backward_passes=0), [])
    'Nothing was seen: the model was not run while the x-ray looked.'
    """
    if not record.ran:
        return "Nothing was seen: the model was not run while the x-ray looked."
    if not findings:
        seen = "forward and backward" if record.backward_passes else "forward; gradients were not looked at"
        return f"Nothing is wrong with {one_line(record.model)}, as far as could be seen ({seen})."
    counts = [(sum(f.severity == severity for f in findings), severity) for severity in SEVERITIES]
    words = [pluralize(number, severity) for number, severity in counts if number] or [
        pluralize(len(findings), "finding")
    ]
    first = min(findings, key=_severity)
    if len(findings) == 1:
        return f"{words[0]}: {one_line(first.title).rstrip('.')}."
    return f"{_and(words)}. First of all: {one_line(first.title).rstrip('.')}."


def by_kind(findings: Sequence[Finding]) -> list[list[Finding]]:
    """The findings, those of a kind and severity together, in the order of the first of each; the most severe first."""
    kinds: dict[tuple[str, str], list[Finding]] = {}
    for finding in sorted(findings, key=_severity):
        kinds.setdefault((finding.severity, finding.name), []).append(finding)
    return list(kinds.values())


def evidence(finding: Finding) -> list[tuple[str, str]]:
    """The figures of a finding, in words."""
    return [
        (one_line(name.replace("_", " ")), one_line(value) if isinstance(value, str) else _plain(value))
        for name, value in finding.evidence.items()
    ]


def facts(record: XrayRecord) -> list[tuple[str, str]]:
    """What was looked at, each with its name: for the head of a page and the foot of a text."""
    root = next((module for module in record.modules if not module.name), None)
    found = [
        ("parameters", format_count(record.parameter_count)),
        ("module" if len(record.modules) == 1 else "modules", f"{len(record.modules):,}"),
    ]
    if root is not None and root.flops is not None:
        found.append(("FLOPs of a forward pass", format_count(root.flops)))
    outputs = sum(module.output_bytes for module in innermost(record))
    if outputs:
        found.append(("of outputs, a batch", f"{format_count(outputs)}{'B' if outputs > 999 else ' B'}"))
    if record.losses:
        loss = record.losses[0]
        guess = (
            f" (a guess among {loss.num_classes:,}: {format_number(math.log(loss.num_classes))})"
            if loss.num_classes > 1
            else ""
        )
        found.append((f"cross-entropy{guess}", format_number(loss.value)))
    return found


def what_ran(record: XrayRecord) -> str:
    """How often the model ran, and what its optimiser is."""
    parts = [
        pluralize(record.batches, "batch"),
        pluralize(record.backward_passes, "backward pass"),
        _steps(record.steps),
    ]
    words = ", ".join(parts)
    return f"{one_line(record.label)}: {words}" if record.label else words


def idle(record: XrayRecord) -> list[str]:
    """The modules that never ran; those whose names differ in a number alone are told once."""
    likes: dict[str, list[str]] = {}
    for module in never_ran(record):
        likes.setdefault(re.sub(r"\d+", "*", module.name), []).append(f"{module.name or record.model} ({module.kind})")
    return [
        one_line(names[0]) + (f" and {len(names) - 1} more like it" if len(names) > 1 else "")
        for names in likes.values()
    ]


def shape(size: Sequence[int]) -> str:
    """The shape of a tensor.

    >>> shape((2, 64, 256)), shape(())
    ('2 x 64 x 256', 'number')
    """
    return " x ".join(map(str, size)) or "number"


def _steps(steps: Sequence[StepRecord]) -> str:
    """The steps of each optimiser: several that work as a team have one step each, and together it is one.

    >>> _steps([StepRecord("Muon", 0.02, 1, None), StepRecord("AdamW", 0.003, 1, None)])
    '1 step of Muon (rate 0.02) and AdamW (rate 0.003)'
    """
    if not steps:
        return "0 steps"
    last = {one_line(step.optimizer): step.lr for step in steps}
    counts = Counter(one_line(step.optimizer) for step in steps)
    named = {name: f"{name} (rate {rate:.3g})" for name, rate in last.items()}
    if len(set(counts.values())) == 1:
        return f"{pluralize(next(iter(counts.values())), 'step')} of {_and(list(named.values()))}"
    return _and([f"{pluralize(counts[name], 'step')} of {words}" for name, words in named.items()])


def _plain(value: float) -> str:
    return (
        f"{int(value):,}" if math.isfinite(value) and value == int(value) and abs(value) < 1e6 else format_number(value)
    )


def _and(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _severity(finding: Finding) -> int:
    return SEVERITIES.index(finding.severity) if finding.severity in SEVERITIES else len(SEVERITIES)
