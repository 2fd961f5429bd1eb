"""How many steps a time budget allows: some steps of each variant are timed, and the whole comparison is planned.

The timing uses as many parallel workers as the runs, so that their contention is included. Each variant is timed in CPU
seconds, which are precise for few steps; all together give the ratio of wall-clock to CPU time.
"""

import heapq
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from normscope.errors import ConfigError
from normscope.lab.claim import Settings
from normscope.lab.trials.text import train_text
from normscope.lab.verdict import Metrics

USED = 0.85
"""Share of the time budget that is planned; the rest is for process startup and surprises."""
FEWEST_STEPS = 40
"""With fewer, models learn too little to differ."""
FEW, MORE, MOST = 3, 12, 200
"""Timed steps: FEW, to find the overhead of a run, then MORE to MOST."""
SAMPLE = 1.0
"""Target seconds of the second timing, within MORE to MOST steps."""


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
    few = _timed(settings, FEW, seed)
    many = _timed(settings, min(MOST, max(MORE, round(SAMPLE / few.per_step))) if few.per_step else MORE, seed)
    step = (many.core - few.core) / (many.steps - FEW)
    if step <= 0:  # timing noise; a step without cost would be requested without end
        step = many.per_step
    return {
        "step": step,
        "overhead": max(0.0, few.core - FEW * step),
        "core": few.core + many.core,
        "wall": few.wall + many.wall,
        "spent": time.perf_counter() - start,
    }


@dataclass(frozen=True)
class _Timed:
    """A timed run: CPU and wall-clock seconds, and wall-clock seconds per step (0 if it diverged at once)."""

    steps: int
    core: float
    wall: float
    per_step: float


def _timed(settings: Settings, steps: int, seed: int) -> _Timed:
    core, wall = time.process_time(), time.perf_counter()
    metrics = train_text({**settings, "steps": steps}, seed)
    core, wall = time.process_time() - core, time.perf_counter() - wall
    return _Timed(steps, core, wall, float(metrics["seconds_per_step"]))


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
    core = sum(float(one["core"]) for one in metrics)
    slower = sum(float(one["wall"]) for one in metrics) / core if core else 1.0
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
    count = len(costs) * sum(stages)
    if not any(cost.step for cost in costs):
        raise ConfigError("every variant diverges in the first step\nfix: a smaller --lr, or another --init")

    def fits(steps: int) -> bool:
        return total_seconds(costs, stages, steps, workers) <= USED * seconds

    if not fits(FEWEST_STEPS):
        raise time_budget_error(count, seconds, total_seconds(costs, stages, FEWEST_STEPS, workers))
    fitting, too_many = FEWEST_STEPS, 2 * FEWEST_STEPS
    while fits(too_many):
        fitting, too_many = too_many, 2 * too_many
    while too_many - fitting > 1:
        middle = (fitting + too_many) // 2
        fitting, too_many = (middle, too_many) if fits(middle) else (fitting, middle)
    return fitting


class TimeBudgetError(ConfigError):
    """The comparison does not fit into its time budget."""


def time_budget_error(runs: int, seconds: float, needed: float) -> TimeBudgetError:
    """Build the error; runs of FEWEST_STEPS would need `needed` seconds."""
    return TimeBudgetError(
        f"{runs} runs of at least {FEWEST_STEPS} steps do not fit into {seconds / 60:g} minutes\n"
        f"fix: --minutes {math.ceil(needed / USED / 60)}, or fewer variants, seeds or lrs, or a smaller model"
    )
