"""Numbers that are not finite: who made the first of them. Those that only pass them on are counted."""

import math

from normscope.diagnostics.findings.base import Finding
from normscope.diagnostics.findings.record_view import View, called, percent
from normscope.diagnostics.record import ModuleRecord, TensorStats


def not_finite(view: View) -> list[Finding]:
    """The first producer on the way forward; else weights that were not finite; else what the model was given; else the
    first one on the way back."""
    makers = [module for module in view.ran if module.produced_non_finite]
    given = next((module for module in view.ran if module.received_non_finite), None)
    broken = _broken_weights(view)
    before = [module for module in broken if not _was_finite(module)]
    back = [module for module in view.ran if module.produced_non_finite_gradient]
    # One that was given such numbers before anyone has made them got them from outside, or from weights like that.
    if given is not None and not before and (given.name == "" or not broken) and not _precedes(makers, given):
        return [_input(view, given)]
    if makers:
        # What makes nothing but minus infinity may be hiding something on purpose.
        return [_forward(view, [m for m in makers if not m.only_negative_infinity] or makers, len(makers))]
    if before:
        return [_weights(before[0], len(broken), "before any step that was seen")]
    if back:
        return [_backward(view, back[0])]
    if broken:
        return [_weights(broken[0], len(broken), "after the optimiser's step")]
    return []


def _precedes(makers: list[ModuleRecord], module: ModuleRecord) -> bool:
    return any((maker.order or 0) <= (module.order or 0) for maker in makers)


def _was_finite(module: ModuleRecord) -> bool:
    """Whether all that is not finite among its weights came by a step: the step then has no size."""
    spoilt = [parameter for parameter in module.parameters if parameter.values.non_finite]
    return all(parameter.update_ratio is not None and math.isnan(parameter.update_ratio) for parameter in spoilt)


def _non_finite_share(signal: TensorStats | None) -> float:
    return 0.0 if signal is None else signal.non_finite


def _broken_weights(view: View) -> list[ModuleRecord]:
    """Modules with weights that are not finite, in the order of execution, those that never ran at the end."""
    found = [m for m in view.modules.values() if any(parameter.values.non_finite for parameter in m.parameters)]
    return sorted(found, key=lambda module: view.execution_order(module.name))


def _input(view: View, module: ModuleRecord) -> Finding:
    lasting = _reaches_the_end(view)
    share = _non_finite_share(module.input)
    return Finding(
        "input-not-finite",
        "error" if lasting else "note",
        module.name,
        f"{called(module.name)} was given NaN or Inf"
        + (f": {percent(share)} of its input" if share else " beside its first input"),
        {"share of its input": share, "modules reached": sum(1 for m in view.ran if _non_finite_share(m.output))},
        "No module has made these numbers: they were there before, in the data or in what is done to it."
        + (" From here on they spread to the output, the loss or a gradient." if lasting else " They go no further."),
        "look for the rows with ~torch.isfinite(batch): missing values, a logarithm of zero, a division by a deviation "
        "of zero, an overflow of float16",
    )


def _forward(view: View, makers: list[ModuleRecord], count: int) -> Finding:
    maker = makers[0]
    reached = [module for module in view.ran if _non_finite_share(module.output)]
    lasting = _reaches_the_end(view)
    figures: dict[str, float | str] = {
        "share of its output": _non_finite_share(maker.output),
        "modules reached": len(reached),
        "other producers": count - 1,
    }
    if maker.input is not None:
        figures["largest input"] = maker.input.abs_max
    return Finding(
        "not-finite",
        "error" if lasting else "note",
        maker.name,
        f"{called(maker.name)} is the first to give NaN or Inf: {percent(_non_finite_share(maker.output))} of its output",
        figures,
        f"Its weights were finite, and so was what it was given, but for the -Inf of a mask, if any: so the numbers "
        f"were made in it: an overflow, a division by zero, a root or logarithm of zero, or a softmax over nothing. "
        f"{len(reached)} modules have such numbers in their output."
        + ("" if lasting else " But no NaN reaches the model's output, the loss or a gradient: it may be a mask."),
        f"look into the forward of {called(maker.name)}: add an eps under the root or in the divisor, keep one key "
        f"visible in every row of a mask, or compute this part in float32",
    )


def _reaches_the_end(view: View) -> bool:
    """Whether numbers that are not finite come to the output, the loss, a gradient or a weight.

    Minus infinity alone in the output is a mask, such as that of moves which a game does not allow.
    """
    root = view.modules.get("")
    ends = [root] if root is not None and root.order is not None else view.ran
    everything = [module.gradient for module in view.ran]
    everything += [parameter.gradient for module in view.modules.values() for parameter in module.parameters]
    outputs = any(_non_finite_share(module.output) and not module.only_negative_infinity for module in ends)
    losses = any(not math.isfinite(loss.value) for loss in view.record.losses)
    return bool(outputs or losses or _broken_weights(view) or any(map(_non_finite_share, everything)))


def _weights(module: ModuleRecord, count: int, when: str) -> Finding:
    worst = max(module.parameters, key=lambda parameter: parameter.values.non_finite)
    name = f"{module.name}.{worst.name}" if module.name else worst.name
    return Finding(
        "weights-not-finite",
        "error",
        module.name,
        f"{percent(worst.values.non_finite)} of the weight `{name}` is NaN or Inf",
        {"share": worst.values.non_finite, "modules with such weights": count},
        f"The weight was not finite {when}, so whatever it touches is lost: outputs, loss, and by the next step the "
        f"other weights too.",
        "load the last checkpoint whose weights are finite, and look at the step after it: clip gradients with "
        "nn.utils.clip_grad_norm_(model.parameters(), 1.0), or lower the learning rate",
    )


def _backward(view: View, module: ModuleRecord) -> Finding:
    name = called(module.name)
    reached = sum(1 for other in view.ran if _non_finite_share(other.gradient))
    finite = not any(_non_finite_share(other.output) for other in view.ran)
    skipped = view.record.skipped_steps if not _broken_weights(view) else 0
    outputs = "All outputs are finite" if finite else "Some outputs are not finite"
    if _non_finite_share(module.gradient) > 0:
        title = f"the loss sends NaN or Inf back to {name}"
        why = f"{outputs}; the gradient that comes from after the model is not."
        fix = "look at the loss: logarithms, roots and divisions of what may be zero; use log_softmax, clamp or an eps"
    else:
        title = f"on the way back {name} is the first to give NaN or Inf"
        why = f"{outputs}; the gradient that came to {name} is, but what it sends back is not."
        fix = (
            f"look into {name}: sqrt, norm, pow or division at zero has an infinite slope; add an eps before the root, "
            f"or use torch.where on the input of the function and not only on its output"
        )
    if skipped:
        title += f"; the GradScaler left {'the step' if skipped == 1 else f'{skipped} steps'} out"
        why += " A GradScaler tries large scales, and halves them whenever a gradient overflows: that is how it works."
        fix = f"nothing, if it is over after a few steps; if each step is left out, {fix}"
    else:
        why += f" {reached} modules have such gradients, and the next step spoils their weights."
    figures: dict[str, float | str] = {"modules reached": reached, "steps left out": skipped}
    return Finding("not-finite-gradient", "note" if skipped else "error", module.name, title, figures, why, fix)
