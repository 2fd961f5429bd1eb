"""Losses that get something else than they expect: probabilities, logits, or outputs that cannot reach the targets."""

import math
from collections.abc import Iterator
from typing import Any

from normscope.diagnostics.findings.finding import Finding, FindingKind, RecordView, check
from normscope.diagnostics.findings.loss_calls import CLASS_LOSSES, HAND_WRITTEN, confirmed_losses, describe_call
from normscope.diagnostics.module_names import module_ref
from normscope.diagnostics.stats.losses import LossFunctionStats

REDUNDANT_LOG_SOFTMAX = FindingKind("""
probabilities-as-logits: {source} feeds a cross-entropy, which applies log_softmax itself
why: Applying log_softmax twice gives the same result: harmless, but redundant.
fix: remove it, or use F.nll_loss on its output
""")
PROBABILITIES_AS_LOGITS = FindingKind("""
probabilities-as-logits: the output of {source} is passed to a cross-entropy, which expects logits
why: Cross-entropy applies softmax to its input. For inputs between 0 and 1 the result is nearly uniform: with {classes}
classes the loss cannot fall below {minimum loss}, and gradients are small.
fix: pass the input of {function}() to the loss; apply {function}() only where you need probabilities
""")
VALUES_ARE_PROBABILITIES = FindingKind("""
probabilities-as-logits: {call} expects logits, but gets probabilities: each row is from 0 to 1 and sums to 1
why: Cross-entropy applies softmax to its input. For inputs between 0 and 1 the result is nearly uniform: with {classes}
classes the loss cannot fall below {minimum loss}, and gradients are small.
fix: pass the values before they are normalized, or use F.nll_loss on their logarithms
""")
PROBABILITIES_IN_BINARY_LOSS = FindingKind("""
probabilities-as-logits: the output of {source} is passed to {call}, which expects logits
why: The loss applies sigmoid to its input. It takes inputs from {low} to {high} for probabilities from {least} to
{most}, so it cannot become small, and gradients are small too.
fix: pass the input of {function}() to the loss, or use F.binary_cross_entropy on probabilities
""")
RATES = FindingKind("""
probabilities-as-logits: the output of {source} is passed to {call}, which expects logarithms of rates
why: The loss takes the exponential of its input: if the input is already positive, all rates are above 1.
fix: pass the input of {function}(), or set log_input=False
""")
NORMALIZED_TWICE = FindingKind("""
probabilities-as-logits: {second}() is applied to the output of {source}, which are probabilities already
why: Softmax or sigmoid of numbers between 0 and 1 is nearly uniform, so that the loss of {call} cannot become small,
and gradients are small.
fix: apply one of the two only, to the output of the last linear layer; for log-probabilities of probabilities, use log
""")
LOGITS_AS_LOG_PROBABILITIES = FindingKind("""
logits-as-probabilities: {call} expects log-probabilities, but gets values up to {largest}
why: Logarithms of probabilities are at most 0. With {what}, the loss is not a likelihood: it decreases without bound as
the outputs grow, whether or not they are right.
fix: apply F.log_softmax(x, dim={axis}) to the input of the loss{or_else}
""")
NO_PROBABILITIES = FindingKind("""
logits-as-probabilities: {call} expects probabilities, but gets values from {least} to {largest}
why: The loss takes logarithms of its input and of 1 minus its input, so torch raises an error for other values.
fix: use F.binary_cross_entropy_with_logits, or apply sigmoid to the output of the model
""")
CLAMPED_PROBABILITIES = FindingKind("""
logits-as-probabilities: {call} expects probabilities, but gets the output of {source}
why: {function}() is not a sigmoid: where it cuts off values, the gradient is zero, so nothing is learned from the
samples that are most wrong.{zeros}
fix: use F.binary_cross_entropy_with_logits on the output of the last linear layer
""")
SOFTMAX_OVER_BATCH = FindingKind("""
softmax-over-batch: {source} normalizes over the batch, and not over the classes, before {call}
why: The probabilities of each class sum to 1 over the samples of a batch: the prediction for a sample depends on the
others, and the classes of a sample do not compete.
fix: normalize over the classes: dim=-1, or dim=1 for inputs of shape (batch, classes, ...)
""")
ONE_OUTPUT = FindingKind("""
softmax-over-one-output: {call} normalizes over a single output, whose probability is always 1
why: The loss does not depend on the output of the model, and all gradients are zero.
fix: for two classes, use two outputs, or one output with F.binary_cross_entropy_with_logits
""")
OUT_OF_REACH = FindingKind("""
output-out-of-reach: {outside:%} of the targets lie outside of what {source} returns, {low} to {high}
why: Targets are from {target min} to {target max}. The part that no output can reach is {unreachable:%} of their
variance: this part of the loss remains, and pushes the activation into saturation.
fix: remove {function}() from the output, or scale the targets to its range
""")
BOUNDED_LOGITS = FindingKind("""
output-out-of-reach: {source} bounds the logits of {call} to {low} to {high}
why: {effect}
fix: remove {function}() after the last linear layer: the loss expects unbounded logits
""")
SMALL_COSINES = FindingKind("""
output-out-of-reach: the logits of {call} are cosines, from {low} to {high}
why: {effect}
fix: divide them by a temperature, such as 0.07
""")

LOG_PROBABILITY_MARGIN = 1e-3
"""Log-probabilities exceed 0 by rounding only: log_softmax in bfloat16 computes in float32 and rounds to at most 0."""

UNNORMALIZED = 0.5
"""Nats by which the logsumexp of a row may differ from 0. Rounding to bfloat16 changes it by 2^-8 of the largest
log-probability that counts, about 0.02."""

NORMALIZED = 0.05
"""Nats: a row within this of 0 was normalized."""

MIN_UNREACHABLE = 0.05
"""Part of the variance of the targets, and fraction of targets, that no output can reach. Predicting the mean costs
all of the variance, so 5% caps R^2 at 0.95: less than that may be outliers or noise around the ends."""

MIN_FLOOR = 0.15
"""Least loss with bounded logits, as a part of ln V, that is worth a warning. Tanh before two classes has 0.18."""

MAX_GAP = 0.2
"""How far a target may lie outside of the probabilities that a bounded logit can express. Of tanh, which reaches 0.27
and 0.73, it is 0.27; soft-capped logits, cap 15 or more, have less than 1e-6."""

_PROBABILITIES = ("softmax", "sigmoid", "hardsigmoid", "gumbel_softmax")
_NORMALIZED_INPUTS = ("nll_loss", "kl_div", "ctc_loss", "log_likelihood")
_BINARY_LOGITS = ("binary_cross_entropy_with_logits", "multilabel_soft_margin_loss")


@check("structural")
def check_logits(view: RecordView) -> Iterator[Finding]:
    """Find cross-entropies whose input already went through softmax or sigmoid."""
    first = {
        (loss.logits_function, loss.logits_module): loss
        for loss in reversed(view.record.losses)
        if loss.logits_function is not None
    }
    for (function, module), loss in reversed(first.items()):
        source = _source(function, module)
        evidence = {"classes": loss.num_classes, "loss": loss.value}
        if function == "log_softmax":
            yield REDUNDANT_LOG_SOFTMAX.found_in(module or "", evidence, "note", source=source)
        elif loss.num_classes > 1:
            evidence["minimum loss"] = math.log(math.e + loss.num_classes - 1) - 1
            yield PROBABILITIES_AS_LOGITS.found_in(module or "", evidence, source=source, function=function)


@check("structural")
def check_loss_inputs(view: RecordView) -> Iterator[Finding]:
    """Find losses whose input is of another kind, or has a range that does not fit the targets."""
    done = set()
    for loss in confirmed_losses(view.record):
        found = _wrong_input(loss)
        if found is not None and (found.name, found.module) not in done:
            done.add((found.name, found.module))
            yield found


def _wrong_input(loss: LossFunctionStats) -> Finding | None:
    if loss.origin_function is not None and loss.softmax_size == 1 and loss.function not in HAND_WRITTEN:
        return ONE_OUTPUT.found_in(loss.origin_module or "", {"line": loss.line}, "error", call=_place(loss))
    if loss.function == "cross_entropy" and loss.classes == 1 and loss.target_sum_max is None:
        return ONE_OUTPUT.found_in("", {"line": loss.line}, "error", call=describe_call(loss))
    return _over_batch(loss) or _log_probabilities(loss) or _probabilities(loss) or _bounded(loss)


def _source(function: str | None, module: str | None) -> str:
    return f"`{function}()` in {module_ref(module)}" if module is not None else f"`{function}()` after the model"


def _place(loss: LossFunctionStats) -> str:
    return _source(loss.origin_function, loss.origin_module)


def _over_batch(loss: LossFunctionStats) -> Finding | None:
    is_square = len(set(loss.input_shape[:2])) == 1  # similarities of pairs, which are normalized over both axes
    if not loss.softmax_over_batch or is_square or loss.function in HAND_WRITTEN or len(loss.input_shape) < 2:
        return None
    if loss.sums_to_one or (loss.unnormalized is not None and loss.unnormalized < NORMALIZED):
        return None
    evidence = {"line": loss.line}
    return SOFTMAX_OVER_BATCH.found_in(
        loss.origin_module or "", evidence, "error", source=_place(loss), call=describe_call(loss)
    )


def _log_probabilities(loss: LossFunctionStats) -> Finding | None:
    """A loss of log-probabilities that gets something else."""
    if loss.function not in ("nll_loss", "kl_div", "ctc_loss") or loss.input_max is None or loss.classes < 2:
        return None
    if not loss.input_max > LOG_PROBABILITY_MARGIN:
        return None
    or_else = ", or use F.cross_entropy instead" if loss.function == "nll_loss" else ""
    what = "logits"
    if loss.sums_to_one:
        what, or_else = "probabilities", "; of probabilities, take the logarithm, or better their input's log_softmax"
    evidence = {"largest": loss.input_max, "least loss": loss.least, "line": loss.line}
    axis = 1 if loss.function == "nll_loss" else -1
    return LOGITS_AS_LOG_PROBABILITIES.found_in(
        "", evidence, "error", call=describe_call(loss), what=what, axis=axis, or_else=or_else
    )


def _probabilities(loss: LossFunctionStats) -> Finding | None:
    """Probabilities where logits are expected, or the reverse."""
    call, function = describe_call(loss), loss.origin_function
    is_twice = loss.before_function in _PROBABILITIES and function in ("softmax", "log_softmax", "sigmoid")
    if is_twice and loss.function in (*_NORMALIZED_INPUTS, "binary_cross_entropy"):
        source = _source(loss.before_function, loss.before_module)
        return NORMALIZED_TWICE.found_in(
            loss.before_module or "", {"line": loss.line}, source=source, second=function, call=call
        )
    if loss.function == "cross_entropy" and loss.sums_to_one and loss.classes > 1 and function not in _PROBABILITIES:
        floor = math.log(math.e + loss.classes - 1) - 1
        return VALUES_ARE_PROBABILITIES.found_in("", {"classes": loss.classes, "minimum loss": floor}, call=call)
    if loss.function == "poisson_nll_loss" and loss.log_input and function in ("exp", "softplus"):
        return RATES.found_in(
            loss.origin_module or "", {"line": loss.line}, source=_place(loss), call=call, function=function
        )
    if loss.function in _BINARY_LOGITS and function in (*_PROBABILITIES, "log_softmax", "logsigmoid"):
        if loss.origin_scaled or loss.low is None or loss.high is None:
            return None
        evidence: dict[str, Any] = {"low": loss.low, "high": loss.high, "line": loss.line}
        values: dict[str, Any] = {"least": _sigmoid(loss.low), "most": _sigmoid(loss.high)}
        return PROBABILITIES_IN_BINARY_LOSS.found_in(
            loss.origin_module or "", evidence, source=_place(loss), call=call, function=function, **values
        )
    least, largest = loss.input_min or 0.0, loss.input_max or 0.0
    if loss.function == "binary_cross_entropy" and not 0 <= least <= largest <= 1:
        found: dict[str, Any] = {"least": least, "largest": largest, "line": loss.line}
        return NO_PROBABILITIES.found_in("", found, "error", call=call)
    cuts_off = function in ("relu", "hardtanh", "tanh") or (function == "clamp" and loss.zeros > MIN_UNREACHABLE)
    if loss.function in ("binary_cross_entropy", "log") and cuts_off and _is_unit(loss) and not loss.origin_scaled:
        zeros = f" {loss.zeros:.0%} of its outputs are exactly zero." if loss.zeros else ""
        return CLAMPED_PROBABILITIES.found_in(
            loss.origin_module or "",
            {"line": loss.line},
            call=call,
            source=_place(loss),
            function=function,
            zeros=zeros,
        )
    return None


def _is_unit(loss: LossFunctionStats) -> bool:
    """Whether bounds are about those of probabilities, and what is cut off is no output of softmax or sigmoid."""
    if loss.function == "binary_cross_entropy":
        return True
    low, high = loss.low or 0.0, loss.high or math.inf
    return 0 <= low < MIN_UNREACHABLE and high <= 1 and loss.source is not None and loss.before_function is None


def _bounded(loss: LossFunctionStats) -> Finding | None:
    """Outputs whose range the targets leave."""
    low, high, function = loss.low, loss.high, loss.origin_function
    if low is None or high is None or loss.target_min is None or loss.target_max is None:
        return None
    call, place = describe_call(loss), loss.origin_module or ""
    evidence: dict[str, Any] = {"low": low, "high": high, "line": loss.line}
    values: dict[str, Any] = {"source": _place(loss), "call": call, "function": function}
    if min(loss.unreachable, loss.outside) >= MIN_UNREACHABLE:
        more = {"target min": loss.target_min, "target max": loss.target_max}
        more |= {"unreachable": loss.unreachable, "outside": loss.outside}
        return OUT_OF_REACH.found_in(place, evidence | more, **values)
    if loss.function in (*_BINARY_LOGITS, "binary_cross_entropy"):
        is_logit = loss.function != "binary_cross_entropy"
        least, most = (_sigmoid(low), _sigmoid(high)) if is_logit else (low, high)
        if min(1.0, loss.target_min) < least - MAX_GAP or min(1.0, loss.target_max) > most + MAX_GAP:
            effect = f"Probabilities can only be from {least:.2f} to {most:.2f}, and targets are from "
            effect += f"{loss.target_min:g} to {loss.target_max:g}: the loss cannot become small."
            return BOUNDED_LOGITS.found_in(place, evidence, effect=effect, **values)
    if loss.function not in CLASS_LOSSES or loss.classes < 2 or loss.sums_to_one:
        return None
    if "relu" in (function, loss.before_function if function == "log_softmax" else None):
        if function != "relu":
            values["function"], values["source"] = "relu", _source("relu", loss.before_module)
            place, evidence = loss.before_module or "", evidence | {"low": 0.0, "high": math.inf}
        effect = (
            "A class whose logit is negative before relu gets no gradient, so it cannot be learned where it is wrong."
        )
        return BOUNDED_LOGITS.found_in(place, evidence, effect=effect, **values)
    if loss.function == "cross_entropy" and function not in (*_PROBABILITIES, "log_softmax"):
        floor = math.log1p((loss.classes - 1) * math.exp(low - high)) if math.isfinite(high - low) else 0.0
        if floor >= MIN_FLOOR * math.log(loss.classes):
            effect = (
                f"Even if all predictions are right, the loss of {loss.classes} classes cannot fall below {floor:.2f}."
            )
            if function != "cosine_similarity":
                return BOUNDED_LOGITS.found_in(place, evidence, effect=effect, **values)
            if not loss.origin_scaled:
                return SMALL_COSINES.found_in(place, evidence, "note", effect=effect, **values)
    return None


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0
