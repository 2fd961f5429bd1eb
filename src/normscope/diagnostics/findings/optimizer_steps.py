"""Optimizer steps: updates that are too large or too small, gradients that are never reset, and missing warmup."""

import math
from collections.abc import Iterator, Sequence
from statistics import fmean, median_high

from normscope.diagnostics.findings.finding import Finding, FindingKind, RecordView, check
from normscope.diagnostics.module_names import common_parent, join_names, parent_name
from normscope.diagnostics.record import ModuleRecord, ParameterRecord

UPDATE_TOO_LARGE = FindingKind("""
update-too-large: one step changes `{weight}` by {update / weight} of its rms{others}
why: A typical step changes a weight by about 0.001 of its rms. One of {update / weight} overwrites what the weight has
learned.
fix: divide the learning rate by about {divisor}, add warmup, or clip gradients
""")
ALL_UPDATES_TOO_SMALL = FindingKind("""
update-too-small: one step changes weights by {update / weight} of their rms, less than float32 can represent
why: About 0.001 is typical. At {update / weight} the update is lost to rounding.
fix: raise the learning rate (now {lr}), and check whether the loss is scaled down or Adam's eps is larger than the
gradients
""")
SLOW_UPDATES = FindingKind("""
update-too-small: one step changes weights by {update / weight} of their rms, at a learning rate of {lr}
why: About 0.001 is typical. At {update / weight}, a hundred thousand steps in one direction move a weight by a tenth.
fix: raise the learning rate: 1e-3 to 3e-4 is usual for Adam, 0.1 to 0.01 for SGD
""")
UPDATE_TOO_SMALL = FindingKind("""
update-too-small: one step changes `{weight}` by {update / weight} of its rms; the median is {median}
why: It learns {slower} times more slowly than the rest of the model.
fix: check the learning rate of its parameter group, its scale (rms {rms}), and any factor on its gradient
""")
MISSING_ZERO_GRAD = FindingKind("""
missing-zero-grad: {steps} optimizer steps used gradients that still included those of the previous step
why: Each backward pass adds to the existing gradients. Unless they are reset, every step follows the sum over all
batches so far, which keeps growing.
fix: call optimizer.zero_grad() once per step, before loss.backward()
""")
MISSING_WARMUP = FindingKind("""
post-norm-without-warmup: post-norm model with {post-norm additions} additions, and step {step} of {optimizer} already
uses the full learning rate of {lr}
why: In {module} every sum is normalized, so the gradients of the last blocks are large at first, and Adam's first
steps, whose moving averages have seen few gradients, make training diverge.
fix: warm up the learning rate over the first thousand steps or so: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda
step: min(1, (step + 1) / 1000)); or switch to pre-norm
""")

TOO_LARGE = 0.3
"""Update rms over weight rms. About 0.001 is typical; Adam's first step changes every element by the full learning
rate, which is 0.05 for weights of std 0.02 and a learning rate of 0.001. A hundred steps of 0.3, even in random
directions, would move a weight by three times its own rms."""

OVERWRITES = 1.0
"""From here on, a step leaves little of a weight, even if the loss falls."""

FALLS = 0.9
"""Last over first third of a positive loss that falls. The first steps from a small initialization, or of optimizers
that start large, such as Adagrad, are often larger than `TOO_LARGE` and do no harm."""

MIN_GAIN_CHANGE = 0.1
"""The layer's gain must change by this much too: a weight that starts at zero doubles in its second step."""

MIN_TABLE_CHANGE = 0.01
"""The same for the elements of an embedding, whose rows are added to the stream directly."""

ROUNDING = 2.0**-24
"""Half a float32 ulp: a smaller step is lost in the addition, or nearly so."""

SLOW, TINY_LR = 2e-6, 1e-5
"""Median update ratio, and learning rate, that are both too small. Fine-tuning at 1e-6 with Adam changes weights of rms
0.02 by 5e-5; at the end of a training, small gradients at a usual rate are no fault."""

LAGGING = 1e-4
"""Relative to the median of all matrices: how much more slowly one of them learns."""

LAGGING_STEP = 1e-6
"""Update ratio below which lagging matters: ten thousand such steps in one direction move a weight by 1%."""

WARMING_UP = 0.1
"""Below this fraction of the schedule's peak learning rate, small steps are intended."""

MIN_STEPS = 2
"""Steps without zero_grad(): one may be intended; a forgotten call affects every step."""

MIN_ADDITIONS = 11
"""Post-norm additions: those of six blocks of two, as in the original transformer; the last one cannot be recognized,
since no addition follows it. Xiong et al. 2020 ("On Layer Normalization in the Transformer Architecture") train it with
Adam: without warmup it reaches a BLEU of 8.5, with warmup 34."""

MIN_LR = 3e-4
"""The learning rates that failed there were 5e-4 and 1e-3. Fine-tuning at 1e-5 to 1e-4 needs no warmup."""

EARLY = 100
"""Warmup takes hundreds or thousands of steps, so it cannot be over before this one."""

WARMED_UP = 0.5
"""Fraction of the schedule's peak learning rate from which on it is no longer warmup."""

_Weight = tuple[ModuleRecord, ParameterRecord]


@check("numeric")
def check_update_sizes(view: RecordView) -> Iterator[Finding]:
    updated = [(m, p) for m, p in view.matrices if p.update_ratio is not None]
    updated = [(m, p) for m, p in updated if p.in_optimizer is not False and p.has_nonzero_gradient]
    limit = OVERWRITES if _falls(view.record.loss_curve) else TOO_LARGE
    yield from _too_large([(m, p) for m, p in updated if _ratio((m, p)) >= limit and _matters(p)], len(updated))
    steps = view.record.steps
    if any(step.lr > 0 and (step.peak_lr is None or step.lr >= WARMING_UP * step.peak_lr) for step in steps):
        yield from _too_small(max(step.lr for step in steps), [(m, p) for m, p in updated if p.update_ratio])


def _falls(values: Sequence[float]) -> bool:
    third = len(values) // 3
    return third > 0 and 0 < fmean(values[-third:]) < FALLS * fmean(values[:third])


def _ratio(weight: _Weight) -> float:
    return weight[1].update_ratio or 0.0


def _matters(parameter: ParameterRecord) -> bool:
    if parameter.predicted_gain is not None:
        return _gain_change(parameter) >= MIN_GAIN_CHANGE
    return _update_rms(parameter) >= MIN_TABLE_CHANGE


def _update_rms(parameter: ParameterRecord) -> float:
    """The rms of an update. The fallback is inexact: the recorded rms of the weight is that after the step."""
    if parameter.update_rms is None:
        return (parameter.update_ratio or 0.0) * parameter.values.rms
    return parameter.update_rms


def _gain_change(parameter: ParameterRecord) -> float:
    return 0.0 if parameter.predicted_gain is None else _update_rms(parameter) * math.sqrt(parameter.fan_in)


def _too_large(large: list[_Weight], count: int) -> Iterator[Finding]:
    """If most weights change by too much, the learning rate is at fault: report the model once."""
    shared = bool(large) and 2 * len(large) >= count > 1
    worst = {module.name: (module, weight) for module, weight in sorted(large, key=_ratio)}
    if shared:
        worst = {"": max(large, key=_ratio)}
    for place, (module, weight) in worst.items():
        ratio, weights = weight.update_ratio or 0.0, len(large) if shared else 1
        yield UPDATE_TOO_LARGE.found_in(
            place,
            {"update / weight": ratio, "typical": 1e-3, "change of gain": _gain_change(weight), "weights": weights},
            weight=join_names(module.name, weight.name),
            others=f", and {weights - 1} other weights by too much" if weights > 1 else "",
            divisor=max(2.0, ratio / 1e-2),
        )


def _too_small(lr: float, updated: list[_Weight]) -> Iterator[Finding]:
    if not updated:
        return
    median = median_high(map(_ratio, updated))
    if median < ROUNDING:
        yield ALL_UPDATES_TOO_SMALL.found_in("", {"update / weight": median, "typical": 1e-3, "lr": lr})
        return
    if median < SLOW and lr <= TINY_LR:
        yield SLOW_UPDATES.found_in("", {"update / weight": median, "typical": 1e-3, "lr": lr})
        return
    lagging = {
        module.name: (module, weight, weight.update_ratio or 0.0)
        for module, weight in sorted(updated, key=_ratio, reverse=True)
        if _ratio((module, weight)) < min(LAGGING * median, LAGGING_STEP) and weight.values.rms > 0
    }
    for module, weight, ratio in lagging.values():
        evidence = {"update / weight": ratio, "update / median": ratio / median, "median": median}
        name = join_names(module.name, weight.name)
        yield UPDATE_TOO_SMALL.found_in(module, evidence, weight=name, slower=median / ratio, rms=weight.values.rms)


@check("structural")
def check_zero_grad(view: RecordView) -> Iterator[Finding]:
    steps = view.record.steps_without_zero_grad
    if steps >= MIN_STEPS:
        yield MISSING_ZERO_GRAD.found_in("", {"steps": steps})


@check("structural")
def check_warmup(view: RecordView) -> Iterator[Finding]:
    """Find deep post-norm models that start at their full learning rate."""
    post = [module.name for module, join in view.joins if join.post_norm is not None]
    if len(post) < MIN_ADDITIONS or len(view.joins) > 2 * len(post):
        return
    for step in view.record.steps:
        optimizer = step.optimizer.lower()
        adaptive = "adam" in optimizer and "radam" not in optimizer  # RAdam has its own warmup
        full = step.peak_lr is None or step.lr >= WARMED_UP * step.peak_lr
        if adaptive and full and step.lr >= MIN_LR and step.number is not None and step.number <= EARLY:
            evidence = {"post-norm additions": len(post), "lr": step.lr, "step": step.number}
            place = common_parent(post)
            if place in view.modules and view.modules[place].kind == "ModuleList":  # which is never called
                place = parent_name(place)
            yield MISSING_WARMUP.found_in(place, evidence, optimizer=step.optimizer)
            return
