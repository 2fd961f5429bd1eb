"""Learning rate schedules that end too early."""

import math
from collections.abc import Iterator
from itertools import pairwise

from normscope.diagnostics.findings.finding import Finding, FindingKind, RecordView, check
from normscope.diagnostics.findings.steps_without_effect import MIN_STEPS
from normscope.diagnostics.stats.loop import OptimizerRecord, ScheduleRecord

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
