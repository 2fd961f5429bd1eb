"""A rough estimate, within seconds, of whether a comparison fits its time budget, before workers start."""

import time
from collections.abc import Sequence

import torch

from normscope.lab.claim import Settings
from normscope.lab.compare.time_budget import FEWEST_STEPS, RunCost, time_budget_error, total_seconds
from normscope.lab.compare.variants import PLACEHOLDER_CORPUS, build_on_meta
from normscope.lab.trials.text import build_gpt
from normscope.ops.kernel_mode import reference_kernels

MAX_SECONDS = 2.0
"""Approximate limit for the estimate; models too large to be timed within it are estimated by FLOPs."""
PASSES = 3
OVERESTIMATE = 2.0
"""Factor by which the estimate may be too high: the reference implementation takes at most twice as long as the fused
kernels. Borderline cases are timed by the workers."""


def check_time_budget(variants: Sequence[Settings], stages: Sequence[int], seconds: float, workers: int) -> None:
    """Refuse a comparison that would not fit even if its steps took half as long as estimated.

    Args:
        variants: settings of each.
        stages: runs per variant in each stage.
        seconds: time budget.
        workers: number of parallel runs.
    """
    steps = quick_step_times(variants)
    if total_seconds([RunCost(step / OVERESTIMATE, 0.0) for step in steps], stages, FEWEST_STEPS, workers) > seconds:
        needed = total_seconds([RunCost(step, 0.0) for step in steps], stages, FEWEST_STEPS, workers)
        raise time_budget_error(len(variants) * sum(stages), seconds, needed)


def quick_step_times(variants: Sequence[Settings]) -> list[float]:
    """Estimate the seconds per step of each variant: timed with the reference kernels on one thread, or by FLOPs."""
    flops = [step_flops(settings) for settings in variants]
    threads, start = torch.get_num_threads(), time.monotonic()
    torch.set_num_threads(1)
    try:
        speed = matmul_speed()
        found = [count / speed for count in flops]
        with reference_kernels():
            for i in sorted(range(len(variants)), key=found.__getitem__):
                if PASSES * found[i] < MAX_SECONDS - (time.monotonic() - start):
                    found[i] = _step_time(variants[i])
    finally:
        torch.set_num_threads(threads)
    return found


def step_flops(settings: Settings) -> int:
    """FLOPs of the matrix products: two per weight and token forward, twice as many backward."""
    model = build_on_meta(settings)
    return 6 * model.parameter_count() * model.config.context * int(settings["batch"])


def matmul_speed(size: int = 512) -> float:
    """FLOPs per second of a square matrix product, an upper bound for models."""
    left, right = torch.randn(size, size), torch.randn(size, size)
    times = []
    for _ in range(PASSES):
        start = time.perf_counter()
        left @ right
        times.append(time.perf_counter() - start)
    return 2 * size**3 / min(times)


def _step_time(settings: Settings) -> float:
    """The minimum over a few passes."""
    model = build_gpt(settings, PLACEHOLDER_CORPUS, seed=0)
    tokens = torch.randint(PLACEHOLDER_CORPUS.vocab_size, (int(settings["batch"]), model.config.context + 1))
    times = []
    for _ in range(PASSES):
        start = time.perf_counter()
        model.loss(tokens[:, :-1], tokens[:, 1:]).backward()
        times.append(time.perf_counter() - start)
    return min(times)
