"""What is wrong with a model: `find(record)` reads an x-ray and names faults, each with its module, figures and fix."""

from dataclasses import replace

from normscope.diagnostics.findings.attention import attention_shape
from normscope.diagnostics.findings.base import SEVERITIES, Finder, Finding
from normscope.diagnostics.findings.dead_units import idle_units
from normscope.diagnostics.findings.depth import depth_trends
from normscope.diagnostics.findings.duplicate_weights import copied_weights
from normscope.diagnostics.findings.empty_batch import empty_batch
from normscope.diagnostics.findings.exploded_weights import weights_grown
from normscope.diagnostics.findings.initial_weights import weight_starts
from normscope.diagnostics.findings.loss import loss_above_chance, squashed_logits
from normscope.diagnostics.findings.missing_gradients import never_ran, without_gradient
from normscope.diagnostics.findings.missing_zero_grad import piled_gradients
from normscope.diagnostics.findings.non_finite import not_finite
from normscope.diagnostics.findings.norm_eps import eps_sizes
from normscope.diagnostics.findings.norm_scope import bias_before_norm, leaks_future, norm_over_padding, starved_norm
from normscope.diagnostics.findings.outliers import outlier_features
from normscope.diagnostics.findings.record_view import View, role
from normscope.diagnostics.findings.residual import stream_growth
from normscope.diagnostics.findings.running_statistics import running_drift
from normscope.diagnostics.findings.unregistered_parameters import strangers
from normscope.diagnostics.findings.updates import unoptimised, update_sizes
from normscope.diagnostics.findings.warmup import cold_start
from normscope.diagnostics.record import XrayRecord

__all__ = ["SEVERITIES", "Finding", "find"]

MANY = 3
"""So many like findings in like places become one."""

_OF_STRUCTURE: tuple[Finder, ...] = (
    squashed_logits,
    copied_weights,
    unoptimised,
    strangers,
    piled_gradients,
    never_ran,
    bias_before_norm,
    starved_norm,
    norm_over_padding,
    leaks_future,
    cold_start,
)
"""What holds whatever the numbers are."""

_OF_SIGNALS: tuple[Finder, ...] = (
    depth_trends,
    idle_units,
    attention_shape,
    stream_growth,
    update_sizes,
    loss_above_chance,
    without_gradient,
    eps_sizes,
    weight_starts,
    weights_grown,
    outlier_features,
    running_drift,
)
"""What is read from numbers: once some are not finite, the rest of them tells of that and of nothing else; and so it is
where there are none."""


def find(record: XrayRecord) -> list[Finding]:
    """The findings of a record: the most severe first, then in the order in which the model runs.

    >>> from normscope.diagnostics.record import ModuleRecord
    >>> find(XrayRecord("Sequential", (ModuleRecord("", "Sequential"),), batches=0, backward_passes=0))
    []
    """
    view = View(record)
    empty = empty_batch(view)
    found = [*not_finite(view), *empty]
    broken = bool(empty) or any(finding.severity == "error" for finding in found)
    for finder in (*_OF_STRUCTURE, *(() if broken else _OF_SIGNALS)):
        found += finder(view)
    found.sort(key=lambda finding: (SEVERITIES.index(finding.severity), view.execution_order(finding.module)))
    return _folded(found)


def _folded(found: list[Finding]) -> list[Finding]:
    """One finding for what is the same in the same part of many blocks: the first, which names the others."""
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in found:
        groups.setdefault(_likeness(finding), []).append(finding)
    kept = []
    for finding in found:
        first, *others = groups[_likeness(finding)]
        if len(others) + 1 < MANY:
            kept.append(finding)
        elif finding is first:
            title = f"{first.title}; and the same in {len(others)} more like it"
            names = ", ".join(other.module for other in others)
            kept.append(replace(first, title=title, figures={**first.figures, "also in": names}))
    return kept


def _likeness(finding: Finding) -> tuple[str, str, str]:
    return finding.name, finding.severity, role(finding.module)
