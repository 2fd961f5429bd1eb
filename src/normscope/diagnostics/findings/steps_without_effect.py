"""Optimizers that never step, and steps that change nothing or repeat the one before."""

from collections.abc import Iterator

from normscope.diagnostics.findings.finding import Finding, FindingKind, RecordView, check
from normscope.diagnostics.module_names import module_ref
from normscope.diagnostics.stats.loop import OptimizerRecord

NEVER_STEPPED = FindingKind("""
weights-unchanged: {backward passes} backward passes, but {optimizer} never stepped
why: Its gradients were reset {resets} times without a step that used them, so {module} keeps its initial weights.
fix: call optimizer.step() after loss.backward() (with parentheses); with gradient accumulation, check that the
condition for a step is ever met, and step at the end of each epoch too
""")

ZEROED = FindingKind("""
weights-unchanged: {zeroed} of {steps} steps of {optimizer} had no gradient: it was reset after the backward pass
why: The backward passes gave {module} gradients, but zero_grad() cleared them before step() could use them. Nothing is
learned.
fix: call optimizer.zero_grad() before loss.backward(), or after optimizer.step(), never in between
""")

NO_GRADIENTS = FindingKind("""
weights-unchanged: none of {steps} steps of {optimizer} had a gradient other than zero
why: No backward pass gave {module} one, so the steps do nothing.
fix: call loss.backward() before optimizer.step(), on a loss that is computed from the output of {module} without
detach(), .item() or torch.no_grad()
""")

LR_ZERO = FindingKind("""
weights-unchanged: the learning rate of {optimizer} was 0 in all {steps} steps
why: A step of 0 changes nothing. {reason}
fix: print scheduler.get_last_lr() for the first steps, and correct the schedule
""")

UNCHANGED = FindingKind("""
weights-unchanged: none of {steps} steps of {optimizer} changed a weight
why: There are gradients, but the updates are so small that they are lost to rounding. The learning rate is {lr}.
fix: raise the learning rate, and look for what makes the gradients tiny: clipping to a very small norm, or a loss that
is scaled down
""")

SKIPPED = FindingKind("""
scaler-skips-steps: the GradScaler skipped all {skipped} steps
why: Each time, gradients were Inf or NaN, so no weight changed. A loss scale that starts too high takes a few skipped
steps to come down, but not this many.
fix: look for Inf or NaN in the loss itself, compute losses and norms in float32, or use bfloat16, which needs no scaler
""")

OVERFLOWS = FindingKind("""
scaler-skips-steps: {optimizer} never stepped; gradients reach {largest gradient}, which overflows float16
why: Gradients were reset {resets} times without a step that used them: with a loss scale this large, they overflow to
Inf in float16, so every step is skipped.
fix: use torch.amp.GradScaler, which lowers its scale after an overflow, or bfloat16, which needs no scale
""")

REPEATED = FindingKind("""
steps-repeated: {repeated} of {steps} steps of {optimizer} used the gradients of the step before
why: There was no backward pass in between, so each gradient is applied more than once, as if the learning rate were
several times larger.
fix: call optimizer.step() once per backward pass
""")

RECREATED = FindingKind("""
optimizer-recreated: {optimizer} was recreated {recreated} times in {steps} steps
why: A new optimizer has no momentum and no averages of squared gradients, so every step is like the first one. In its
first step, Adam changes every weight by the full learning rate, whatever the size of its gradient.
fix: create the optimizer once, before the loop
""")

NO_GRADIENT_PAIR = FindingKind("""
wrong-detach: {empty} of {steps} steps of {module} had no gradient, although {other} is trained
why: The loss of {module} does not reach it: its output is detached or computed under torch.no_grad(), or its
parameters no longer require gradients.
fix: detach the output of {module} only in the loss of {other}; the loss that trains {module} needs it with its graph;
after requires_grad_(False), call requires_grad_(True) again
""")

MIN_STEPS = 3
"""Steps that must agree. A first step at a learning rate of 0, as warmups have, or one without gradients is common."""

MOSTLY = 0.75
"""Fraction of the steps of one of several optimizers that have no gradient: the first ones may have had one."""

MIN_BACKWARD = 4
"""Backward passes without any step. Fewer may be somebody who looks at gradients and resets them."""

MIN_RESETS = 8
"""The same where less is known: gradients that a module resets, or an optimizer that waits while others step, such as
that of a generator, which makes every fifth step."""

MAX_LIFE = 2
"""Steps of each of several optimizers in a row. Meta-learning makes one for each task, which steps more often."""

FLOAT16_MAX = 65504.0

MIN_SKIPPED = 6
"""A GradScaler starts at 2**16 and halves its scale at each skipped step; after six it is at 1024."""


@check("structural")
def check_steps(view: RecordView) -> Iterator[Finding]:
    """Find optimizers whose steps do nothing, or never happen."""
    record, loop = view.record, view.record.loop
    if record.skipped_steps >= MIN_SKIPPED and record.skipped_steps >= loop.scaler_updates and not record.steps:
        yield SKIPPED.found_in("", {"skipped": record.skipped_steps})
        return
    for optimizer in loop.optimizers:
        finding = _never_stepped(view, optimizer) or _empty_steps(view, optimizer)
        if finding is not None:
            yield finding
        elif optimizer.repeated >= MIN_STEPS and 3 * optimizer.repeated >= optimizer.steps:
            evidence = {"repeated": optimizer.repeated, "steps": optimizer.steps}
            yield REPEATED.found_in(optimizer.module, evidence, optimizer=optimizer.kind)
    is_training = all(module.training is not False for module in view.ran) and not record.foreign_optimizer_steps
    if not loop.optimizers and loop.discarded >= MIN_RESETS and is_training and not _has_changed(view):
        evidence = {"backward passes": loop.backward_passes, "resets": loop.discarded}
        yield NEVER_STEPPED.found_in("", evidence, optimizer="the optimizer")


def _has_changed(view: RecordView) -> bool:
    return any(parameter.has_changed for _, parameter in view.parameters)


def _never_stepped(view: RecordView, optimizer: OptimizerRecord) -> Finding | None:
    loop = view.record.loop
    is_expected = optimizer.discarded or optimizer.scheduled >= MIN_STEPS
    if optimizer.steps or not is_expected or view.record.interrupted or optimizer.is_frozen:
        return None
    others = any(other.steps for other in loop.optimizers)
    if others and optimizer.discarded < MIN_RESETS + MIN_BACKWARD:
        return None
    if loop.backward_passes < MIN_BACKWARD or (not others and _has_changed(view)):
        return None
    evidence: dict[str, float] = {"backward passes": loop.backward_passes, "resets": optimizer.discarded}
    largest = max((gradient.abs_max for gradient in view.gradients), default=0.0)
    if largest > FLOAT16_MAX or any(gradient.non_finite for gradient in view.gradients):
        evidence |= {"largest gradient": largest}
        return OVERFLOWS.found_in(optimizer.module, evidence, optimizer=optimizer.kind)
    return NEVER_STEPPED.found_in(optimizer.module, evidence, optimizer=optimizer.kind)


def _empty_steps(view: RecordView, optimizer: OptimizerRecord) -> Finding | None:
    steps = optimizer.steps
    if steps < MIN_STEPS or optimizer.is_frozen:
        return None
    evidence: dict[str, float] = {"steps": steps, "zeroed": optimizer.zeroed}
    if optimizer.zeroed >= max(MIN_STEPS, MOSTLY * steps):
        return ZEROED.found_in(optimizer.module, evidence, optimizer=optimizer.kind)
    del evidence["zeroed"]
    if optimizer.without_gradient >= max(MIN_STEPS, MOSTLY * steps):
        others = [o for o in view.record.loop.optimizers if o is not optimizer and o.without_gradient < o.steps]
        if others and optimizer.module:
            other = module_ref(others[0].module)
            evidence["empty"] = optimizer.without_gradient
            return NO_GRADIENT_PAIR.found_in(optimizer.module, evidence, other=other)
        if optimizer.without_gradient < steps:
            return None
        return NO_GRADIENTS.found_in(optimizer.module, evidence, optimizer=optimizer.kind)
    if optimizer.unchanged < steps:
        return None
    lr = max(optimizer.lr, default=0.0)
    if lr == 0:
        peak = optimizer.peak_lr
        reason = "" if not peak else f"Its schedule is made for {peak:g}, but does not get there."
        return LR_ZERO.found_in(optimizer.module, evidence, optimizer=optimizer.kind, reason=reason)
    evidence["lr"] = lr
    return UNCHANGED.found_in(optimizer.module, evidence, optimizer=optimizer.kind)


@check("structural")
def check_recreated(view: RecordView) -> Iterator[Finding]:
    for optimizer in view.record.loop.optimizers:
        has_state = optimizer.is_adaptive or (optimizer.momentum or 0) > 0
        if has_state and optimizer.recreated >= MIN_STEPS and optimizer.steps <= MAX_LIFE * optimizer.recreated:
            evidence = {"recreated": optimizer.recreated, "steps": optimizer.steps}
            yield RECREATED.found_in(optimizer.module, evidence, optimizer=optimizer.kind)
