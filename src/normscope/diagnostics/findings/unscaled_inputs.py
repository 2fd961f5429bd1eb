"""Unnormalized input as the cause of logits that are too large."""

import math
from dataclasses import dataclass

from normscope.diagnostics.findings.record_view import RecordView, linear_weight, module_ref
from normscope.diagnostics.record import ModuleRecord
from normscope.render.formatting import format_short

LARGE_RMS = 2 * math.sqrt(2)
"""Logit rms that costs 4 nats above chance. PyTorch's default layers scale by 1 / sqrt(3), and no recommended gain
exceeds 5/3, so logits follow the scale of the input, and an input with rms 1 does not get there."""

DOMINANT = 0.5
"""Fraction of the sum of squares that makes one column the cause."""


@dataclass(frozen=True)
class UnscaledInput:
    """An input that is too large: the layer that reads it, its rms, the explanation and the fix."""

    module: str
    rms: float
    why: str
    fix: str


def find_unscaled_input(view: RecordView, head: str) -> UnscaledInput | None:
    """The model's input, if its scale explains the large logits.

    The first layer reads it unchanged, no norm removes its scale, the output layer reads something large, and the
    logits would be small if the input had an rms of 1.
    """
    first, last = _first_layer(view), view.modules.get(head)
    if first is None or last is None or any(module.norm is not None for module in view.ran):
        return None
    if first.input is None or last.input is None or last.output is None or first.output is None:
        return None
    rms = first.input.rms
    if not (rms >= LARGE_RMS and last.input.rms >= LARGE_RMS and last.output.rms < LARGE_RMS * rms):
        return None
    why = f"The input has an rms of {format_short(rms)}, and layers preserve scale: the output of "
    why += f"{module_ref(first.name)} has {format_short(first.output.rms)}."
    column = _dominant_column(first, rms)
    if column is None:
        fix = "normalize the input: (x - x.mean()) / x.std(); divide pixels by 255 at least"
        return UnscaledInput(first.name, rms, why, fix)
    number, column_rms, median_rms = column
    why += (
        f" Column {number} has an rms of {format_short(column_rms)}; the median column has {format_short(median_rms)}."
    )
    fix = f"normalize the input, especially column {number}: (x - x.mean(0)) / x.std(0), with training set statistics"
    return UnscaledInput(first.name, rms, why, fix)


def _first_layer(view: RecordView) -> ModuleRecord | None:
    """The first linear layer, if it reads the model's input."""
    root, first = view.modules.get(""), next((m for m in view.ran if linear_weight(m) is not None), None)
    if root is None or root.input is None or first is None or first.input is None:
        return None
    return first if math.isclose(root.input.rms, first.input.rms, rel_tol=1e-3) else None


def _dominant_column(first: ModuleRecord, rms: float) -> tuple[int, float, float] | None:
    """Index and rms of the largest column, and the median rms, if that column has most of the sum of squares."""
    features = first.features
    if features is None or features.count < 2 or not features.outliers:
        return None
    number, column_rms, _ = max(features.outliers, key=lambda outlier: outlier[1])
    dominant = column_rms * column_rms >= DOMINANT * features.count * rms * rms
    return (number, column_rms, features.median_rms) if dominant else None
