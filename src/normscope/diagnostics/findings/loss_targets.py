"""Targets that do not fit the loss: other shapes, values outside of its range, none, or always the same."""

import math
from collections.abc import Iterator

from normscope.diagnostics.findings.finding import Finding, FindingKind, RecordView, check
from normscope.diagnostics.findings.loss_calls import CLASS_LOSSES, HAND_WRITTEN, confirmed_losses, describe_call
from normscope.diagnostics.stats.losses import LossFunctionStats

BROADCASTS = FindingKind("""
loss-broadcasts: {call} broadcasts predictions {predictions} against targets {targets}
why: Predictions are compared with the targets of other samples or outputs, rather than with their own. The loss is
lowest when every prediction is the mean of the targets.
fix: give both the same shape: predictions.squeeze(-1), targets.unsqueeze(-1), or predictions.gather(1, index)
""")
TRANSPOSED = FindingKind("""
mixes-axes: {call} compares predictions in one order with targets in another
why: The predictions were flattened from (time, batch, classes), and the targets from (batch, time), or the reverse:
most predictions are compared with the target of another sample and position.
fix: transpose one of them before it is flattened: predictions.transpose(0, 1).flatten(0, 1)
""")
SWAPPED_ARGUMENTS = FindingKind("""
loss-arguments-swapped: {call} gets the targets as its input, and the predictions as its target
why: The target requires a gradient, and the input does not. The loss is not symmetric: its logarithms are those of
labels here.
fix: pass the predictions first: loss(predictions, targets)
""")
OUT_OF_RANGE = FindingKind("""
targets-out-of-range: targets of {call} are from {target min} to {target max}; {expected}
why: {effect}
fix: {fix}
""")
BLANKS = FindingKind("""
targets-out-of-range: {blanks} of {targets} targets of {call} are the blank
why: The blank separates labels, and cannot be a label itself: sequences that contain it cannot be aligned.
fix: reserve an index for the blank that no label has, or pass the right one: CTCLoss(blank=...)
""")
TOO_SHORT = FindingKind("""
targets-out-of-range: {too short} of {samples} sequences of {call} have fewer inputs than targets
why: They cannot be aligned: their loss is infinite, or zero with zero_infinity=True, and nothing is learned from them.
fix: check input_lengths, which count steps of the output after striding and pooling, and the order of its axes: time,
batch, classes
""")
NO_TARGETS = FindingKind("""
no-targets: in {empty} of {calls} calls of {call}, {why_empty}
why: {effect}
fix: check how the mask or the labels are made: masks are often inverted, or labels overwritten with the ignored value
""")
EMPTY_MASK = FindingKind("""
no-targets: a mask leaves nothing of the loss in {empty} of {passes} backward passes
why: The loss was {value} there, and nothing was learned. The mask was applied in {line}.
fix: check the mask: it may be inverted, or compare with the wrong padding value
""")
FEW_TARGETS = FindingKind("""
no-targets: only {kept} of {all} targets of {call} are not ignored
why: The gradient comes from fewer than two targets per batch: it is noisy, and most of the data is not used.
fix: check how labels are masked; masks are often inverted
""")
CONSTANT = FindingKind("""
constant-targets: all {targets} targets of {call} are {value}
why: The model learns to return this value for any input.
fix: check where labels are made: a buffer that is never filled, a label column that is the same for all, integer
division, or data that is sorted by class and not shuffled
""")
EQUAL_INPUTS = FindingKind("""
targets-equal-inputs: the targets of {call} are the input tokens, without a shift
why: Each position sees the token that it has to predict, so the model learns to copy it. The loss falls quickly, but
generated text repeats one token.
fix: predict the next token: logits[:, :-1] against tokens[:, 1:]
""")
SHIFTED_TWICE = FindingKind("""
targets-shifted-twice: the target of each token is not the next one but that after it, in {calls} calls of {call}
why: The labels are shifted before the model, which shifts them too, as the models of Hugging Face do. The model learns
to skip every other token.
fix: shift only once: labels=input_ids if the model computes the loss
""")
SMOOTHING = FindingKind("""
label-smoothing-too-large: the labels of {call} are smoothed by {smoothing}
why: Label smoothing of s spreads a probability of s evenly over all classes, and leaves 1 - s for the right one: less
than half of the target depends on the label. Usual values are 0.1 to 0.2.
fix: use label_smoothing=0.1, or none
""")
ZERO_WEIGHTS = FindingKind("""
class-weight-zero: {zero} classes among the targets of {call} have weight 0
why: Nothing is learned from their samples.
fix: check the weights: integer division, or counts of another split of the data, give zeros
""")
EQUAL_PAIRS = FindingKind("""
anchor-equals-positive: in {equal:%} of the triplets of {call}, anchor and positive are the same
why: Their distance is zero, so nothing pulls different samples of a class together.
fix: draw the positive from other samples of the class, or augment it
""")
SWAPPED = FindingKind("""
triplets-swapped: in {swapped:%} of the first triplets of {call}, the positive is farther away than the negative
why: Even embeddings of an untrained network put similar inputs closer together. The loss pulls the negative to the
anchor, and pushes the positive away.
fix: check the order of the arguments: anchor, positive, negative
""")
KL_MEAN = FindingKind("""
kl-divided-by-classes: {call} averages over samples and classes
why: reduction="mean" divides the KL divergence by the number of classes too, {classes} here. The gradient is smaller
by this factor.
fix: use reduction="batchmean"
""")

MARGIN = 1e-4
"""Targets may leave the range by rounding."""

LARGE_SMOOTHING = 0.5
"""From here on, less than half of the target depends on the label."""

ENOUGH_TARGETS, ENOUGH_CALLS = 64, 3
"""Targets and batches to call them constant. Of two classes, of which one has 5% of the samples, 64 targets show both
with probability 0.96, and 5% or less is worth knowing."""

FEW, MANY_IGNORED = 2, 64
"""Targets per call that are few, if as many as this are ignored: a language model that predicts only the last of 64
tokens still has one target for each sequence."""

MOSTLY = 0.9
"""Fraction of calls or triplets. Of 8 triplets whose positives and negatives are alike, all agree once in 256."""

FEW_TRIPLETS = 8

_PROBABILITY_LOSSES = ("binary_cross_entropy", "binary_cross_entropy_with_logits", "multilabel_soft_margin_loss")
_SIGN_LOSSES = ("hinge", "soft_margin_loss", "hinge_embedding_loss", "margin_ranking_loss", "cosine_embedding_loss")


@check("structural")
def check_targets(view: RecordView) -> Iterator[Finding]:
    """Find targets that do not fit their loss."""
    losses = [(i, loss) for i, loss in enumerate(view.record.loss_functions) if loss in confirmed_losses(view.record)]
    found: dict[tuple[str, str | None], Finding] = {}
    for index, loss in losses:  # one line may call a loss with outputs of several modules
        for finding in (*_wrong_targets(loss), *_constant(view, index, loss), *_equal(view, loss)):
            found.setdefault((finding.name, loss.line), finding)
    yield from found.values()
    for objective in view.record.objectives:
        if objective.empty_masks > 1 or (objective.empty_masks and objective.backward_passes == 1):
            evidence = {"empty": objective.empty_masks, "passes": objective.backward_passes}
            value = "NaN" if any(value != value for value in objective.values) else "0"
            yield EMPTY_MASK.found_in("", evidence, value=value, line=objective.mask_line or "the loss")


def _wrong_targets(loss: LossFunctionStats) -> Iterator[Finding]:
    call = describe_call(loss)
    if loss.broadcasts:
        evidence = {"calls": loss.broadcasts, "line": loss.line}
        shapes = {"predictions": _shape(loss.input_shape), "targets": _shape(loss.target_shape)}
        yield BROADCASTS.found_in("", evidence, "error", call=call, **shapes)
    if loss.swapped_arguments and loss.function in _PROBABILITY_LOSSES:
        evidence = {"calls": loss.swapped_arguments, "line": loss.line}
        yield SWAPPED_ARGUMENTS.found_in("", evidence, "error", call=call)
    if loss.transposed:
        yield TRANSPOSED.found_in("", {"calls": loss.transposed, "line": loss.line}, "error", call=call)
    yield from _out_of_range(loss)
    yield from _missing(loss)
    smoothing = _smoothing(loss)
    if smoothing >= LARGE_SMOOTHING:
        yield SMOOTHING.found_in("", {"smoothing": smoothing, "line": loss.line}, call=call)
    if loss.zero_weight_classes:
        severity = "warning" if loss.zero_weight_classes > 1 or loss.classes == 2 else "note"
        yield ZERO_WEIGHTS.found_in("", {"zero": loss.zero_weight_classes}, severity, call=call)
    if loss.function == "triplet_margin_loss" and loss.samples:
        if loss.equal_pairs >= MOSTLY * loss.samples:
            yield EQUAL_PAIRS.found_in("", {"equal": loss.equal_pairs / loss.samples}, call=call)
        elif not loss.is_mined and loss.samples >= FEW_TRIPLETS and loss.swapped >= MOSTLY * loss.samples:
            yield SWAPPED.found_in("", {"swapped": loss.swapped / loss.samples}, call=call)
    if loss.function == "kl_div" and loss.reduction == "mean" and loss.classes > 1:
        yield KL_MEAN.found_in("", {"classes": loss.classes}, "note", call=call)


def _out_of_range(loss: LossFunctionStats) -> Iterator[Finding]:
    call = describe_call(loss)
    if loss.blanks:
        yield BLANKS.found_in("", {"blanks": loss.blanks, "targets": loss.targets}, call=call)
    if loss.too_short:
        yield TOO_SHORT.found_in("", {"too short": loss.too_short, "samples": loss.samples}, call=call)
    low, high = loss.target_min, loss.target_max
    if low is None or high is None:
        return
    is_outside = low < -MARGIN or high > 1 + MARGIN
    expected = effect = fix = ""
    if loss.function in _PROBABILITY_LOSSES and is_outside:
        expected = "it expects probabilities, 0 to 1"
        effect = "For other targets the loss has no minimum: it falls below zero without bound as outputs grow."
        fix = "map labels to 0 and 1; for labels -1 and 1, (y + 1) / 2; divide pixels by 255"
    elif loss.function in _SIGN_LOSSES and (low, high) == (0, 1):
        expected = "it expects 1 and -1"
        effect = "Samples with target 0 do not contribute as the other class."
        fix = "use 2 * y - 1"
    elif loss.function == "cross_entropy" and loss.target_sum_max is not None and is_outside:
        expected = "it expects classes, or their probabilities"
        effect = "Targets of the shape of the logits count as probabilities: with others the loss has no minimum."
        fix = "pass class indices, or probabilities with the sum 1"
    elif loss.function == "kl_div" and (low < -MARGIN if not loss.log_target else high > MARGIN):
        expected = f"it expects {'log-' * loss.log_target}probabilities"
        effect = "The loss is no divergence, and may be negative or NaN."
        fix = "pass softmax(x, -1) as the target, or log_softmax(x, -1) with log_target=True"
    elif loss.function == "poisson_nll_loss" and low < -MARGIN:
        expected = "it expects counts"
        effect = "The likelihood of a negative count is not defined."
        fix = "do not normalize counts"
    if expected:
        evidence = {"target min": low, "target max": high, "least loss": loss.least, "line": loss.line}
        yield OUT_OF_RANGE.found_in("", evidence, call=call, expected=expected, effect=effect, fix=fix)


def _missing(loss: LossFunctionStats) -> Iterator[Finding]:
    call, empty = describe_call(loss), loss.calls_without_targets
    if empty:
        severity = "error" if empty == loss.calls else "warning" if loss.reduction == "mean" else "note"
        effect = "The mean of no losses is NaN, which spreads to all weights." if loss.reduction == "mean" else ""
        why_empty = "no target is left: all are ignored" if loss.function in CLASS_LOSSES else "all targets are empty"
        evidence = {"empty": empty, "calls": loss.calls, "line": loss.line}
        effect = effect or "Nothing is learned from these batches."
        yield NO_TARGETS.found_in("", evidence, severity, call=call, why_empty=why_empty, effect=effect)
    elif loss.ignored >= MANY_IGNORED * loss.calls and loss.targets < FEW * loss.calls:
        evidence = {"kept": loss.targets, "all": loss.targets + loss.ignored}
        yield FEW_TARGETS.found_in("", evidence, call=call)


def _smoothing(loss: LossFunctionStats) -> float:
    """The label smoothing of the function, or that of targets with two values."""
    low, high = loss.target_min, loss.target_max
    is_probability = loss.function in _PROBABILITY_LOSSES or (loss.function == "cross_entropy" and loss.target_sum_max)
    if is_probability and loss.target_values == 2 and low is not None and high is not None and 0 < low < high < 1:
        return max(loss.label_smoothing, 1 - (high - low))
    return loss.label_smoothing


def _constant(view: RecordView, index: int, loss: LossFunctionStats) -> Iterator[Finding]:
    """Targets that never vary, if the loss is all that is trained with, and its input is an output of the model.

    Losses of generated data, such as those of a discriminator or of a differential equation, have constant targets too,
    but also other terms, or other losses of the same output. Contrastive losses put the positive first.
    """
    if loss.target_values != 1 or loss.targets < ENOUGH_TARGETS or loss.calls < ENOUGH_CALLS:
        return
    if loss.source is None or loss.classes == 1 or (loss.function in CLASS_LOSSES and _chooses_first(view, loss)):
        return
    if loss.function not in (*CLASS_LOSSES, *_PROBABILITY_LOSSES, "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss",
                             "difference"):  # fmt: skip
        return
    others = [o for o in view.record.objectives if o.steps and {term.loss for term in o.terms} != {index}]
    own = [o for o in view.record.objectives if {term.loss for term in o.terms} == {index} and o.is_complete]
    if own and not others:
        value = loss.target_min if loss.target_min is not None else 0.0
        yield CONSTANT.found_in("", {"targets": loss.targets, "line": loss.line}, call=describe_call(loss), value=value)


def _chooses_first(view: RecordView, loss: LossFunctionStats) -> bool:
    """Whether the first of several candidates is the right one: classes have a layer with a weight for each."""
    layer = view.modules.get(loss.source or "")
    return loss.target_max == 0 and (loss.scaled_cosines or layer is None or layer.linear_weight is None)


def _equal(view: RecordView, loss: LossFunctionStats) -> Iterator[Finding]:
    if _equals_inputs(view, loss):
        yield EQUAL_INPUTS.found_in("", {"line": loss.line}, call=describe_call(loss))
    others = [other for other in view.record.loss_functions if other is not loss]
    if loss.calls_shifted_twice < max(2, MOSTLY * min(loss.calls, 16)) or loss.calls_shifted:
        return
    if not any(other.calls_shifted for other in others):  # which predicts several tokens
        evidence = {"calls": loss.calls_shifted_twice, "line": loss.line}
        yield SHIFTED_TWICE.found_in("", evidence, call=describe_call(loss))


def _equals_inputs(view: RecordView, loss: LossFunctionStats) -> bool:
    """Whether the targets are the tokens that the model got, and no layer of it drops the axis of tokens."""
    if loss.calls_equal_to_input < max(2, MOSTLY * min(loss.calls, 16)) or loss.function in HAND_WRITTEN:
        return False
    layers = [module for module in view.ran if module.parameters and module.output_shapes]
    lengths = {shape[1] for m in layers if m.kind == "Embedding" and len(shape := m.input_shape) > 1}
    lengths.add(loss.token_length)
    rows = math.prod(loss.target_shape)
    return all(m.kind == "Embedding" or _has_axis_of(m.output_shapes[0], lengths, rows) for m in layers)


def _has_axis_of(shape: tuple[int, ...], lengths: set[int], rows: int) -> bool:
    """Whether an output has values for each token: an axis of tokens, or one row for each."""
    return bool(lengths.intersection(shape[:-1])) if len(shape) > 2 else shape[:1] == (rows,)


def _shape(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
