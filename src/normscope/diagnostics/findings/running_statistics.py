"""Running statistics that are not those of the data: a model that is another one in eval mode."""

from normscope.diagnostics.findings.base import Finding
from normscope.diagnostics.findings.record_view import View, called, short
from normscope.diagnostics.record import ModuleRecord

SHIFTED = 1.0
"""Standard deviations that the mean of the middle channel is off: 84% of a ReLU's inputs are then on one side."""

SCALED = 4.0
"""The ratio of the variances of the middle channel: the output is twice as large as in training, or half."""

SETTLED = 50
"""Batches after which 0.9^50 = 0.5% is left of how running statistics start."""


LEAST_SAMPLES, LEAST_VALUES = 8, 32
"""One picture is not the data: its channels vary less than those of many. Of 32 values a variance is known to 25%."""


def running_drift(view: View) -> list[Finding]:
    """Judged in eval mode, where they are used; and in training once they had the time to settle."""
    found = []
    for module in view.ran:
        norm = module.norm
        if norm is None or norm.drift is None:
            continue
        samples = (
            module.input_shapes[0][0] * max(1, view.record.batches)
            if module.input_shapes and module.input_shapes[0]
            else 0
        )
        if samples < LEAST_SAMPLES or (norm.reduction_size or 0) < LEAST_VALUES:
            continue
        shift, scale = norm.drift
        if not (shift >= SHIFTED or scale >= SCALED):
            continue
        unused = norm.batches_tracked == 0
        if not module.training or (norm.batches_tracked is not None and norm.batches_tracked >= SETTLED):
            found.append(_finding(module, shift, scale, norm.batches_tracked, unused))
    return found


def _finding(module: ModuleRecord, shift: float, scale: float, tracked: int | None, unused: bool) -> Finding:
    seen = "an unknown number of" if tracked is None else str(tracked)
    return Finding(
        "running-statistics-off",
        "note" if unused else "warning",
        module.name,
        f"the running statistics of {called(module.name)} are {short(shift)} deviations and a factor of {short(scale)} "
        f"in variance off the data",
        {"mean off by": shift, "variance off by": scale, "batches tracked": seen},
        f"They have seen {seen} batches. "
        + (
            "A fresh model has none of its own: in eval mode the layer does nothing."
            if unused
            else "In eval mode the layer normalises by them, so the model is not the one that was trained."
        ),
        "run some batches of the data through the model in train() mode before eval(); look at momentum (0.1 is usual; "
        "0 never learns), and at whether the data is prepared in the same way as in training",
    )
