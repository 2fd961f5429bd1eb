"""A cross-entropy that is worse than guessing."""

import math
from collections.abc import Iterator, Mapping

from normscope.diagnostics.findings.finding import Finding, FindingKind, RecordView, check
from normscope.diagnostics.module_names import module_ref
from normscope.diagnostics.record import ModuleRecord
from normscope.render.formatting import format_short

LOSS_AFTER_TRAINING = FindingKind("""
loss-above-chance: the last loss is {loss}; guessing among {classes} classes gives {ln V}
why: Uniform predictions have a loss of ln {classes} = {ln V}. This model is confident in wrong classes: training has
diverged.
fix: lower the learning rate, and check that labels and logits match
""")
FIRST_LOSS = FindingKind("""
loss-above-chance: the first loss is {loss}; guessing among {classes} classes gives {ln V}
why: Uniform predictions have a loss of ln {classes} = {ln V}. This model is confident in wrong classes because its
logits are large.
fix: use a smaller initialization for {head}, so that the logits have an rms of at most 1: nn.init.normal_(weight,
std=0.02), or zeros; if it is tied to an embedding, initialize that with std 1 / sqrt(width)
""")
FIRST_LOSS_UNSCALED_INPUT = FindingKind("""
loss-above-chance: the first loss is {loss}; guessing among {classes} classes gives {ln V}; the input is not normalized
why: Uniform predictions have a loss of ln {classes} = {ln V}. This model is confident in wrong classes because its
logits are large. The input has an rms of {input rms}, and layers preserve scale: the output of {module} has
{output_rms}.{column}
fix: {fix}
""")
MAX_EXCESS = 4.0
"""Nats above ln V. Uninformative logits with standard deviation s cost about ln V + s^2 / 2, so this is an s of 2
sqrt(2), twice the largest gain in use. Such a loss is wrong at any time; a loss below ln V says nothing. Scaled cosines
are meant to be large: ArcFace starts with a scale of 64, and CLIP may reach 100."""

LARGE_RMS = 2 * math.sqrt(2)
"""Logit rms that costs 4 nats above chance. PyTorch's default layers scale by 1 / sqrt(3), and no recommended gain
exceeds 5/3, so logits follow the scale of the input, and an input with rms 1 does not get there."""

DOMINANT = 0.5
"""Fraction of the sum of squares that makes one column the cause."""


@check("numeric")
def check_loss(view: RecordView) -> Iterator[Finding]:
    losses = (loss for loss in view.record.losses if not loss.has_cosines)
    finite = [loss for loss in losses if math.isfinite(loss.value) and loss.num_classes > 1]
    if not finite:
        return
    loss, trained = finite[0], view.steps_before_xray > 0
    if loss.value < math.log(loss.num_classes) + MAX_EXCESS:
        loss, trained = finite[-1], True
    chance = math.log(loss.num_classes)
    if loss.value - chance < MAX_EXCESS:
        return
    head = loss.logits_source or ""
    module = view.modules.get(head)
    logits_rms = None if module is None or module.output is None else module.output.rms
    evidence = {"loss": loss.value, "ln V": chance, "excess": loss.value - chance, "logits rms": logits_rms}
    if trained:
        yield LOSS_AFTER_TRAINING.found_in(head, evidence, classes=loss.num_classes)
    elif (unscaled := _unscaled_input(view, head, evidence, loss.num_classes)) is not None:
        yield unscaled
    else:
        place = module_ref(head) if head else "the output layer"
        yield FIRST_LOSS.found_in(head, evidence, classes=loss.num_classes, head=place)


def _unscaled_input(view: RecordView, head: str, evidence: Mapping[str, float | None], classes: int) -> Finding | None:
    """A finding in the first layer, if the scale of the model's input explains the large logits.

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
    words, fix = "", "normalize the input: (x - x.mean()) / x.std(); divide pixels by 255 at least"
    column = _dominant_column(first, rms)
    if column is not None:
        number, own, median = column[0], format_short(column[1]), format_short(column[2])
        words = f" Column {number} has an rms of {own}; the median column has {median}."
        fix = f"normalize the input, especially column {number}: (x - x.mean(0)) / x.std(0), with training set "
        fix += "statistics"
    evidence = {**evidence, "input rms": rms}
    values = {"output_rms": first.output.rms, "column": words, "classes": classes}
    return FIRST_LOSS_UNSCALED_INPUT.found_in(first, evidence, "warning", fix=fix, **values)


def _first_layer(view: RecordView) -> ModuleRecord | None:
    """The first linear layer, if it reads the model's input."""
    root, first = view.modules.get(""), view.linear[0][0] if view.linear else None
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
