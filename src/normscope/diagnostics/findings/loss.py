"""A cross-entropy that is worse than guessing, or that is not given logits."""

import math

from normscope.diagnostics.findings.base import Finding
from normscope.diagnostics.findings.record_view import RecordView, linear_weight, module_ref
from normscope.diagnostics.findings.unscaled_inputs import find_unscaled_input
from normscope.render.formatting import format_short

MAX_EXCESS = 4.0
"""Nats above ln V. Uninformative logits with standard deviation s cost about ln V + s^2 / 2, so this is an s of 2
sqrt(2), twice the largest gain in use. Such a loss is wrong at any time; a loss below ln V says nothing."""


def check_loss(view: RecordView) -> list[Finding]:
    finite = [loss for loss in view.record.losses if math.isfinite(loss.value) and loss.num_classes > 1]
    if not finite:
        return []
    loss, trained = finite[0], view.steps_before_xray > 0
    chance = math.log(loss.num_classes)
    if loss.value < chance + MAX_EXCESS:
        loss, trained = finite[-1], True
        chance = math.log(loss.num_classes)
    excess = loss.value - chance
    if excess < MAX_EXCESS:
        return []
    head = _head(view, loss.num_classes)
    place = module_ref(head) if head else "the output layer"
    evidence: dict[str, float | str] = {"loss": loss.value, "ln V": chance, "excess": excess}
    module = view.modules.get(head)
    if module is not None and module.output is not None:
        evidence["logits rms"] = module.output.rms
    title = (
        f"the {'last' if trained else 'first'} loss is {format_short(loss.value)}; guessing among {loss.num_classes} "
    )
    title += f"classes gives {format_short(chance)}"
    why = f"Uniform predictions have a loss of ln {loss.num_classes} = {format_short(chance)}. This model is confident "
    why += "in wrong classes"
    why += ": training has diverged." if trained else " because its logits are large."
    fix = f"use a smaller initialization for {place}, so that the logits have an rms of at most 1: "
    fix += "nn.init.normal_(weight, std=0.02), or zeros; if it is tied to an embedding, initialize that with std "
    fix += "1 / sqrt(width)"
    unscaled = None if trained else find_unscaled_input(view, head)
    if trained:
        fix = "lower the learning rate, and check that labels and logits match"
    elif unscaled is not None:
        head, fix, evidence["input rms"] = unscaled.module, unscaled.fix, unscaled.rms
        title, why = f"{title}; the input is not normalized", f"{why} {unscaled.why}"
    return [Finding("loss-above-chance", "warning", head, title, evidence, why, fix)]


def check_logits(view: RecordView) -> list[Finding]:
    """Find cross-entropies whose input already went through softmax or sigmoid."""
    first = {
        (loss.logits_function, loss.logits_module): loss
        for loss in reversed(view.record.losses)
        if loss.logits_function is not None
    }
    found = []
    for (function, module), loss in reversed(first.items()):
        source = f"`{function}()` in {module_ref(module)}" if module is not None else f"`{function}()` after the model"
        evidence: dict[str, float | str] = {"classes": loss.num_classes, "loss": loss.value}
        if function == "log_softmax":
            severity, title = "note", f"{source} feeds a cross-entropy, which applies log_softmax itself"
            why = "Applying log_softmax twice gives the same result: harmless, but redundant."
            fix = "remove it, or use F.nll_loss on its output"
        else:
            min_loss = math.log(math.e + loss.num_classes - 1) - 1
            evidence["minimum loss"] = min_loss
            severity, title = "warning", f"the output of {source} is passed to a cross-entropy, which expects logits"
            why = (
                f"Cross-entropy applies softmax to its input. For inputs between 0 and 1 the result is nearly uniform: "
                f"with {loss.num_classes} classes the loss cannot fall below {format_short(min_loss)}, and gradients "
                "are small."
            )
            fix = f"pass the input of {function}() to the loss; apply {function}() only where you need probabilities"
        found.append(Finding("probabilities-as-logits", severity, module or "", title, evidence, why, fix))
    return found


def _head(view: RecordView, classes: int) -> str:
    """The last linear layer with one output per class; "" if there is none."""
    for module in reversed(view.ran):
        shape = module.output_shapes[0] if module.output_shapes else ()
        if linear_weight(module) is not None and classes in shape[1:]:
            return module.name
    return ""
