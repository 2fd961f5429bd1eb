"""How many steps the time allows: some of each variant are timed, and the whole comparison is laid out in advance.

What is timed runs side by side, as many at once as there will be, so that what runs take from each other is in it. Each
is timed in seconds of its core, in which even a few steps tell the pace; and all of them together tell how many seconds
of the clock on the wall such a second takes, which are more if the machine has other things to do.
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
"""The share of the time that is planned for; the rest is for processes to start, and for what cannot be foreseen."""
FEWEST_STEPS = 40
"""With fewer nothing is learnt that could differ."""
FEW, MORE, MOST = 3, 12, 200
"""Steps that are timed: a few, to take what a run needs besides steps from, then from MORE to MOST."""
SAMPLE = 1.0
"""Seconds of steps that are timed, if that is between MORE and MOST steps."""


def measure_run_cost(settings: Settings, seed: int) -> dict[str, Any]:
    """What one run of a variant takes.

    Figures:
        step: seconds a step, of a core.
        besides: seconds of a run besides its steps, of a core: to build the model, and to judge it in the end.
        core, wall: seconds that were timed, of the core and on the wall.
        spent: seconds that the timing took, on the wall, without what is loaded or compiled once for each process:
            on a new installation that is half a minute, which is not worth refusing a comparison for.
    """
    _timed(settings, 1, seed)  # what is loaded, compiled or counted only once
    start = time.perf_counter()
    few = _timed(settings, FEW, seed)
    many = _timed(settings, min(MOST, max(MORE, round(SAMPLE / few.a_step))) if few.a_step else MORE, seed)
    step = (many.core - few.core) / (many.steps - FEW)
    if step <= 0:  # whatever came between; a step that takes no time would be asked for without end
        step = many.a_step
    return {
        "step": step,
        "overhead": max(0.0, few.core - FEW * step),
        "core": few.core + many.core,
        "wall": few.wall + many.wall,
        "spent": time.perf_counter() - start,
    }


@dataclass(frozen=True)
class _Timed:
    """A run that was timed: its steps, its seconds, and on the wall those of one step; 0 if it got through none."""

    steps: int
    core: float
    wall: float
    a_step: float


def _timed(settings: Settings, steps: int, seed: int) -> _Timed:
    core, wall = time.process_time(), time.perf_counter()
    metrics = train_text({**settings, "steps": steps}, seed)
    core, wall = time.process_time() - core, time.perf_counter() - wall
    return _Timed(steps, core, wall, float(metrics["seconds_per_step"]))


@dataclass(frozen=True)
class RunCost:
    """What one run of a variant takes on the wall: seconds for each step, and besides; and what it took to know it."""

    step: float
    overhead: float
    spent: float = 0.0

    def seconds(self, steps: int) -> float:
        return self.overhead + steps * self.step


def run_costs(metrics: Sequence[Metrics]) -> list[RunCost]:
    """Of each variant, from what was measured of all.

    >>> run_costs([{"step": 0.01, "overhead": 0.2, "core": 1.0, "wall": 1.5, "spent": 4.0}])
    [RunCost(step=0.015, overhead=0.30..., spent=4.0)]
    """
    core = sum(float(one["core"]) for one in metrics)
    slower = sum(float(one["wall"]) for one in metrics) / core if core else 1.0
    return [RunCost(slower * one["step"], slower * one["overhead"], float(one["spent"])) for one in metrics]


def total_seconds(paces: Sequence[RunCost], stages: Sequence[int], steps: int, workers: int) -> float:
    """How long it all takes: the timing itself, then stage after stage, each of which waits for the last of its runs.

    Args:
        paces: of each variant.
        stages: how many runs of each variant, in each stage.
        steps: of each run.
        workers: how many runs go on at once.

    >>> total_seconds([RunCost(0.01, 0.5), RunCost(0.03, 0.5)], stages=[1, 2], steps=100, workers=2)
    8.5
    """
    found = _side_by_side([pace.spent for pace in paces], workers)
    for runs in stages:
        found += _side_by_side([pace.seconds(steps) for pace in paces for _ in range(runs)], workers)
    return found


def _side_by_side(runs: Sequence[float], workers: int) -> float:
    """Whoever is free takes the next."""
    free_at = [0.0] * max(1, min(workers, len(runs)))  # more of them would have nothing to do
    for seconds in runs:
        heapq.heapreplace(free_at, free_at[0] + seconds)
    return max(free_at)


def steps_within(paces: Sequence[RunCost], stages: Sequence[int], seconds: float, workers: int) -> int:
    """The number of steps with which all stages fit in the time.

    >>> steps_within([RunCost(0.01, 0.5), RunCost(0.02, 0.5)], stages=[4, 5], seconds=120, workers=2)
    696
    """
    count = len(paces) * sum(stages)
    if not any(pace.step for pace in paces):
        raise ConfigError("none of them gets through a single step\nfix: a smaller --lr, or another --init")

    def fits(steps: int) -> bool:
        return total_seconds(paces, stages, steps, workers) <= USED * seconds

    if not fits(FEWEST_STEPS):
        raise time_budget_error(count, seconds, total_seconds(paces, stages, FEWEST_STEPS, workers))
    fitting, too_many = FEWEST_STEPS, 2 * FEWEST_STEPS
    while fits(too_many):
        fitting, too_many = too_many, 2 * too_many
    while too_many - fitting > 1:
        middle = (fitting + too_many) // 2
        fitting, too_many = (middle, too_many) if fits(middle) else (fitting, middle)
    return fitting


class TimeBudgetError(ConfigError):
    """The comparison does not fit into the time that it was given."""


def time_budget_error(runs: int, seconds: float, needed: float) -> TimeBudgetError:
    """The refusal, with what would do: runs of FEWEST_STEPS need so many seconds."""
    return TimeBudgetError(
        f"{runs} runs of at least {FEWEST_STEPS} steps do not fit into {seconds / 60:g} minutes\n"
        f"fix: --minutes {math.ceil(needed / USED / 60)}, or fewer variants, seeds or rates, or a smaller model"
    )
