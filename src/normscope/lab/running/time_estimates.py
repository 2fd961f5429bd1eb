"""Time estimates: how many steps a time budget allows, and whether it allows any.

A comparison is planned from timed steps of each variant. The timing uses as many parallel workers as the runs, so that
their contention is included. Each variant is timed in CPU seconds, which are precise for few steps; all together give
the ratio of wall-clock to CPU time. Before that, a rough estimate refuses within seconds what cannot fit.
"""

import bisect
import heapq
import math
import time
import timeit
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from normscope.errors import ConfigError
from normscope.lab.claim import Settings
from normscope.lab.results.verdict import Metrics
from normscope.lab.trials.text import PLACEHOLDER_CORPUS, build_gpt, build_on_meta, train_text
from normscope.ops.kernel_mode import reference_kernels

USED = 0.85
"""Share of the time budget that is planned; the rest is for process startup and surprises."""
FEWEST_STEPS, MAX_STEPS = 40, 2**40
"""With fewer, models learn too little to differ; none take more."""
FEW, MORE, MOST = 3, 12, 200
"""Timed steps: FEW, to find the overhead of a run, then MORE to MOST."""
SAMPLE = 1.0
"""Target seconds of the second timing, within MORE to MOST steps."""
MAX_SECONDS = 2.0
"""Approximate limit for the estimate; models too large to be timed within it are estimated by FLOPs."""
PASSES = 3
OVERESTIMATE = 2.0
"""Factor by which the estimate may be too high: the reference implementation takes at most twice as long as the fused
kernels. Borderline cases are timed by the workers."""


def measure_run_cost(settings: Settings, seed: int) -> dict[str, Any]:
    """Measure the cost of a run of a variant.

    Metrics:
        step: CPU seconds per step.
        overhead: CPU seconds of a run besides its steps: building and evaluating the model.
        core, wall: CPU and wall-clock seconds of the timed runs.
        spent: wall-clock seconds of the timing, without imports and compilation, which happen once per process.
    """
    _timed(settings, 1, seed)  # imports, compilation, FLOP counting
    start = time.perf_counter()
    few_core, few_wall, pace = _timed(settings, FEW, seed)
    steps = min(MOST, max(MORE, round(SAMPLE / pace))) if pace else MORE
    core, wall, pace = _timed(settings, steps, seed)
    step = (core - few_core) / (steps - FEW)
    if step <= 0:  # timing noise; a step without cost would be requested without end
        step = pace
    return {
        "step": step,
        "overhead": max(0.0, few_core - FEW * step),
        "core": few_core + core,
        "wall": few_wall + wall,
        "spent": time.perf_counter() - start,
    }


def _timed(settings: Settings, steps: int, seed: int) -> tuple[float, float, float]:
    """CPU and wall-clock seconds of a run, and its wall-clock seconds per step (0 if it diverged at once)."""
    core, wall = time.process_time(), time.perf_counter()
    metrics = train_text({**settings, "steps": steps}, seed)
    return time.process_time() - core, time.perf_counter() - wall, float(metrics["seconds_per_step"])


@dataclass(frozen=True)
class RunCost:
    """Wall-clock seconds of a run: per step, besides its steps, and spent on measuring this."""

    step: float
    overhead: float
    spent: float = 0.0

    def seconds(self, steps: int) -> float:
        return self.overhead + steps * self.step


def run_costs(metrics: Sequence[Metrics]) -> list[RunCost]:
    """Convert the metrics of `measure_run_cost` of all variants.

    >>> run_costs([{"step": 0.01, "overhead": 0.2, "core": 1.0, "wall": 1.5, "spent": 4.0}])
    [RunCost(step=0.015, overhead=0.30..., spent=4.0)]
    """
    core, wall = (sum(float(one[name]) for one in metrics) for name in ("core", "wall"))
    slower = wall / core if core else 1.0
    return [RunCost(slower * one["step"], slower * one["overhead"], float(one["spent"])) for one in metrics]


def total_seconds(costs: Sequence[RunCost], stages: Sequence[int], steps: int, workers: int) -> float:
    """Return the duration of a comparison: the timing, then the stages, each of which waits for its last run.

    Args:
        costs: of each variant.
        stages: runs per variant in each stage.
        steps: per run.
        workers: number of parallel runs.

    >>> total_seconds([RunCost(0.01, 0.5), RunCost(0.03, 0.5)], stages=[1, 2], steps=100, workers=2)  # 3.5 + 1.5 + 3.5
    8.5
    """
    found = _in_parallel([cost.spent for cost in costs], workers)
    for runs in stages:
        found += _in_parallel([cost.seconds(steps) for cost in costs for _ in range(runs)], workers)
    return found


def _in_parallel(runs: Sequence[float], workers: int) -> float:
    """Duration if each free worker takes the next run."""
    free_at = [0.0] * max(1, min(workers, len(runs)))  # more of them would have nothing to do
    for seconds in runs:
        heapq.heapreplace(free_at, free_at[0] + seconds)
    return max(free_at)


def steps_within(costs: Sequence[RunCost], stages: Sequence[int], seconds: float, workers: int) -> int:
    """Return the number of steps with which all stages fit into the time.

    >>> steps_within([RunCost(0.01, 0.5), RunCost(0.02, 0.5)], stages=[4, 5], seconds=120, workers=2)
    696
    """
    if not any(cost.step for cost in costs):
        raise ConfigError("every variant diverges in the first step\nfix: a smaller --lr, or another --init")

    def too_many(steps: int) -> bool:
        return total_seconds(costs, stages, steps, workers) > USED * seconds

    fitting = bisect.bisect_left(range(FEWEST_STEPS, MAX_STEPS), True, key=too_many)
    if not fitting:
        needed = total_seconds(costs, stages, FEWEST_STEPS, workers)
        raise time_budget_error(len(costs) * sum(stages), seconds, needed)
    return FEWEST_STEPS + fitting - 1


class TimeBudgetError(ConfigError):
    """The comparison does not fit into its time budget."""


def time_budget_error(runs: int, seconds: float, needed: float) -> TimeBudgetError:
    """Build the error; runs of FEWEST_STEPS would need `needed` seconds."""
    return TimeBudgetError(
        f"{runs} runs of at least {FEWEST_STEPS} steps do not fit into {seconds / 60:g} minutes\n"
        f"fix: --minutes {math.ceil(needed / USED / 60)}, or fewer variants, seeds or lrs, or a smaller model"
    )


def check_time_budget(variants: Sequence[Settings], stages: Sequence[int], seconds: float, workers: int) -> None:
    """Refuse a comparison that would not fit even if its steps took half as long as estimated.

    Args:
        variants: settings of each.
        stages: runs per variant in each stage.
        seconds: time budget.
        workers: number of parallel runs.
    """
    costs = [RunCost(step, 0.0) for step in quick_step_times(variants)]
    needed = total_seconds(costs, stages, FEWEST_STEPS, workers)
    if needed / OVERESTIMATE > seconds:
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
    return 2 * size**3 / _shortest(lambda: left @ right)


def _step_time(settings: Settings) -> float:
    model = build_gpt(settings, PLACEHOLDER_CORPUS, seed=0)
    tokens = torch.randint(PLACEHOLDER_CORPUS.vocab_size, (int(settings["batch"]), model.config.context + 1))
    return _shortest(lambda: model.loss(tokens[:, :-1], tokens[:, 1:]).backward())


def _shortest(run: Callable[[], object]) -> float:
    """The shortest of a few runs, in seconds."""
    return min(timeit.repeat(run, repeat=PASSES, number=1))
