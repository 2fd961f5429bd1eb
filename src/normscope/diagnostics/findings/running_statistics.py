"""Running statistics that do not match the data: the model behaves differently in eval mode."""

from normscope.diagnostics.findings.base import Finding
from normscope.diagnostics.findings.record_view import RecordView, module_ref
from normscope.diagnostics.record import ModuleRecord
from normscope.render.formatting import format_short

MAX_MEAN_SHIFT = 1.0
"""Shift of the median channel's mean, in standard deviations: 84% of a ReLU's inputs are then on one side."""

MAX_VARIANCE_RATIO = 4.0
"""Ratio of the median channel's variances: the output is twice as large as in training, or half."""

SETTLED = 50
"""Batches after which 0.9^50 = 0.5% of the initial running statistics is left."""

MIN_SAMPLES, MIN_VALUES = 8, 32
"""One image does not represent the data: its channels vary less. The variance of 32 values is known to 25%."""


def check_running_statistics(view: RecordView) -> list[Finding]:
    """Compare running statistics with the batches: in eval mode, where they are used, or once they have settled."""
    found = []
    for module in view.ran:
        norm = module.norm
        if norm is None or norm.drift is None:
            continue
        has_input = bool(module.input_shapes and module.input_shapes[0])
        samples = module.input_shapes[0][0] * max(1, view.record.batches) if has_input else 0
        if samples < MIN_SAMPLES or (norm.reduction_size or 0) < MIN_VALUES:
            continue
        shift, ratio = norm.drift
        if not (shift >= MAX_MEAN_SHIFT or ratio >= MAX_VARIANCE_RATIO):
            continue
        if not module.training or (norm.batches_tracked is not None and norm.batches_tracked >= SETTLED):
            found.append(_finding(module, shift, ratio, norm.batches_tracked))
    return found


def _finding(module: ModuleRecord, shift: float, ratio: float, tracked: int | None) -> Finding:
    untrained = tracked == 0
    seen = "an unknown number of" if tracked is None else str(tracked)
    return Finding(
        "stale-running-statistics",
        "note" if untrained else "warning",
        module.name,
        f"the running statistics of {module_ref(module.name)} do not match the data: the mean is off by "
        f"{format_short(shift)} standard deviations, the variance by a factor of {format_short(ratio)}",
        {"mean shift": shift, "variance ratio": ratio, "batches tracked": seen},
        f"They were updated with {seen} batches. "
        + (
            "A new model has only their initial values, so the layer does not normalize in eval mode."
            if untrained
            else "In eval mode the layer uses them, so the model differs from the one that was trained."
        ),
        "run some batches through the model in train() mode before eval(); check momentum (default 0.1; 0 never "
        "updates) and that the data is preprocessed as in training",
    )
