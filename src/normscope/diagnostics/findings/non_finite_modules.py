"""The first module that produced NaN or Inf, as far as the figures of modules tell."""

import math
from collections.abc import Iterator

from normscope.diagnostics.findings.finding import Finding, FindingKind, RecordView
from normscope.diagnostics.module_names import join_names
from normscope.diagnostics.record import ModuleRecord
from normscope.diagnostics.stats.tensors import TensorStats

NON_FINITE_INPUT = FindingKind("""
non-finite-input: {module} received NaN or Inf{where}
why: No module produced these values: they come from the data or its preprocessing. {effect}
fix: find the affected samples with ~torch.isfinite(batch): missing values, log of zero, division by a zero standard
deviation, float16 overflow
""")

NON_FINITE_OUTPUT = FindingKind("""
non-finite-output: {module} is the first to produce NaN or Inf: {fraction of output:%} of its output
why: Its weights and input were finite (except for -Inf from a mask), so it produced the values itself: overflow,
division by zero, sqrt or log of zero, or softmax over a fully masked row. {modules affected} modules have non-finite
outputs.{effect}
fix: check the forward of {module}: add an eps under the root or in the denominator, keep at least one key visible per
row of a mask, or compute this part in float32
""")

NON_FINITE_WEIGHTS = FindingKind("""
non-finite-weights: {fraction:%} of `{weight}` is NaN or Inf
why: The weight was non-finite {when}. Everything it touches becomes non-finite too: outputs, loss and, after the next
step, the other weights.
fix: restore the last checkpoint with finite weights, then clip gradients with
nn.utils.clip_grad_norm_(model.parameters(), 1.0) or lower the learning rate
""")

NON_FINITE_LOSS_GRADIENT = FindingKind("""
non-finite-gradient: the loss sends a NaN or Inf gradient to {module}{skipping}
why: {outputs}, but the gradient that enters the model is not. {outlook}
fix: {unless}check the loss for log, sqrt or division of values that can be zero; use log_softmax, clamp or an eps
""")

NON_FINITE_GRADIENT = FindingKind("""
non-finite-gradient: {module} is the first to produce a NaN or Inf gradient{skipping}
why: {outputs}, and so is the gradient of {module}'s output, but not the gradient of its input. {outlook}
fix: {unless}check {module}: sqrt, norm, pow and division have an infinite slope at zero; add an eps before the root, or
apply torch.where to the input of the function, not only to its output
""")


def find_by_modules(view: RecordView) -> Iterator[Finding]:
    """Report the first producer in the forward pass; otherwise non-finite weights, the input, or the backward pass."""
    producers = [module for module in view.ran if module.produced_non_finite]
    first = next((module for module in view.ran if module.received_non_finite or module.produced_non_finite), None)
    broken = modules_with_non_finite_weights(view)
    broken_before = [module for module in broken if not broken_by_step(module)]
    backward = [module for module in view.ran if module.produced_non_finite_gradient]
    # A module that received such values before any module produced them got them from outside or from broken weights.
    from_outside = not broken_before and (not broken or (first is not None and first.name == ""))
    if first is not None and not first.produced_non_finite and from_outside:
        yield _input_finding(view, first)
    elif producers:
        yield _output_finding(view, producers)
    elif broken_before:
        yield _weights_finding(broken_before[0], len(broken), "before any recorded step")
    elif backward:
        yield _gradient_finding(view, backward[0])
    elif broken:
        yield _weights_finding(broken[0], len(broken), "after the optimizer step")


def broken_by_step(module: ModuleRecord) -> bool:
    """Whether a recorded step made its weights non-finite: the update ratio is then NaN."""
    broken = [parameter for parameter in module.parameters if parameter.values.non_finite]
    return all(parameter.update_ratio is not None and math.isnan(parameter.update_ratio) for parameter in broken)


def _fraction(stats: TensorStats | None) -> float:
    return 0.0 if stats is None else stats.non_finite


def modules_with_non_finite_weights(view: RecordView) -> list[ModuleRecord]:
    """In execution order; modules that never ran come last."""
    found = {module.name: module for module, parameter in view.parameters if parameter.values.non_finite}
    return sorted(found.values(), key=lambda module: view.execution_order(module.name))


def count_affected(view: RecordView) -> int:
    return sum(1 for module in view.ran if _fraction(module.output))


def _input_finding(view: RecordView, module: ModuleRecord) -> Finding:
    fraction = _fraction(module.input)
    where = f": {100 * fraction:.3g}% of its input" if fraction else ", not in its first input"
    evidence = {"fraction of input": fraction, "modules affected": count_affected(view)}
    severity, effect = "note", "They do not spread further."
    if _reaches_output(view):
        severity, effect = "error", "They spread to the output, the loss or a gradient."
    return NON_FINITE_INPUT.found_in(module, evidence, severity, where=where, effect=effect)


def _output_finding(view: RecordView, producers: list[ModuleRecord]) -> Finding:
    # A module that produces only -Inf may be masking on purpose.
    producer = next((module for module in producers if not module.only_negative_infinity), producers[0])
    evidence = {
        "fraction of output": _fraction(producer.output),
        "modules affected": count_affected(view),
        "other producers": len(producers) - 1,
        "largest input": None if producer.input is None else producer.input.abs_max,
    }
    severity, effect = "note", " No NaN reaches the model's output, the loss or a gradient: this may be a mask."
    if _reaches_output(view):
        severity, effect = "error", ""
    return NON_FINITE_OUTPUT.found_in(producer, evidence, severity, effect=effect)


def _reaches_output(view: RecordView) -> bool:
    """Whether non-finite values reach the output, the loss, a gradient or a weight.

    -Inf alone in the output is a mask, such as that of illegal moves in a game.
    """
    root = view.modules.get("")
    ends = [root] if root is not None and root.order is not None else view.ran
    gradients = [module.gradient for module in view.ran] + [parameter.gradient for _, parameter in view.parameters]
    outputs = any(_fraction(module.output) and not module.only_negative_infinity for module in ends)
    losses = any(not math.isfinite(loss.value) for loss in view.record.losses)
    return bool(outputs or losses or modules_with_non_finite_weights(view) or any(map(_fraction, gradients)))


def _weights_finding(module: ModuleRecord, count: int, when: str) -> Finding:
    worst = max(module.parameters, key=lambda parameter: parameter.values.non_finite)
    evidence = {"fraction": worst.values.non_finite, "modules affected": count}
    return NON_FINITE_WEIGHTS.found_in(module, evidence, "error", weight=join_names(module.name, worst.name), when=when)


def _gradient_finding(view: RecordView, module: ModuleRecord) -> Finding:
    affected = sum(1 for other in view.ran if _fraction(other.gradient))
    skipped = view.record.skipped_steps if not modules_with_non_finite_weights(view) else 0
    outputs = "Some outputs are non-finite" if count_affected(view) else "All outputs are finite"
    severity, skipping, unless = "error", "", ""
    outlook = f"{affected} modules have non-finite gradients, and the next step makes their weights non-finite."
    if skipped:
        severity, skipping = "note", f"; GradScaler skipped {'the step' if skipped == 1 else f'{skipped} steps'}"
        unless = "no action needed if it stops after a few steps; if every step is skipped, "
        outlook = "GradScaler starts with a large scale and halves it whenever a gradient overflows: this is expected."
    kind = NON_FINITE_LOSS_GRADIENT if _fraction(module.gradient) > 0 else NON_FINITE_GRADIENT
    evidence = {"modules affected": affected, "skipped steps": skipped}
    return kind.found_in(module, evidence, severity, skipping=skipping, outputs=outputs, outlook=outlook, unless=unless)
