"""NaN and Inf: find the function or module that produced the first one. Modules that only pass them on are counted."""

from collections.abc import Iterator

from normscope.diagnostics.findings.finding import Finding, FindingKind, RecordView, check, in_line
from normscope.diagnostics.findings.non_finite_functions import advice
from normscope.diagnostics.findings.non_finite_modules import (
    broken_by_step,
    count_affected,
    find_by_modules,
    modules_with_non_finite_weights,
)
from normscope.diagnostics.module_names import is_inside, module_ref
from normscope.diagnostics.stats.non_finite import NonFiniteOrigin, NonFiniteStats
from normscope.render.formatting import format_short

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

DIVERGED = 1e3
"""Growth of the loss before it became non-finite. Losses of healthy training vary by a factor of ten or so."""

HUGE_UPDATE = 0.3
"""Median over the weights of the rms of one update over that of the weight, as in optimizer_steps."""

_WRITES = frozenset({"setitem", "full", "full_like", "new_full", "fill", "tensor", "as_tensor", "new_tensor"})
"""Functions that write given numbers."""


@check("blocking")
def check_non_finite(view: RecordView) -> Iterator[Finding]:
    """Report the first NaN or Inf, with the function that made it; before it, the huge steps that led to it."""
    found, stats = list(find_by_modules(view)), view.record.non_finite
    is_skipped = view.record.skipped_steps and not modules_with_non_finite_weights(view)
    if stats is None or is_skipped or (found and found[0].severity == "note" and stats.loss is None):
        yield from found
        return
    yield from _after_large_steps(stats)
    origin = stats.gradient if stats.loss is None or stats.loss.kind == "weight" else stats.loss
    was_broken = not all(map(broken_by_step, modules_with_non_finite_weights(view)))
    if origin is None or was_broken or (found and _is_known_input(found[0], origin)):
        yield from found
    else:
        yield _with_origin(view, found[0] if found else None, stats, origin)


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
    at = in_line(origin.line)
    if origin.kind == "tensor" or origin.function in _WRITES:
        return NON_FINITE_TENSOR.found_in("", {}, "error", at=at)
    if origin.kind == "empty":
        return NOTHING_LEFT.found_in("", {"function": origin.function}, "error", at=at)
    is_forward = origin is stats.loss
    how, fix = advice(origin, is_forward)
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
        count=count_affected(view),
        name=module_ref(origin.module) if origin.in_model else "code outside of the model",
    )
