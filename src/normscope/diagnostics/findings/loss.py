"""A cross-entropy that is worse than guessing, or is given what is no logits."""

import math

from normscope.diagnostics.findings.base import Finding
from normscope.diagnostics.findings.record_view import View, called, linear_weight, short
from normscope.diagnostics.findings.unscaled_inputs import unscaled_input

EXCESS = 4.0
"""Nats over ln V. Logits of spread s that know nothing cost about ln V + s^2 / 2, so this is a spread of 2 sqrt(2),
twice the largest gain in use. It is wrong at any time; how far a loss is below ln V says nothing of a fault."""


def loss_above_chance(view: View) -> list[Finding]:
    real = [loss for loss in view.record.losses if math.isfinite(loss.value) and loss.num_classes > 1]
    if not real:
        return []
    loss, risen = real[0], view.steps_before > 0
    chance = math.log(loss.num_classes)
    if loss.value < chance + EXCESS:
        loss, risen = real[-1], True
        chance = math.log(loss.num_classes)
    excess = loss.value - chance
    if excess < EXCESS:
        return []
    head = _head(view, loss.num_classes)
    place = called(head) if head else "what gives the logits"
    figures: dict[str, float | str] = {"loss": loss.value, "ln V": chance, "excess": excess}
    module = view.modules.get(head)
    if module is not None and module.output is not None:
        figures["rms of logits"] = module.output.rms
    title = f"the {'last' if risen else 'first'} loss is {short(loss.value)}; guessing among {loss.num_classes} costs "
    title += short(chance)
    why = f"A model that knows nothing and says so has a loss of ln {loss.num_classes} = {short(chance)}. This one is sure "
    why += "of what is wrong"
    why += ": it has been driven there by its steps." if risen else ", because its logits are large."
    fix = f"start {place} smaller, so that they are of size 1 at most: nn.init.normal_(weight, std=0.02), or zeros; if "
    fix += "it is tied to an embedding, start that at 1/sqrt(width)"
    unscaled = None if risen else unscaled_input(view, head)
    if risen:
        fix = "lower the learning rate, and look at whether labels and logits belong together"
    elif unscaled is not None:
        head, fix, figures["rms of input"] = unscaled.module, unscaled.fix, unscaled.size
        title, why = f"{title}: the input is not scaled", f"{why} {unscaled.why}"
    return [Finding("loss-above-chance", "warning", head, title, figures, why, fix)]


def squashed_logits(view: View) -> list[Finding]:
    """A cross-entropy takes the softmax of what it is given: what has been through one before can say little."""
    first = {
        (loss.logits_function, loss.logits_module): loss
        for loss in reversed(view.record.losses)
        if loss.logits_function is not None
    }
    found = []
    for (function, module), loss in reversed(first.items()):
        maker = f"`{function}()` in {called(module)}" if module is not None else f"`{function}()` after the model"
        figures: dict[str, float | str] = {"classes": loss.num_classes, "loss": loss.value}
        if function == "log_softmax":
            severity, title = "note", f"{maker} goes into a cross-entropy, which takes the log_softmax itself"
            why = "The log_softmax of one is the same again: nothing is wrong, and it is done twice."
            fix = "drop it, or use F.nll_loss on its output"
        else:
            least = math.log(math.e + loss.num_classes - 1) - 1
            figures["least loss"] = least
            severity, title = "warning", f"what {maker} gives goes into a cross-entropy, which wants logits"
            why = (
                f"A cross-entropy takes the softmax of what it is given. From numbers between 0 and 1 it makes nearly "
                f"equal chances: among {loss.num_classes} classes the loss cannot come below {short(least)}, and gradients "
                f"are small."
            )
            fix = f"give it what goes into {function}(), and use {function}() only where probabilities are read"
        found.append(Finding("squashed-logits", severity, module or "", title, figures, why, fix))
    return found


def _head(view: View, classes: int) -> str:
    """The last linear layer that gives one number for each class; the model itself if there is none."""
    for module in reversed(view.ran):
        shape = module.output_shapes[0] if module.output_shapes else ()
        if linear_weight(module) is not None and classes in shape[1:]:
            return module.name
    return ""
