"""Time estimates: what remains of a run, how many steps a time budget allows, and whether it allows any.

A comparison is planned from timed steps of each variant. The timing uses as many parallel workers as the runs, so that
their contention is included. Each variant is timed in CPU seconds, which are precise for few steps; all together give
the ratio of wall-clock to CPU time. Before that, a rough estimate refuses within seconds what cannot fit.
"""

import heapq
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import torch

from normscope.errors import ConfigError
from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, Settings
from normscope.lab.results.verdict import Metrics
from normscope.lab.running.tuning import tuning_runs
from normscope.lab.trials.text import PLACEHOLDER_CORPUS, build_gpt, build_on_meta, train_text
from normscope.ops.kernel_mode import reference_kernels

OVERHEAD_BLOCKS = 2
"""Embedding, loss and optimizer of a step take about as long as two blocks, at the size of the lab's models."""
WITHOUT_STEPS = 50.0
"""Work of a trial without training; most take a tenth of a second."""
FLOPS = 4e7
"""FLOPs of about one block of a step."""
USED = 0.85
"""Share of the time budget that is planned; the rest is for process startup and surprises."""
FEWEST_STEPS = 40
"""With fewer, models learn too little to differ."""
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


def work_of(settings: Settings) -> float:
    """Estimate the work of a trial from its settings, in blocks times steps.

    The unit is arbitrary, because the speed is measured; the ratio between claims, up to a hundred, matters.

    >>> work_of({"steps": 100, "model": {"depth": 4}}), work_of({"steps": 100, "lrs": [0.1, 1.0]}), work_of({})
    (600.0, 400.0, 50.0)
    """
    if "flops" in settings:
        return float(settings["flops"]) / FLOPS
    if "steps" not in settings:
        return WITHOUT_STEPS
    depth = settings.get("model", settings).get("depth", 0)
    return float(settings["steps"] * (OVERHEAD_BLOCKS + depth) * len(settings.get("lrs", [None])))


def claim_work(claim: Claim, budget: Budget) -> float:
    """Estimate the work of all trials of a claim."""
    variants, tuning = claim.experiment.variants(budget), claim.experiment.tuning
    tried = [] if tuning is None else [settings for settings, _ in tuning_runs(variants, tuning(budget))]
    return sum(map(work_of, tried)) + budget.seeds * sum(map(work_of, variants.values()))


@dataclass(frozen=True)
class _Done:
    """Totals of finished trials."""

    trials: int = 0
    work: float = 0.0
    seconds: float = 0.0


class TimeLeft:
    """Counts trials and estimates the remaining time.

    Args:
        trials: number of trials by study.
        work: total work by study; a study without it is assumed to continue as it began.
        clock: monotonic seconds.

    >>> seconds = iter([12.0, 12.0])
    >>> remaining = TimeLeft({"one": 2, "two": 2}, {"one": 20.0, "two": 200.0}, lambda: next(seconds))
    >>> remaining.done("one", 10.0, 6.0, cached=False)
    >>> remaining.seconds()  # 10 units took 6 s; 210 remain
    126.0
    """

    def __init__(
        self,
        trials: Mapping[str, int],
        work: Mapping[str, float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._left = dict(trials)
        self._planned = dict(work or {})
        self._done = {study: _Done() for study in trials}
        self.total, self.finished = sum(trials.values()), 0
        self._worked = 0.0
        self._clock = clock
        self._start: float | None = None

    def done(self, study: str, work: float, seconds: float, cached: bool) -> None:
        """Count a finished trial; a cached one informs the speed, but took no time now."""
        self.finished += 1
        self._left[study] -= 1
        done = self._done[study]
        self._done[study] = _Done(done.trials + 1, done.work + work, done.seconds + seconds)
        if not cached:
            self._worked += seconds
            if self._start is None:  # exclude the startup of processes
                self._start = self._clock() - seconds

    def ended(self, study: str) -> None:
        """End a study; after a failure, its remaining trials are dropped."""
        self.total -= self._left[study]
        self._left[study] = 0

    def seconds(self) -> float | None:
        """Return the remaining seconds, or None if unknown."""
        every = _Done(*map(sum, zip(*map(astuple, self._done.values()), strict=True)))
        if self._start is None or not self._worked or not every.work:
            return None
        seconds = sum(self._seconds(study, every) for study, left in self._left.items() if left)
        return seconds * (self._clock() - self._start) / self._worked

    def _seconds(self, study: str, every: _Done) -> float:
        """CPU seconds left in a study, at its own speed or, before its first trial, at that of all studies."""
        done = self._done[study]
        like = done if done.work else every
        left = self._left[study] * like.work / like.trials
        if study in self._planned:
            left = max(0.0, self._planned[study] - done.work)
        return left * like.seconds / like.work


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
    return 2 * size**3 / _shortest(lambda: left @ right)


def _step_time(settings: Settings) -> float:
    model = build_gpt(settings, PLACEHOLDER_CORPUS, seed=0)
    tokens = torch.randint(PLACEHOLDER_CORPUS.vocab_size, (int(settings["batch"]), model.config.context + 1))
    return _shortest(lambda: model.loss(tokens[:, :-1], tokens[:, 1:]).backward())


def _shortest(run: Callable[[], object]) -> float:
    """The shortest of a few runs, in seconds."""
    times = []
    for _ in range(PASSES):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)
