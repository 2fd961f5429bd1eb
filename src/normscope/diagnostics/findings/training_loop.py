"""The training loop: steps that change nothing, schedules that end too early, gradients of the wrong backward pass."""

import math
from collections.abc import Iterator
from itertools import pairwise

from normscope.diagnostics.findings.finding import Finding, FindingKind, RecordView, check
from normscope.diagnostics.module_names import module_ref
from normscope.diagnostics.stats.loop import OptimizerRecord, ScheduleRecord

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
why: Each time, gradients were Inf or NaN, so no weight changed. A scaler that starts too high needs a few steps to get
down, but not this many.
fix: look for Inf or NaN in the loss itself, compute losses and norms in float32, or use bfloat16, which needs no scaler
""")
OVERFLOWS = FindingKind("""
scaler-skips-steps: {optimizer} never stepped; gradients reach {largest gradient}, which overflows float16
why: {resets} times gradients were reset without a step that used them: a loss scale that is this large makes all of
them Inf in float16, so every step is skipped.
fix: use a dynamic scale, torch.amp.GradScaler, which lowers itself, or bfloat16, which needs none
""")
REPEATED = FindingKind("""
steps-repeated: {repeated} of {steps} steps of {optimizer} used the gradients of the step before
why: There was no backward pass in between, so each gradient is applied more than once: the learning rate is in effect
a multiple of the one that is set.
fix: call optimizer.step() once per backward pass
""")
RECREATED = FindingKind("""
optimizer-recreated: {optimizer} was created anew {recreated} times in {steps} steps
why: A new optimizer has no momentum and no averages of squared gradients, so each of its steps is like the first one:
Adam's change every weight by the full learning rate, whatever the size of its gradient.
fix: create the optimizer once, before the loop
""")
FALLS = FindingKind("""
schedule-too-fast: the learning rate falls from {highest lr} to {last lr} within {steps} steps
why: {scheduler} Soon the steps are too small to change anything, so the model stops learning.
fix: if the schedule counts epochs, call scheduler.step() once per epoch; if it counts steps, give it the number of all
steps of the training
""")
RISES_AGAIN = FindingKind("""
schedule-too-fast: {scheduler} has made {position} steps, but T_max is {T_max}
why: After T_max steps the learning rate rises again, up to its full value. It is stepped for each batch, while T_max
probably counts epochs.
fix: set T_max to the number of all steps, or call scheduler.step() once per epoch; for restarts use
CosineAnnealingWarmRestarts
""")
CLIPPED = FindingKind("""
clipping-always: gradients are clipped to {limit}, but their norm was at least {smallest norm} in all {calls} calls
why: Each gradient is divided by {divisor} or more. {effect}
fix: set max_norm to about the usual norm of the gradients, often 1.0; {scaler}if the gradients are too large, look for
a summed loss
""")
CLIPPED_VALUES = FindingKind("""
clipping-always: nearly all gradients have a size of exactly {limit}: they are clipped by value
why: Only their signs are left, and the steps are far smaller than the learning rate suggests.
fix: raise clip_value of clip_grad_value_, or clip the norm instead: clip_grad_norm_(parameters, 1.0)
""")
IN_TWO_OPTIMIZERS = FindingKind("""
in-two-optimizers: the parameters of {shared} are also in the optimizer of {module}
why: Both optimizers step, each after backward passes of its own, so the loss of {module} also trains {shared}. As
adversaries, both then lower the loss of one of them.
fix: give each optimizer the parameters of its own model: torch.optim.Adam({shared_code}.parameters())
""")
WRONG_DETACH = FindingKind("""
wrong-detach: {mixed} of {steps} steps of {module} also used gradients of the loss of {other}
why: The backward pass for {other} went through {module} and left gradients there, which its own step adds to those of
its own loss. The two losses work against each other.
fix: detach the output of {module} where only {other} is trained: loss({other_code}(output.detach())); and call
zero_grad() right before each backward pass
""")
NO_GRADIENT_PAIR = FindingKind("""
wrong-detach: {empty} of {steps} steps of {module} had no gradient, although {other} is trained
why: The loss of {module} does not reach it: its output is detached, or computed under torch.no_grad(), or its
parameters do not require gradients any more.
fix: detach the output of {module} only in the loss of {other}; the loss that trains {module} needs it with its graph;
after requires_grad_(False), call requires_grad_(True) again
""")
MIXED_LEFTOVER = FindingKind("""
missing-zero-grad: {mixed} of {steps} steps of {module} also used gradients that the loss of {other} had left
why: The backward pass for {other} goes through {module} and adds to its gradients. Without a reset, the steps of
{module} follow that loss too.
fix: call zero_grad() of the optimizer of {module} right before its own backward pass
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

TINY_LR = 0.01
"""Fraction of the highest learning rate. A cosine is below it for the last 6% of the steps, a line for the last 1%."""

TINY_STEPS, TINY_FRACTION = 5, 0.25
"""So many steps at such a rate, and this fraction of all recorded ones, are more than the end of a schedule."""

HALF_LIFE, MIN_DROPS = 8.0, 3
FAST_HALF_LIFE, MIN_FAST_DROPS = 3.1, 2
"""Steps in which an exponential schedule may halve the learning rate, and the drops seen. At 8, all later steps
together amount to 12 steps at the full rate: no training is that short, except on the same full batch again and again.
Two drops by 10 are common in a training; a third one, or one in each 10 steps, is not."""

MIN_FALL = 10.0
"""Less of a fall in the recorded steps says little about the schedule."""

GEOMETRIC = ("StepLR", "ExponentialLR", "MultiplicativeLR")

PER_BATCH = 0.8
"""Steps of a scheduler per step of its optimizer from which on it is stepped for each batch."""

MIN_CLIPPED, MIN_EXCESS, SMALL_LIMIT = 5, 100.0, 0.05
"""Calls; the norm over the limit in all of them; and the limit below which nobody clips: 0.1 to 10 are in use. With a
usual limit, a summed loss is clipped as much, and adaptive optimizers do not care."""

UNSCALED_EXCESS = 1000.0
"""With a GradScaler, of a usual limit: gradients that are still scaled are 2**10 to 2**16 times too large."""


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
def check_schedules(view: RecordView) -> Iterator[Finding]:
    loop = view.record.loop
    for number, optimizer in enumerate(loop.optimizers):
        schedules = [schedule for schedule in loop.schedules if schedule.optimizer == number]
        rising = next((s for s in schedules if _rises_again(s, optimizer)), None)
        if rising is not None:
            evidence = {"position": rising.position, "T_max": rising.period, "called at": rising.source}
            yield RISES_AGAIN.found_in("", evidence, scheduler=rising.kind)
        elif (highest := max(optimizer.lr, default=0.0)) > 0 and _falls(loop.is_full_batch, optimizer, schedules):
            line = schedules[0].source if schedules else None
            falls = {"highest lr": highest, "last lr": optimizer.lr[-1], "steps": optimizer.steps, "called at": line}
            words = f"{schedules[0].kind} made {schedules[0].steps} steps." if schedules else ""
            yield FALLS.found_in("", falls, scheduler=words)


def _is_per_batch(schedule: ScheduleRecord, optimizer: OptimizerRecord) -> bool:
    return schedule.steps >= max(MIN_STEPS, PER_BATCH * optimizer.steps)


def _rises_again(schedule: ScheduleRecord, optimizer: OptimizerRecord) -> bool:
    if schedule.kind != "CosineAnnealingLR" or not schedule.period or schedule.position is None:
        return False
    lr = optimizer.lr
    return _is_per_batch(schedule, optimizer) and schedule.position > schedule.period + 1 and lr[-1] > min(lr)


def _falls(is_full_batch: bool, optimizer: OptimizerRecord, schedules: list[ScheduleRecord]) -> bool:
    lr = optimizer.lr
    after = lr[lr.index(max(lr)) :]
    tiny = sum(rate < TINY_LR * after[0] for rate in after)
    if tiny >= max(TINY_STEPS, TINY_FRACTION * len(lr)):
        return True
    steady = any(s.kind in GEOMETRIC and _is_per_batch(s, optimizer) for s in schedules)
    if not steady or is_full_batch or after[-1] * MIN_FALL > after[0]:
        return False
    drops = sum(later < earlier for earlier, later in pairwise(after))
    half_life = len(after) * math.log(2) / math.log(after[0] / after[-1]) if after[-1] > 0 else 0.0
    return (drops >= MIN_DROPS and half_life <= HALF_LIFE) or (drops >= MIN_FAST_DROPS and half_life <= FAST_HALF_LIFE)


@check("structural")
def check_clipping(view: RecordView) -> Iterator[Finding]:
    loop = view.record.loop
    for clipping in loop.clipping:
        if clipping.calls < MIN_CLIPPED or not clipping.smallest >= MIN_EXCESS * clipping.limit:
            continue
        is_scaled = loop.scaler_updates > 0 and clipping.smallest >= UNSCALED_EXCESS * clipping.limit
        is_strange = clipping.limit < SMALL_LIMIT
        effect, scaler = "The steps are far smaller than the learning rate suggests.", ""
        if is_scaled:
            effect, scaler = "The gradients are still multiplied by the loss scale.", "call scaler.unscale_ before; "
        evidence = {
            "limit": clipping.limit,
            "smallest norm": clipping.smallest,
            "calls": clipping.calls,
            "called at": clipping.source,
        }
        yield CLIPPED.found_in(
            "",
            evidence,
            "warning" if is_scaled or is_strange else "note",
            divisor=clipping.smallest / clipping.limit if clipping.limit else math.inf,
            effect=effect,
            scaler=scaler,
        )


@check("structural")
def check_recreated(view: RecordView) -> Iterator[Finding]:
    for optimizer in view.record.loop.optimizers:
        has_state = optimizer.is_adaptive or (optimizer.momentum or 0) > 0
        if has_state and optimizer.recreated >= MIN_STEPS and optimizer.steps <= MAX_LIFE * optimizer.recreated:
            evidence = {"recreated": optimizer.recreated, "steps": optimizer.steps}
            yield RECREATED.found_in(optimizer.module, evidence, optimizer=optimizer.kind)


@check("structural")
def check_values(view: RecordView) -> Iterator[Finding]:
    for optimizer in view.record.loop.optimizers:
        if optimizer.clipped is not None and optimizer.steps >= MIN_CLIPPED and optimizer.clipped < SMALL_LIMIT:
            yield CLIPPED_VALUES.found_in(optimizer.module, {"limit": optimizer.clipped, "steps": optimizer.steps})
        if optimizer.shared_with is not None and optimizer.steps >= MIN_STEPS:
            shared = optimizer.shared_with
            evidence = {"steps": optimizer.steps}
            code = shared or "model"
            yield IN_TWO_OPTIMIZERS.found_in(optimizer.module, evidence, shared=module_ref(shared), shared_code=code)


@check("structural")
def check_mixed_gradients(view: RecordView) -> Iterator[Finding]:
    """Find steps with gradients that the loss of another optimizer left."""
    for optimizer in view.record.loop.optimizers:
        if optimizer.mixed >= MIN_STEPS and 2 * optimizer.mixed >= optimizer.steps:
            kind = WRONG_DETACH if optimizer.leads_to else MIXED_LEFTOVER
            other = optimizer.mixed_with
            evidence = {"mixed": optimizer.mixed, "steps": optimizer.steps}
            yield kind.found_in(optimizer.module, evidence, other=module_ref(other), other_code=other or "model")
