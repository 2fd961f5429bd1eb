"""The study of a comparison: time each variant, tune its learning rate, then run all with every seed."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from normscope.lab.claim import LRTuning, Settings
from normscope.lab.results.variant_runs import VariantRuns
from normscope.lab.running.scheduler import Study
from normscope.lab.running.time_estimates import measure_run_cost, run_costs, steps_within, work_of
from normscope.lab.running.trial import LabTrial, TrialResult, function_path
from normscope.lab.running.tuning import FIRST_TUNING_SEED, best_lrs, round_lr, tuned_losses, tuning_runs
from normscope.lab.running.workers import check_workers
from normscope.lab.trials.text import train_text

TIMING_SEED = 2000
TIMING_LR = 1e-4
"""The learning rate does not affect the speed, but a run that diverges ends too soon to be timed."""
AUTO_LRS = (1e-3, 3e-3, 1e-2, 3e-2)
TUNING_SEEDS = 2


@dataclass(frozen=True)
class ComparisonPlan:
    """What is compared, and in what time.

    Args:
        variants: settings by name.
        lrs: learning rates to try for each variant, in increasing order; a single one is used without tuning.
        refine: try one more learning rate per variant, near or beyond the best.
        seeds: number of seeds.
        minutes: wall-clock time budget.
        workers: number of parallel runs.
    """

    variants: Mapping[str, Settings]
    lrs: tuple[float, ...]
    refine: bool
    seeds: int
    minutes: float
    workers: int

    def __post_init__(self) -> None:
        check_workers(self.workers)

    @property
    def stages(self) -> list[int]:
        """Runs per variant in each stage; each stage waits for the previous one."""
        tuning = [len(self.lrs) * TUNING_SEEDS] if len(self.lrs) > 1 else []
        return [*tuning, *([TUNING_SEEDS] if self.refine else []), self.seeds]

    @property
    def trials(self) -> int:
        """Number of trials, without those for timing."""
        return len(self.variants) * sum(self.stages)

    @property
    def work(self) -> float:
        """Total work at one step per run: the number of steps is not known yet."""
        return sum(work_of(one_step(settings)) for settings in self.variants.values()) * sum(self.stages)


def one_step(settings: Settings) -> Settings:
    return {**settings, "steps": 1}


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison.

    Args:
        runs: all runs, with the learning rate of each variant.
        settings: of each variant.
        tuned: loss of each variant by learning rate.
        steps: per run.
        seconds: CPU seconds of the steps of a run, by variant; 0 if all runs diverged.
        workers: number of parallel runs.
    """

    runs: VariantRuns
    settings: Mapping[str, Settings]
    tuned: Mapping[str, Mapping[float, float]]
    steps: int
    seconds: Mapping[str, float]
    workers: int


def comparison(plan: ComparisonPlan) -> Study[Comparison]:
    """Time, tune and run all variants."""
    costs = [result.metrics for result in (yield timing_trials(plan))]
    steps = steps_within(run_costs(costs), plan.stages, 60 * plan.minutes, plan.workers)
    variants: dict[str, Settings] = {name: {**settings, "steps": steps} for name, settings in plan.variants.items()}
    tuned: Mapping[str, Mapping[float, float]] = {}
    lrs = dict.fromkeys(variants, plan.lrs[0])
    if len(plan.lrs) > 1:
        tuned = yield from _tune(plan, variants)
        lrs = best_lrs(tuned)
    variants = {name: {**settings, "lr": lrs[name]} for name, settings in variants.items()}
    seeds = range(plan.seeds)
    results = yield [_train(settings, seed) for settings in variants.values() for seed in seeds]
    runs = VariantRuns.collect(variants, seeds, [result.metrics for result in results], lrs)
    seconds = {
        name: _step_seconds(results[i * plan.seeds : (i + 1) * plan.seeds], costs[i]["overhead"])
        for i, name in enumerate(variants)
    }
    return Comparison(runs, variants, tuned, steps, seconds, plan.workers)


def timing_trials(plan: ComparisonPlan) -> list[LabTrial]:
    """Return the trials that time the variants."""
    measure = function_path(measure_run_cost)
    return [LabTrial(measure, {**one, "lr": TIMING_LR}, TIMING_SEED) for one in plan.variants.values()]


def _step_seconds(results: Sequence[TrialResult], overhead: float) -> float:
    """Median CPU seconds of the steps of a run, over the runs that did not diverge."""
    seconds = [result.seconds for result in results if not result.metrics["diverged"]]
    return max(0.0, statistics.median(seconds) - overhead) if seconds else 0.0


def _tune(plan: ComparisonPlan, variants: Mapping[str, Settings]) -> Study[Mapping[str, Mapping[float, float]]]:
    """Return losses by learning rate: the same grid for all variants, and one more value each if the plan refines."""
    tuning = LRTuning(plan.lrs, seeds=TUNING_SEEDS)
    results = yield [_train(settings, seed) for settings, seed in tuning_runs(variants, tuning)]
    tuned = tuned_losses(list(variants), tuning, results)
    if not plan.refine:
        return tuned
    extra = {name: extra_lr(losses) for name, losses in tuned.items()}
    seeds = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + TUNING_SEEDS)
    results = yield [_train({**variants[name], "lr": lr}, seed) for name, lr in extra.items() for seed in seeds]
    losses = iter(float(result.metrics[tuning.metric]) for result in results)
    return {name: {**tuned[name], lr: statistics.fmean(next(losses) for _ in seeds)} for name, lr in extra.items()}


def _train(settings: Settings, seed: int) -> LabTrial:
    return LabTrial(function_path(train_text), settings, seed)


def extra_lr(losses: Mapping[float, float]) -> float:
    """Return one more learning rate to try: beyond the edge, or between the best and its better neighbor.

    Every variant tries equally many, so none is favored.

    >>> extra_lr({0.01: 2.3, 0.03: 2.2, 0.1: 2.1}), extra_lr({0.01: 2.2, 0.04: 2.1, 0.16: 2.5})
    (0.33, 0.02)
    """
    lrs = sorted(losses)
    best = min(range(len(lrs)), key=lambda i: losses[lrs[i]])
    if best in (0, len(lrs) - 1):
        return round_lr(lrs[0] ** 2 / lrs[1] if best == 0 else lrs[-1] ** 2 / lrs[-2])
    neighbor = min(lrs[best - 1], lrs[best + 1], key=losses.__getitem__)
    return round_lr((lrs[best] * neighbor) ** 0.5)
