"""An input that nobody scaled, as the cause of logits that are too large."""

import math
from dataclasses import dataclass

from normscope.diagnostics.findings.record_view import View, called, linear_weight, short
from normscope.diagnostics.record import ModuleRecord

LARGE = 2 * math.sqrt(2)
"""The spread of logits that costs 4 nats over chance. Layers of torch's own start scale by 1 / sqrt(3) and none that
theory knows by more than 5/3, so logits follow the input's size, and an input of size 1 does not get there."""

MOST = 0.5
"""The share of all squares that makes one column the cause."""


@dataclass(frozen=True)
class Unscaled:
    """An input that is too large: the layer that reads it, how it is, and how to scale it."""

    module: str
    size: float
    why: str
    fix: str


def unscaled_input(view: View, head: str) -> Unscaled | None:
    """The input, if the first layer reads it as it is, no norm takes its size away, the head reads something large
    because of it, and the logits would not be too large if it had a size of 1."""
    first, last = _reader(view), view.modules.get(head)
    if first is None or last is None or any(module.norm is not None for module in view.ran):
        return None
    if first.input is None or last.input is None or last.output is None or first.output is None:
        return None
    size = first.input.rms
    if not (size >= LARGE and last.input.rms >= LARGE and last.output.rms < LARGE * size):
        return None
    why = f"The input has a size of {short(size)}, and layers keep sizes: what {called(first.name)} makes of it has "
    why += f"one of {short(first.output.rms)}."
    column = _column(first, size)
    if column is None:
        return Unscaled(first.name, size, why, "scale the input: (x - x.mean()) / x.std(), pixels at least by 1 / 255")
    number, largest, middle = column
    why += f" Column {number} alone has {short(largest)}, where the middle one has {short(middle)}."
    fix = f"scale the input, column {number} above all: (x - x.mean(0)) / x.std(0), with the training set's figures"
    return Unscaled(first.name, size, why, fix)


def _reader(view: View) -> ModuleRecord | None:
    """The first linear layer, if it reads what the model was given."""
    root, first = view.modules.get(""), next((m for m in view.ran if linear_weight(m) is not None), None)
    if root is None or root.input is None or first is None or first.input is None:
        return None
    return first if math.isclose(root.input.rms, first.input.rms, rel_tol=1e-3) else None


def _column(first: ModuleRecord, size: float) -> tuple[int, float, float] | None:
    """The largest column, its size and that of the middle one, if it has most of the squares of all."""
    features = first.features
    if features is None or features.count < 2 or not features.outliers:
        return None
    number, rms, _ = max(features.outliers, key=lambda outlier: outlier[1])
    return (number, rms, features.median_rms) if rms * rms >= MOST * features.count * size * size else None
