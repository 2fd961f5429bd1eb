"""What the findings about losses share: names of losses, and which of the recorded ones count."""

from collections.abc import Iterator

from normscope.diagnostics.record import XrayRecord
from normscope.diagnostics.stats.losses import LossFunctionStats

HAND_WRITTEN = {
    "difference": "the difference of predictions and targets",
    "product": "the product of predictions and targets",
    "log_likelihood": "the likelihood of the targets",
    "similarity": "the similarity of predictions and targets",
    "hinge": "the hinge loss",
    "log": "the logarithm in the loss",
}
CLASS_LOSSES = ("cross_entropy", "nll_loss")


def confirmed_losses(record: XrayRecord) -> Iterator[LossFunctionStats]:
    """Losses that count: of hand-written ones, those that a backward pass started from."""
    used = {term.loss for objective in record.objectives for term in objective.terms}
    for index, loss in enumerate(record.loss_functions):
        if loss.function not in HAND_WRITTEN or index in used:
            yield loss


def describe_call(loss: LossFunctionStats) -> str:
    """`nll_loss()` (train.py:12)."""
    name = HAND_WRITTEN.get(loss.function, f"`{loss.function}()`")
    return name if loss.line is None else f"{name} ({loss.line})"
