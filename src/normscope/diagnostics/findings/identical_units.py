"""Units of a layer, or rows of an embedding, that all start with the same weights."""

from collections.abc import Iterator

from normscope.diagnostics.findings.finding import Finding, FindingKind, RecordView
from normscope.diagnostics.record import ModuleRecord, ParameterRecord

IDENTICAL_UNITS = FindingKind("""
identical-units: all {count} {thing}s of {module} have the same weights
why: All {thing}s produce the same output, so the layer is effectively one {thing} wide. If the next layer treats them
alike, they also get the same gradient and stay identical.
fix: initialize the weight of {module} at random: nn.init.kaiming_normal_(weight)
""")


def identical_units(view: RecordView, module: ModuleRecord, weight: ParameterRecord) -> Finding | None:
    constant = weight.values.min == weight.values.max != 0 and weight.shape[0] > 1
    identical = weight.identical_rows or (weight.initial_identical_rows and view.at_start(weight) is not None)
    if module.is_grouped_conv or not (identical or constant):
        return None
    return identical_finding(module, weight.shape[0], "unit")


def identical_rows(module: ModuleRecord) -> Iterator[Finding]:
    """Identical rows of an embedding: a matrix called "weight" that is not a linear layer's."""
    for parameter in module.parameters:
        is_table = parameter.name == "weight" and len(parameter.shape) == 2 and parameter.requires_grad
        if is_table and parameter.identical_rows:
            yield identical_finding(module, parameter.shape[0], "row")


def identical_finding(module: ModuleRecord, count: int, thing: str) -> Finding:
    return IDENTICAL_UNITS.found_in(module, {f"{thing}s": count}, "error", count=count, thing=thing)
