"""Settings of optimizers that undo or prevent learning: weight decay, eps, momentum, betas, half precision weights."""

from collections.abc import Iterator
from statistics import median

from normscope.diagnostics.findings.finding import Finding, FindingKind, RecordView, check
from normscope.diagnostics.stats.loop import OptimizerRecord

DECAY_DOMINATES = FindingKind("""
weight-decay-dominates: weight decay of {weight decay} moves the weights {share} times as much as the gradient
why: {effect} The weights shrink towards zero, whatever the gradients say.
fix: lower weight_decay: 0.01 to 0.1 is usual for AdamW, 1e-5 to 5e-4 for SGD and for Adam, whose L2 penalty is part of
the gradient{adamw}
""")
EPS_DOMINATES = FindingKind("""
optimizer-eps-dominates: eps of {eps} is {share} times the root of the mean squared gradient
why: {optimizer} divides by the sum of both, so eps alone sets the step: {times} times smaller than the learning rate
suggests, and proportional to the gradient. One step changes weights by {update / weight} of their rms.
fix: use the default eps, 1e-8; if the gradients are that small, look for a loss that is scaled down
""")
LOST = FindingKind("""
updates-lost-to-rounding: steps change only {moved:%} of the {dtype} weights that have a gradient
why: The other updates are smaller than half the distance to the next {dtype} number, so they are rounded away, however
many steps there are. The learning rate is {lr}.
fix: keep the weights in float32 and use torch.autocast for the computation; or raise the learning rate
""")
MOMENTUM = FindingKind("""
momentum-too-large: momentum {momentum:g} with a learning rate of {lr} is an effective learning rate of {effective lr}
why: Momentum sums up the last 1 / (1 - momentum) gradients. {effect}
fix: use momentum=0.9, or divide the learning rate by {divisor}
""")
BETAS = FindingKind("""
betas-swapped: {optimizer} has betas=({beta1:g}, {beta2:g})
why: The first is for the average of the gradients, the second for that of their squares, which needs the longer
average. Swapped, each step averages the gradients of the last {memory} steps, scaled by the size of the
last few alone.
fix: betas=(0.9, 0.999)
""")

MAX_DECAY_RATE = 5e-3
"""Fraction of each weight that a step takes away: half of it in 140 steps. Usual are 1e-6 to 1e-4; 1e-3 is used for
training without an end (grokking)."""

DECAY_SHARE = 0.5
"""Decay over gradient, as parts of a step, where decay is that fast."""

ADAPTIVE_SHARE, LARGE_PENALTY = 1.5, 0.01
"""The same for L2 penalties under Adam, which scales gradients to the learning rate: if the penalty dominates, each
step moves each weight towards zero by the full rate. At the end of training both balance, which is a share of 1, and a
usual penalty of at most 1e-3 may exceed the gradients of a loss near zero."""

EPS_SHARE = 10.0
SLOW = 3e-4
"""Update over weight. An eps of 1 with a learning rate raised accordingly, as for Inception, gets 1e-3 like others."""

MOVED = 0.1
"""Fraction of the weights with a gradient that change. In float32 it is 1."""

WARMING_UP = 0.1
"""Below this fraction of the schedule's peak learning rate, small steps are intended."""

MAX_MOMENTUM, MAX_LR = 0.99, 4.0
"""Momentum, and learning rate over 1 - momentum. The largest in use are 0.1 / (1 - 0.9) = 1 and 0.01 / (1 - 0.99)."""


@check("numeric")
def check_optimizer_settings(view: RecordView) -> Iterator[Finding]:
    for optimizer in view.record.loop.optimizers:
        if optimizer.steps:
            for look in (_decay, _eps, _lost, _momentum, _betas):
                yield from look(view, optimizer)


def _decay(view: RecordView, optimizer: OptimizerRecord) -> Iterator[Finding]:
    decay, share, lr = optimizer.weight_decay, optimizer.decay_share, max(optimizer.lr)
    if not decay or share is None:
        return
    rate = lr * decay / (1 - min(0.999, optimizer.momentum or 0.0))
    is_penalty_of_adam = optimizer.is_adaptive and not optimizer.is_decoupled
    if is_penalty_of_adam:
        effect = "Adam divides by the size of the gradients, so what it follows is the L2 penalty."
    else:
        effect = f"A step takes {rate:.2g} of each weight away."
    dominates = rate >= MAX_DECAY_RATE and share >= DECAY_SHARE
    if is_penalty_of_adam:
        dominates = decay >= LARGE_PENALTY and share >= ADAPTIVE_SHARE
    if dominates:
        evidence = {"weight decay": decay, "share": share, "lr": lr}
        adamw = "; or use AdamW" if is_penalty_of_adam else ""
        yield DECAY_DOMINATES.found_in(optimizer.module, evidence, effect=effect, adamw=adamw)


def _update_ratio(view: RecordView) -> float:
    ratios = [p.update_ratio for _, p in view.matrices if p.update_ratio]
    return median(ratios) if ratios else 0.0


def _eps(view: RecordView, optimizer: OptimizerRecord) -> Iterator[Finding]:
    share, eps, ratio = optimizer.eps_share, optimizer.eps, _update_ratio(view)
    if share is None or eps is None or share < EPS_SHARE or not 0 < ratio < SLOW or _is_warming_up(optimizer):
        return
    evidence = {"eps": eps, "share": share, "update / weight": ratio}
    yield EPS_DOMINATES.found_in(optimizer.module, evidence, optimizer=optimizer.kind, times=share)


def _is_warming_up(optimizer: OptimizerRecord) -> bool:
    return optimizer.peak_lr is not None and max(optimizer.lr) < WARMING_UP * optimizer.peak_lr


def _lost(view: RecordView, optimizer: OptimizerRecord) -> Iterator[Finding]:
    moved = optimizer.moved
    if moved is None or moved >= MOVED or not optimizer.is_torch or _is_warming_up(optimizer) or not max(optimizer.lr):
        return
    dtype = next((p.dtype for _, p in view.matrices if p.dtype in ("float16", "bfloat16")), "bfloat16")
    yield LOST.found_in(optimizer.module, {"moved": moved, "lr": max(optimizer.lr)}, dtype=dtype)


def _momentum(view: RecordView, optimizer: OptimizerRecord) -> Iterator[Finding]:
    momentum, lr = optimizer.momentum, max(optimizer.lr)
    if momentum is None or momentum < MAX_MOMENTUM:
        return
    effective = lr / (1 - momentum) if momentum < 1 else float("inf")
    if effective > MAX_LR:
        effect = "The steps keep growing until the model diverges."
        evidence = {"momentum": momentum, "lr": lr, "effective lr": effective}
        divisor = min(1000.0, 0.1 / (1 - momentum) if momentum < 1 else 1000.0)
        yield MOMENTUM.found_in(optimizer.module, evidence, effect=effect, divisor=divisor)


def _betas(view: RecordView, optimizer: OptimizerRecord) -> Iterator[Finding]:
    first, second = optimizer.beta1, optimizer.beta2
    if optimizer.is_adaptive and first is not None and second is not None and first > second:
        evidence = {"beta1": first, "beta2": second}
        memory = 1 / (1 - first) if first < 1 else float("inf")
        yield BETAS.found_in(optimizer.module, evidence, optimizer=optimizer.kind, memory=memory)
