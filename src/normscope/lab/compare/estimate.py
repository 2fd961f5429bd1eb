"""Whether a comparison can fit at all, in a second or two: before processes start and kernels are loaded."""

import time
from collections.abc import Sequence

import torch

from normscope.lab.claim import Settings
from normscope.lab.compare.time_budget import FEWEST_STEPS, RunCost, time_budget_error, total_seconds
from normscope.lab.compare.variants import SOME_TEXT, build_on_meta
from normscope.lab.trials.text import build_gpt
from normscope.ops.kernel_mode import reference_kernels

ENOUGH = 2.0
"""Seconds that the estimate may take, about; models too large to be timed in it are judged by counting."""
PASSES = 3
GENEROUS = 2.0
"""By how much the estimate may be too high. Plain torch takes at most twice as long as the kernels, and a moment in
which the machine was busy adds to it. What is in between is timed properly, by the processes that will do the runs."""


def check_time_budget(variants: Sequence[Settings], stages: Sequence[int], seconds: float, workers: int) -> None:
    """Refuse a comparison that would not fit even if its steps took half as long as they seem to.

    Args:
        variants: settings of each.
        stages: how many runs of each variant, in each stage.
        seconds: the time that there is.
        workers: how many runs go on at once.
    """
    steps = quick_step_times(variants)
    if total_seconds([RunCost(step / GENEROUS, 0.0) for step in steps], stages, FEWEST_STEPS, workers) > seconds:
        needed = total_seconds([RunCost(step, 0.0) for step in steps], stages, FEWEST_STEPS, workers)
        raise time_budget_error(len(variants) * sum(stages), seconds, needed)


def quick_step_times(variants: Sequence[Settings]) -> list[float]:
    """Seconds of a step of each variant, roughly: timed in plain torch on one thread, or counted if that takes long."""
    flops = [step_flops(settings) for settings in variants]
    threads, start = torch.get_num_threads(), time.monotonic()
    torch.set_num_threads(1)
    try:
        speed = matmul_speed()
        found = [count / speed for count in flops]
        with reference_kernels():
            for place in sorted(range(len(variants)), key=found.__getitem__):
                if PASSES * found[place] < ENOUGH - (time.monotonic() - start):
                    found[place] = _step_time(variants[place])
    finally:
        torch.set_num_threads(threads)
    return found


def step_flops(settings: Settings) -> int:
    """Of the products alone: two for each weight and token, and twice as many backward."""
    model = build_on_meta(settings)
    return 6 * model.parameter_count() * model.config.context * int(settings["batch"])


def matmul_speed(size: int = 512) -> float:
    """FLOPs a second of a product of square matrices, which no model gets beyond."""
    left, right = torch.randn(size, size), torch.randn(size, size)
    times = []
    for _ in range(PASSES):
        start = time.perf_counter()
        left @ right
        times.append(time.perf_counter() - start)
    return 2 * size**3 / min(times)


def _step_time(settings: Settings) -> float:
    """The least of a few passes, which is the least disturbed."""
    model = build_gpt(settings, SOME_TEXT, seed=0)
    tokens = torch.randint(SOME_TEXT.vocab_size, (int(settings["batch"]), model.config.context + 1))
    times = []
    for _ in range(PASSES):
        start = time.perf_counter()
        model.loss(tokens[:, :-1], tokens[:, 1:]).backward()
        times.append(time.perf_counter() - start)
    return min(times)
