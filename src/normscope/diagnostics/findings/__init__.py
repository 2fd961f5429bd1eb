"""Find problems in a model: `find(record)` checks an x-ray and returns findings with their module, evidence and fix."""

from dataclasses import replace

from normscope.diagnostics.findings.attention import check_attention
from normscope.diagnostics.findings.base import SEVERITIES, Check, Finding
from normscope.diagnostics.findings.dead_units import check_units
from normscope.diagnostics.findings.depth import check_depth
from normscope.diagnostics.findings.duplicate_weights import check_duplicate_weights
from normscope.diagnostics.findings.empty_batch import check_empty_batch
from normscope.diagnostics.findings.exploded_weights import check_exploded_weights
from normscope.diagnostics.findings.initial_weights import check_initial_weights
from normscope.diagnostics.findings.loss import check_logits, check_loss
from normscope.diagnostics.findings.missing_gradients import check_missing_gradients, check_unused_modules
from normscope.diagnostics.findings.missing_zero_grad import check_zero_grad
from normscope.diagnostics.findings.non_finite import check_non_finite
from normscope.diagnostics.findings.norm_eps import check_norm_eps
from normscope.diagnostics.findings.norm_scope import (
    check_bias_before_norm,
    check_norm_causality,
    check_norm_over_padding,
    check_norm_sample_size,
)
from normscope.diagnostics.findings.outliers import check_outlier_features
from normscope.diagnostics.findings.record_view import RecordView, name_pattern
from normscope.diagnostics.findings.residual import check_residual_stream
from normscope.diagnostics.findings.running_statistics import check_running_statistics
from normscope.diagnostics.findings.unregistered_parameters import check_unregistered_parameters
from normscope.diagnostics.findings.updates import check_optimizer_coverage, check_update_sizes
from normscope.diagnostics.findings.warmup import check_warmup
from normscope.diagnostics.record import XrayRecord

__all__ = ["SEVERITIES", "Finding", "find"]

MIN_TO_MERGE = 3
"""Merge this many equal findings in corresponding places of different blocks into one."""

_STRUCTURAL_CHECKS: tuple[Check, ...] = (
    check_logits,
    check_duplicate_weights,
    check_optimizer_coverage,
    check_unregistered_parameters,
    check_zero_grad,
    check_unused_modules,
    check_bias_before_norm,
    check_norm_sample_size,
    check_norm_over_padding,
    check_norm_causality,
    check_warmup,
)
"""Checks that hold whatever the tensors contain."""

_NUMERIC_CHECKS: tuple[Check, ...] = (
    check_depth,
    check_units,
    check_attention,
    check_residual_stream,
    check_update_sizes,
    check_loss,
    check_missing_gradients,
    check_norm_eps,
    check_initial_weights,
    check_exploded_weights,
    check_outlier_features,
    check_running_statistics,
)
"""Checks of tensor statistics. They are skipped when values are non-finite or the batch is empty: they would only
report consequences of that."""


def find(record: XrayRecord) -> list[Finding]:
    """Return the findings of a record, most severe first, then in order of execution.

    >>> from normscope.diagnostics.record import ModuleRecord
    >>> find(XrayRecord("Sequential", (ModuleRecord("", "Sequential"),), batches=0, backward_passes=0))
    []
    """
    view = RecordView(record)
    empty = check_empty_batch(view)
    found = [*check_non_finite(view), *empty]
    broken = bool(empty) or any(finding.severity == "error" for finding in found)
    for check in (*_STRUCTURAL_CHECKS, *(() if broken else _NUMERIC_CHECKS)):
        found += check(view)
    found.sort(key=lambda finding: (SEVERITIES.index(finding.severity), view.execution_order(finding.module)))
    return _merge_repeated(found)


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
