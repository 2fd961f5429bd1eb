"""NaN and Inf: find the module that produced the first one. Modules that only pass them on are counted."""

import math

from normscope.diagnostics.findings.base import Finding
from normscope.diagnostics.findings.record_view import RecordView, module_ref, parameter_name
from normscope.diagnostics.record import ModuleRecord, TensorStats
from normscope.render.formatting import format_percent


def check_non_finite(view: RecordView) -> list[Finding]:
    """Report the first producer in the forward pass; otherwise non-finite weights, the input, or the backward pass."""
    producers = [module for module in view.ran if module.produced_non_finite]
    receiver = next((module for module in view.ran if module.received_non_finite), None)
    broken = _modules_with_non_finite_weights(view)
    broken_before = [module for module in broken if not _broken_by_step(module)]
    backward = [module for module in view.ran if module.produced_non_finite_gradient]
    # A module that received such values before any module produced them got them from outside or from broken weights.
    from_outside = receiver is not None and not broken_before and (receiver.name == "" or not broken)
    if receiver is not None and from_outside and not _any_precedes(producers, receiver):
        return [_input_finding(view, receiver)]
    if producers:
        # A module that produces only -Inf may be masking on purpose.
        return [
            _forward_finding(view, [m for m in producers if not m.only_negative_infinity] or producers, len(producers))
        ]
    if broken_before:
        return [_weights_finding(broken_before[0], len(broken), "before any recorded step")]
    if backward:
        return [_backward_finding(view, backward[0])]
    if broken:
        return [_weights_finding(broken[0], len(broken), "after the optimizer step")]
    return []


def _any_precedes(producers: list[ModuleRecord], module: ModuleRecord) -> bool:
    return any((producer.order or 0) <= (module.order or 0) for producer in producers)


def _broken_by_step(module: ModuleRecord) -> bool:
    """Whether a recorded step made its weights non-finite: the update ratio is then NaN."""
    broken = [parameter for parameter in module.parameters if parameter.values.non_finite]
    return all(parameter.update_ratio is not None and math.isnan(parameter.update_ratio) for parameter in broken)


def _fraction(stats: TensorStats | None) -> float:
    return 0.0 if stats is None else stats.non_finite


def _modules_with_non_finite_weights(view: RecordView) -> list[ModuleRecord]:
    """In execution order; modules that never ran come last."""
    found = [m for m in view.modules.values() if any(parameter.values.non_finite for parameter in m.parameters)]
    return sorted(found, key=lambda module: view.execution_order(module.name))


def _input_finding(view: RecordView, module: ModuleRecord) -> Finding:
    spreads = _reaches_output(view)
    fraction = _fraction(module.input)
    return Finding(
        "non-finite-input",
        "error" if spreads else "note",
        module.name,
        f"{module_ref(module.name)} was given NaN or Inf"
        + (f": {format_percent(fraction)} of its input" if fraction else ", not in its first input"),
        {"fraction of input": fraction, "modules affected": sum(1 for m in view.ran if _fraction(m.output))},
        "No module produced these values: they come from the data or its preprocessing."
        + (" They spread to the output, the loss or a gradient." if spreads else " They do not spread further."),
        "find the affected samples with ~torch.isfinite(batch): missing values, log of zero, division by a zero "
        "standard deviation, float16 overflow",
    )


def _forward_finding(view: RecordView, producers: list[ModuleRecord], count: int) -> Finding:
    producer = producers[0]
    fraction = _fraction(producer.output)
    affected = [module for module in view.ran if _fraction(module.output)]
    spreads = _reaches_output(view)
    evidence: dict[str, float | str] = {
        "fraction of output": fraction,
        "modules affected": len(affected),
        "other producers": count - 1,
    }
    if producer.input is not None:
        evidence["largest input"] = producer.input.abs_max
    return Finding(
        "non-finite-output",
        "error" if spreads else "note",
        producer.name,
        f"{module_ref(producer.name)} is the first to produce NaN or Inf: {format_percent(fraction)} of its output",
        evidence,
        f"Its weights and input were finite (except for -Inf from a mask), so it produced the values itself: overflow, "
        f"division by zero, sqrt or log of zero, or softmax over a fully masked row. {len(affected)} modules have "
        f"non-finite outputs."
        + ("" if spreads else " No NaN reaches the model's output, the loss or a gradient: this may be a mask."),
        f"check the forward of {module_ref(producer.name)}: add an eps under the root or in the denominator, keep at "
        "least one key visible per row of a mask, or compute this part in float32",
    )


def _reaches_output(view: RecordView) -> bool:
    """Whether non-finite values reach the output, the loss, a gradient or a weight.

    -Inf alone in the output is a mask, such as that of illegal moves in a game.
    """
    root = view.modules.get("")
    ends = [root] if root is not None and root.order is not None else view.ran
    gradients = [module.gradient for module in view.ran]
    gradients += [parameter.gradient for module in view.modules.values() for parameter in module.parameters]
    outputs = any(_fraction(module.output) and not module.only_negative_infinity for module in ends)
    losses = any(not math.isfinite(loss.value) for loss in view.record.losses)
    return bool(outputs or losses or _modules_with_non_finite_weights(view) or any(map(_fraction, gradients)))


def _weights_finding(module: ModuleRecord, count: int, when: str) -> Finding:
    worst = max(module.parameters, key=lambda parameter: parameter.values.non_finite)
    return Finding(
        "non-finite-weights",
        "error",
        module.name,
        f"{format_percent(worst.values.non_finite)} of `{parameter_name(module, worst)}` is NaN or Inf",
        {"fraction": worst.values.non_finite, "modules affected": count},
        f"The weight was non-finite {when}. Everything it touches becomes non-finite too: outputs, loss and, after the "
        "next step, the other weights.",
        "restore the last checkpoint with finite weights, then clip gradients with "
        "nn.utils.clip_grad_norm_(model.parameters(), 1.0) or lower the learning rate",
    )


def _backward_finding(view: RecordView, module: ModuleRecord) -> Finding:
    name = module_ref(module.name)
    affected = sum(1 for other in view.ran if _fraction(other.gradient))
    finite = not any(_fraction(other.output) for other in view.ran)
    skipped = view.record.skipped_steps if not _modules_with_non_finite_weights(view) else 0
    outputs = "All outputs are finite" if finite else "Some outputs are non-finite"
    if _fraction(module.gradient) > 0:
        title = f"the loss sends a NaN or Inf gradient to {name}"
        why = f"{outputs}, but the gradient that enters the model is not."
        fix = "check the loss for log, sqrt or division of values that can be zero; use log_softmax, clamp or an eps"
    else:
        title = f"{name} is the first to produce a NaN or Inf gradient"
        why = f"{outputs}, and so is the gradient of {name}'s output, but not the gradient of its input."
        fix = (
            f"check {name}: sqrt, norm, pow and division have an infinite slope at zero; add an eps before the root, "
            "or apply torch.where to the input of the function, not only to its output"
        )
    if skipped:
        title += f"; GradScaler skipped {'the step' if skipped == 1 else f'{skipped} steps'}"
        why += " GradScaler starts with a large scale and halves it whenever a gradient overflows: this is expected."
        fix = f"nothing, if it stops after a few steps; if every step is skipped, {fix}"
    else:
        why += f" {affected} modules have non-finite gradients, and the next step makes their weights non-finite."
    evidence: dict[str, float | str] = {"modules affected": affected, "skipped steps": skipped}
    return Finding("non-finite-gradient", "note" if skipped else "error", module.name, title, evidence, why, fix)
