"""NaN and Inf: find the module that produced the first one. Modules that only pass them on are counted.

An empty batch is here too: like NaN, it leaves no statistics that other checks could use.
"""

import math
from collections.abc import Iterator

from normscope.diagnostics.findings.finding import Finding, FindingKind, RecordView, check
from normscope.diagnostics.module_names import is_inside, join_names, module_ref
from normscope.diagnostics.record import ModuleRecord
from normscope.diagnostics.stats.non_finite import NonFiniteOrigin, NonFiniteStats
from normscope.diagnostics.stats.tensors import TensorStats
from normscope.render.formatting import format_short

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
NON_FINITE_FUNCTION = FindingKind("""
non-finite-output: {function}(){at} is the first to produce NaN or Inf, in {name}
why: {how} The values reach the loss in step {step}; {count} modules have non-finite outputs, and the next step makes
all weights non-finite.
fix: {fix}
""")
NON_FINITE_SLOPE = FindingKind("""
non-finite-gradient: the derivative of {function}(){at} is the first NaN or Inf, in {name}
why: {how} The loss is finite, but in step {step} the gradient that {function}() passes on to {module} is not, and the
next optimizer step makes all weights non-finite.
fix: {fix}; torch.where around the result does not help, since 0 times infinity is NaN
""")
NON_FINITE_TENSOR = FindingKind("""
non-finite-input: the loss is computed from a tensor that holds NaN or Inf from the start{at}
why: No function made these values: they are in the data, such as the targets or the weights of samples. One of them is
enough to make the loss and every gradient non-finite.
fix: find the affected samples with ~torch.isfinite(targets), and drop or repair them before training
""")
DIVERGED_FIRST = FindingKind("""
update-too-large: training diverged for {steps} steps before the first NaN or Inf
why: {grew}One step changed the weights by up to {largest update / weight} of their rms (0.001 is typical), so they grew
until something overflowed.
fix: lower the learning rate, at least tenfold, clip gradients with nn.utils.clip_grad_norm_(model.parameters(), 1.0),
and check that the loss is averaged and its inputs and targets have a scale of about 1
""")
NOTHING_LEFT = FindingKind("""
no-targets: the loss is NaN: nothing is left of what it averages{at}
why: {function}() of no elements is NaN, and so are the gradients of all weights.
fix: check the mask or selection before it, and skip batches of which nothing is left
""")
EMPTY_BATCH = FindingKind("""
empty-batch: the batch is empty: the {what} has no elements
why: An empty batch has no values to check.
fix: pass a batch with at least one sample; check the filter, slice or data loader that produced this one
""")

DIVERGED = 1e3
"""Growth of the loss before it became non-finite. Losses of healthy training vary by a factor of ten or so."""

HUGE_UPDATE = 0.3
"""Median over the weights of the rms of one update over that of the weight, as in optimizer_steps."""

_WRITES = frozenset({"setitem", "full", "full_like", "new_full", "fill", "tensor", "as_tensor", "new_tensor"})
"""Functions that write given numbers."""

_LOGS = frozenset({"log", "log2", "log10", "log1p", "xlogy", "logit", "binary_cross_entropy"})
_QUOTIENTS = frozenset({"div", "rdiv", "reciprocal", "normalize", "cosine_similarity", "floor_divide"})
_ADVICE: tuple[tuple[frozenset[str], str, str, str], ...] = (
    (
        _LOGS,
        "Its argument goes down to {low}; the logarithm of zero is -inf, and of a negative number NaN.",
        "Its argument comes so close to zero that 1 / x overflows.",
        "compute it from logits (log_softmax, logsigmoid, binary_cross_entropy_with_logits), or clamp the argument: "
        "torch.log(x.clamp_min(1e-6))",
    ),
    (
        frozenset({"sqrt", "rsqrt", "norm", "vector_norm", "std", "var", "pow", "rpow", "cdist", "hypot"}),
        "Its argument goes down to {low}: a root or power of it is not finite (std of a single value is NaN too).",
        "Its argument is zero somewhere, where the slope of a root is infinite.",
        "add an eps under the root: torch.sqrt(x + 1e-8); for std, use correction=0 or a larger batch",
    ),
    (
        _QUOTIENTS,
        "It divides by values down to {near}.",
        "It divides by values so close to zero that the square of the quotient overflows.",
        "add an eps to the denominator or limit it: x / y.clamp_min(1e-6); check for empty masks and constant columns",
    ),
    (
        frozenset({"exp", "expm1", "exp2", "sinh", "cosh", "logaddexp"}),
        "Its argument is too large: exp(89) overflows float32.",
        "Its result is too large.",
        "limit the argument, x.clamp(max=20), predict its logarithm, or use softplus, logsumexp or log_softmax",
    ),
    (
        frozenset({"acos", "asin", "arccos", "arcsin", "acosh", "atanh", "arctanh", "erfinv"}),
        "Its argument is outside of the interval where it is defined, perhaps by rounding.",
        "Its argument is at the end of its interval, -1 or 1, where the slope is infinite.",
        "clamp the argument a little inside: x.clamp(-1 + 1e-6, 1 - 1e-6)",
    ),
    (
        frozenset({"cross_entropy", "nll_loss", "mean", "masked_mean", "nanmean"}),
        "It is a mean over no elements: all labels are ignored, or the mask or batch is empty.",
        "It is a mean over no elements.",
        "skip batches without targets, or divide the sum by max(count, 1)",
    ),
)
"""Functions, how they become non-finite forward and backward, and what to do."""


@check("blocking")
def check_non_finite(view: RecordView) -> Iterator[Finding]:
    """Report the first NaN or Inf, with the function that made it; before it, the huge steps that led to it."""
    found, stats = list(_by_modules(view)), view.record.non_finite
    is_skipped = view.record.skipped_steps and not _modules_with_non_finite_weights(view)
    if stats is None or is_skipped or (found and found[0].severity == "note" and stats.loss is None):
        yield from found
        return
    yield from _after_large_steps(stats)
    origin = stats.gradient if stats.loss is None or stats.loss.kind == "weight" else stats.loss
    was_broken = not all(map(_broken_by_step, _modules_with_non_finite_weights(view)))
    if origin is None or was_broken or (found and _is_known_input(found[0], origin)):
        yield from found
    else:
        yield _with_origin(view, found[0] if found else None, stats, origin)


def _by_modules(view: RecordView) -> Iterator[Finding]:
    """Report the first producer in the forward pass; otherwise non-finite weights, the input, or the backward pass."""
    producers = [module for module in view.ran if module.produced_non_finite]
    first = next((module for module in view.ran if module.received_non_finite or module.produced_non_finite), None)
    broken = _modules_with_non_finite_weights(view)
    broken_before = [module for module in broken if not _broken_by_step(module)]
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


def _broken_by_step(module: ModuleRecord) -> bool:
    """Whether a recorded step made its weights non-finite: the update ratio is then NaN."""
    broken = [parameter for parameter in module.parameters if parameter.values.non_finite]
    return all(parameter.update_ratio is not None and math.isnan(parameter.update_ratio) for parameter in broken)


def _fraction(stats: TensorStats | None) -> float:
    return 0.0 if stats is None else stats.non_finite


def _modules_with_non_finite_weights(view: RecordView) -> list[ModuleRecord]:
    """In execution order; modules that never ran come last."""
    found = {module.name: module for module, parameter in view.parameters if parameter.values.non_finite}
    return sorted(found.values(), key=lambda module: view.execution_order(module.name))


def _affected(view: RecordView) -> int:
    return sum(1 for module in view.ran if _fraction(module.output))


def _input_finding(view: RecordView, module: ModuleRecord) -> Finding:
    fraction = _fraction(module.input)
    where = f": {100 * fraction:.3g}% of its input" if fraction else ", not in its first input"
    evidence = {"fraction of input": fraction, "modules affected": _affected(view)}
    severity, effect = "note", "They do not spread further."
    if _reaches_output(view):
        severity, effect = "error", "They spread to the output, the loss or a gradient."
    return NON_FINITE_INPUT.found_in(module, evidence, severity, where=where, effect=effect)


def _output_finding(view: RecordView, producers: list[ModuleRecord]) -> Finding:
    # A module that produces only -Inf may be masking on purpose.
    producer = next((module for module in producers if not module.only_negative_infinity), producers[0])
    evidence = {
        "fraction of output": _fraction(producer.output),
        "modules affected": _affected(view),
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
    return bool(outputs or losses or _modules_with_non_finite_weights(view) or any(map(_fraction, gradients)))


def _weights_finding(module: ModuleRecord, count: int, when: str) -> Finding:
    worst = max(module.parameters, key=lambda parameter: parameter.values.non_finite)
    evidence = {"fraction": worst.values.non_finite, "modules affected": count}
    return NON_FINITE_WEIGHTS.found_in(module, evidence, "error", weight=join_names(module.name, worst.name), when=when)


def _gradient_finding(view: RecordView, module: ModuleRecord) -> Finding:
    affected = sum(1 for other in view.ran if _fraction(other.gradient))
    skipped = view.record.skipped_steps if not _modules_with_non_finite_weights(view) else 0
    outputs = "Some outputs are non-finite" if _affected(view) else "All outputs are finite"
    severity, skipping, unless = "error", "", ""
    outlook = f"{affected} modules have non-finite gradients, and the next step makes their weights non-finite."
    if skipped:
        severity, skipping = "note", f"; GradScaler skipped {'the step' if skipped == 1 else f'{skipped} steps'}"
        unless = "no action needed if it stops after a few steps; if every step is skipped, "
        outlook = "GradScaler starts with a large scale and halves it whenever a gradient overflows: this is expected."
    kind = NON_FINITE_LOSS_GRADIENT if _fraction(module.gradient) > 0 else NON_FINITE_GRADIENT
    evidence = {"modules affected": affected, "skipped steps": skipped}
    return kind.found_in(module, evidence, severity, skipping=skipping, outputs=outputs, outlook=outlook, unless=unless)


def _after_large_steps(stats: NonFiniteStats) -> Iterator[Finding]:
    """A finding if training had already diverged: then the function that overflowed is not the cause."""
    first, last = stats.first_loss, stats.last_loss
    growth = abs(last / first) if first and last else 0.0
    update = stats.largest_update or 0.0
    if stats.steps_before and (growth >= DIVERGED or (update >= HUGE_UPDATE and growth >= 1)):
        grew = f"The loss went from {format_short(first)} to {format_short(last)}. " if first and last else ""
        evidence = {"largest update / weight": update, "first loss": first, "last finite loss": last}
        yield DIVERGED_FIRST.found_in("", evidence, "error", steps=stats.steps_before, grew=grew)


def _is_known_input(finding: Finding, origin: NonFiniteOrigin) -> bool:
    """Whether the values were there before: in the input of the model, or in weights from the start."""
    is_made = origin.kind in ("function", "masked") and origin.function not in _WRITES
    return finding.name == "non-finite-input" and not is_made


def _with_origin(view: RecordView, finding: Finding | None, stats: NonFiniteStats, origin: NonFiniteOrigin) -> Finding:
    at = f" ({origin.line})" if origin.line else ""
    if origin.kind == "tensor" or origin.function in _WRITES:
        return NON_FINITE_TENSOR.found_in("", {}, "error", at=at)
    if origin.kind == "empty":
        return NOTHING_LEFT.found_in("", {"function": origin.function}, "error", at=at)
    is_forward = origin is stats.loss
    how, fix = _advice(origin, is_forward)
    place = origin.module if origin.in_model else ""
    if (
        finding is not None
        and finding.name in ("non-finite-output", "non-finite-gradient")
        and (origin.in_model or not is_forward)
    ):
        place = finding.module if is_inside(finding.module, place) else place
    figures = {"function": origin.function, "step": stats.steps_before + 1, "dtype": origin.dtype}
    figures |= {"smallest argument": origin.smallest, "largest argument": origin.largest}
    return (NON_FINITE_FUNCTION if is_forward else NON_FINITE_SLOPE).found_in(
        place,
        figures,
        "error" if finding is None or is_forward else finding.severity,
        at=at,
        how=how,
        fix=fix,
        count=_affected(view),
        name=module_ref(origin.module) if origin.in_model else "code outside of the model",
    )


def _advice(origin: NonFiniteOrigin, is_forward: bool) -> tuple[str, str]:
    """How the function came to its result, and what to do."""
    if is_forward and origin.overflow and origin.dtype == "float16" and origin.function not in _LOGS | _QUOTIENTS:
        largest = "" if origin.largest is None else f" from arguments up to {format_short(origin.largest)}"
        how = f"It overflows float16, whose largest number is 65504{largest}."
        return how, "compute this part in float32 (x.float()) or bfloat16, and use torch.autocast instead of half()"
    if origin.kind == "masked":
        return (
            "In some row all of its arguments are masked with -inf, so that nothing is left to normalize.",
            "keep at least one key visible per row of the mask, or use a large negative number instead of -inf",
        )
    for names, forward, backward, fix in _ADVICE:
        if origin.function in names:
            how = forward if is_forward else backward
            return how.format(low=_or_unknown(origin.smallest), near=_or_unknown(origin.smallest_magnitude)), fix
    if is_forward:
        return "Its arguments were finite.", "check its arguments for zeros and huge values; clamp them or add an eps"
    fix = "keep the arguments away from where the slope is infinite: clamp them, or add an eps"
    return "Its slope is infinite at some of its arguments.", fix


def _or_unknown(value: float | None) -> str:
    return "unknown values" if value is None else format_short(value)


@check("blocking")
def check_empty_batch(view: RecordView) -> Iterator[Finding]:
    for outer in view.ran[:1]:
        for what, shapes, stats in (
            ("model's input", outer.input_shapes, outer.input),
            ("model's output", outer.output_shapes, outer.output),
        ):
            # Later calls may have had elements.
            has_elements = stats is not None and (stats.count or stats.non_finite)
            if shapes and all(0 in shape for shape in shapes) and not has_elements:
                yield EMPTY_BATCH.found_in(outer, {"shape": " x ".join(map(str, shapes[0]))}, what=what)
                return
