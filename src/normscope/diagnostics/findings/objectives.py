"""The scalars that backward starts from: their sign, their scale, and how they change over the steps."""

import math
from collections.abc import Iterator
from statistics import fmean

from normscope.diagnostics.findings.finding import Finding, FindingKind, RecordView, check, in_line
from normscope.diagnostics.findings.loss_calls import CLASS_LOSSES, HAND_WRITTEN, describe_call
from normscope.diagnostics.stats.losses import LossFunctionStats, ObjectiveStats, ObjectiveTerm

MAXIMIZED = FindingKind("""
loss-maximized: {call} is maximized: {how}
why: Each step makes errors larger. The value that backward starts from goes from {first} to {last}.
fix: {fix}
""")
MINIMIZED = FindingKind("""
loss-maximized: {call} is minimized: {how}
why: Each step makes the right predictions less likely. The value that backward starts from goes from {first} to {last}.
fix: {fix}
""")
RISES = FindingKind("""
loss-rises: the loss{where} rises steadily over {steps} steps, from {first} to {last}
why: Each step makes the loss on the training data worse: the sign is wrong, or steps are far too large.
fix: check the sign of the loss and of the update, then lower the learning rate
""")
SIGNED = FindingKind("""
negative-loss: the loss{where} is a mean of signed errors, {last} at the end
why: Predictions minus targets, without a square or absolute value, has no minimum: the loss falls as long as
predictions move in one direction.
fix: use F.mse_loss or F.l1_loss
""")
UNBOUNDED = FindingKind("""
negative-loss: the loss{where} falls without bound, from {first} to {last} within {steps} steps
why: A term of it has no minimum, so the model lowers it by making its outputs larger and larger.
fix: check the sign of each term: that of a KL divergence is -0.5 * (1 + logvar - mu**2 - logvar.exp()); a critic needs
a gradient penalty, clipping or spectral norm
""")
NEGATIVE = FindingKind("""
negative-loss: {call} is {least}, but cannot be negative if its arguments are right
why: The loss has no minimum where the model is right.
fix: check the arguments: kind of input, range of targets, and weights
""")
SUMMED = FindingKind("""
summed-loss: the loss{where} is a sum over {batch} samples, and the learning rate is {lr}
why: The gradient grows with the batch: {optimizer} makes steps as with the mean and a learning rate of {lr of mean}.
{trend}
fix: use reduction="mean", or divide by the batch size
""")
SCALED = FindingKind("""
loss-scaled: the loss{where} is multiplied by {factor}
why: {effect}
fix: {fix}
""")
CONSTANT_LOSS = FindingKind("""
constant-loss: the loss{where} is {value} in all of {passes} backward passes
why: Weights change, but the loss does not: it does not depend on what the model computes.
fix: check what the loss is computed from: the output of the model, before argmax, rounding or a softmax over one output
""")

LARGE_SUM, SURE_SUM = 0.1, 0.5
"""Learning rate times batch size, momentum included, of SGD with a summed loss. Rates for means are 0.1 at most for
most models: above that, a loss that does not fall is enough evidence; five times more is evidence itself."""

SMALL_FACTOR, LARGE_FACTOR = 0.1, 8.0
"""Factor of a mean loss, times backward passes per step. A loss that is divided by the number of backward passes has 1,
also if the x-ray sees only a part of the first ones: not much less."""

SMALL_STEP = 1e-3
"""Learning rate of SGD times factor: rates for means are 0.001 to 0.1, so smaller ones change little."""

LARGE_STEP = 1.0
"""The same for large factors: ten times the largest rate in use for means."""

UNBOUNDED_LOSS, UNBOUNDED_GROWTH = -1e4, 100.0
"""A loss below this, whose last third is so many times its first: likelihoods and rewards change by far less in as few
steps, and once they are that large, they grow by a constant amount per step at most."""

STEADY = 0.6
"""Kendall's tau of a loss and its step. With 10 steps, a loss without trend exceeds it with probability 0.01, which
noise of batches does not change, and a trend alone is not enough: the loss also has to double."""

ENOUGH_VALUES, ENOUGH_CONSTANT = 10, 4
_MAX_PAIRED = 100
SUM_OF_SAMPLES = 8
"""A sum over fewer samples is no matter of scale."""

_NEVER_NEGATIVE = {
    *("cross_entropy", "nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div", "ctc_loss"),
    *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "triplet_margin_loss", "soft_margin_loss"),
    *("margin_ranking_loss", "hinge_embedding_loss", "cosine_embedding_loss", "multilabel_soft_margin_loss"),
    *("multi_margin_loss",),
}
_EXPLAINED_BY = {"logits-as-probabilities", "targets-out-of-range"}


@check("structural")
def check_objectives(view: RecordView) -> Iterator[Finding]:
    """Find losses with a wrong sign or scale, and those that rise or never change."""
    training = [objective for objective in view.record.objectives if objective.steps]
    for objective in training:
        finite = [value for value in objective.values if math.isfinite(value)]
        if not finite:
            continue
        term = objective.terms[0] if len(objective.terms) == 1 and objective.is_complete else None
        if term is not None:
            loss = view.record.loss_functions[term.loss]
            is_alone = len(training) == 1 and (loss.source is not None or loss.origin_function is not None)
            found = list(_maximized(objective, term, loss, finite)) if is_alone else []
            yield from found
            if not found and is_alone:
                yield from _trend(objective, loss)
            yield from _summed(objective, term, finite)
            yield from _scaled(objective, term)
        elif len(finite) >= ENOUGH_VALUES:
            yield from _unbounded(objective, finite)
        yield from _constant(view, objective)


@check("structural")
def check_negative_losses(view: RecordView) -> Iterator[Finding]:
    """Find losses below zero whose functions cannot be."""
    from normscope.diagnostics.findings.loss_inputs import check_loss_inputs
    from normscope.diagnostics.findings.loss_targets import check_targets

    if {f.name for checked in (check_loss_inputs, check_targets) for f in checked(view)} & _EXPLAINED_BY:
        return
    for loss in view.record.loss_functions:
        if loss.function in _NEVER_NEGATIVE and loss.least is not None and loss.least < -1e-3:
            yield NEGATIVE.found_in("", {"least": loss.least, "line": loss.line}, call=describe_call(loss))


def _maximized(
    objective: ObjectiveStats, term: ObjectiveTerm, loss: LossFunctionStats, values: list[float]
) -> Iterator[Finding]:
    factor = term.factor
    if factor is None or factor == 0:
        return
    if term.is_signed:
        if loss.function == "difference" and min(values) < 0 and not term.is_weighted:
            yield SIGNED.found_in("", {"last": values[-1], "line": objective.line}, where=in_line(objective.line))
        return
    is_likelihood = loss.function in ("log_likelihood", "similarity")
    if loss.function == "product" or (is_likelihood and term.is_weighted):
        return
    sign = math.copysign(1.0, factor) * (-1 if is_likelihood else 1) * (-1 if objective.maximizes else 1)
    if sign > 0 or (loss.function not in HAND_WRITTEN and loss.function not in _NEVER_NEGATIVE):
        return
    evidence = {"first": values[0], "last": values[-1], "steps": objective.steps, "line": objective.line}
    how, fix = "backward starts from its negative", "remove the minus before the loss"
    if objective.maximizes:
        how, fix = f"{objective.optimizer} has maximize=True", "remove maximize=True from the optimizer"
    elif is_likelihood:
        how, fix = "backward starts from it without a minus", "use its negative, such as -log_probs.mean()"
        yield MINIMIZED.found_in("", evidence, call=describe_call(loss), how=how, fix=fix)
        return
    yield MAXIMIZED.found_in("", evidence, call=describe_call(loss), how=how, fix=fix)


def _trend(objective: ObjectiveStats, loss: LossFunctionStats) -> Iterator[Finding]:
    """A loss of labels that rises steadily: other losses may, as their targets move."""
    values = [value for value in loss.values or objective.values if math.isfinite(value)][:_MAX_PAIRED]
    is_labels = loss.function in (*CLASS_LOSSES, "binary_cross_entropy", "binary_cross_entropy_with_logits")
    if not is_labels or loss.target_values < 2 or len(values) < ENOUGH_VALUES or objective.steps < ENOUGH_VALUES:
        return
    third = len(values) // 3
    first, last = fmean(values[:third]), fmean(values[-third:])
    if 0 < 2 * first < last and _kendall(values) >= STEADY:
        yield RISES.found_in("", {"first": first, "last": last, "steps": len(values)}, where=in_line(objective.line))


def _unbounded(objective: ObjectiveStats, values: list[float]) -> Iterator[Finding]:
    third = len(values) // 3
    first, last = fmean(values[:third]), fmean(values[-third:])
    if max(values[-third:]) < UNBOUNDED_LOSS and last < -UNBOUNDED_GROWTH * abs(first):
        evidence = {"first": values[0], "last": values[-1], "steps": len(values), "line": objective.line}
        yield UNBOUNDED.found_in("", evidence, where=in_line(objective.line))


def _kendall(values: list[float]) -> float:
    """Kendall's tau of values and their positions: 1 if they rise throughout, 0 without a trend."""
    pairs = [(a < b) - (a > b) for i, a in enumerate(values) for b in values[i + 1 :]]
    return sum(pairs) / max(1, len(pairs))


def _summed(objective: ObjectiveStats, term: ObjectiveTerm, values: list[float]) -> Iterator[Finding]:
    size = objective.batch * abs(term.factor or 0.0)
    if not term.is_sum or size < SUM_OF_SAMPLES or term.is_weighted:
        return
    rate = objective.lr * size / max(1e-3, 1 - objective.momentum)
    third = max(1, len(values) // 3)
    falls = fmean(values[-third:]) < 0.5 * fmean(values[:third])
    is_large = rate >= SURE_SUM or (rate >= LARGE_SUM and not falls and len(values) > 2)
    severity = "warning" if is_large and not (objective.adapts or objective.clips) else "note"
    trend = "" if falls or len(values) < 3 else f"It does not fall: {values[0]:.3g} at first, {values[-1]:.3g} at last."
    evidence = {"batch": objective.batch, "lr": objective.lr, "line": objective.line}
    values_of = {"optimizer": objective.optimizer, "lr of mean": rate, "where": in_line(objective.line), "trend": trend}
    yield SUMMED.found_in("", evidence, severity, **values_of)


def _scaled(objective: ObjectiveStats, term: ObjectiveTerm) -> Iterator[Finding]:
    if term.factor is None or term.is_weighted:
        return
    where, factor = in_line(objective.line), abs(term.factor) * (objective.batch if term.is_sum else 1)
    if factor == 0:
        effect, fix = "All gradients are zero, and nothing is learned.", "remove the factor"
        yield SCALED.found_in("", {"factor": 0.0, "line": objective.line}, "error", where=where, effect=effect, fix=fix)
        return
    total = factor * objective.backward_passes / objective.steps
    step = total * objective.lr / max(1e-3, 1 - objective.momentum)
    if total < SMALL_FACTOR:
        effect = f"Gradients are smaller by this factor: {objective.optimizer} "
        effect += (
            "makes up for it, as long as they are far above its eps."
            if objective.adapts
            else (f"steps as with a learning rate of {step:.1e}.")
        )
        severity = "warning" if not objective.adapts and step < SMALL_STEP else "note"
        fix = "remove the factor: a loss that is a mean is divided by the batch size already; divide by the number of "
        fix += "backward passes per step only"
    elif (
        not term.is_sum
        and factor * SMALL_FACTOR > 1
        and step >= LARGE_STEP
        and not (objective.adapts or objective.clips)
    ):
        effect = (
            f"Gradients are larger by this factor: {objective.optimizer} steps as with a learning rate of {step:.3g}."
        )
        severity, fix = "warning", "remove the factor, or lower the learning rate"
    else:
        return
    evidence = {"factor": factor, "lr": objective.lr, "line": objective.line}
    yield SCALED.found_in("", evidence, severity, where=where, effect=effect, fix=fix)


def _constant(view: RecordView, objective: ObjectiveStats) -> Iterator[Finding]:
    values = objective.values
    if len(values) < ENOUGH_CONSTANT or len(set(values)) > 1 or not math.isfinite(values[0]) or values[0] == 0:
        return
    if any((parameter.update_ratio or 0.0) > 1e-6 for _, parameter in view.parameters):
        evidence = {"value": values[0], "passes": objective.backward_passes}
        yield CONSTANT_LOSS.found_in("", evidence, where=in_line(objective.line))
