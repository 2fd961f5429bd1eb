"""The study behind a comparison: the pace of each variant, its learning rate, then all with every seed."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from normscope.lab.claim import LRTuning, Settings
from normscope.lab.compare.time_budget import measure_run_cost, run_costs, steps_within
from normscope.lab.scheduler import Study
from normscope.lab.time_left import work_of
from normscope.lab.trial import LabTrial, TrialResult, function_path
from normscope.lab.trials.text import train_text
from normscope.lab.tuning import FIRST_TUNING_SEED, best_lrs, round_lr, tuned_losses, tuning_runs
from normscope.lab.variant_runs import VariantRuns

PACE_SEED = 2000
PACE_RATE = 1e-4
"""No rate is slower than another, but a run that stops being finite ends too soon to be timed."""
AUTO_LRS = (1e-3, 3e-3, 1e-2, 3e-2)
TUNING_SEEDS = 2


@dataclass(frozen=True)
class ComparisonPlan:
    """What is compared, and in what time.

    Args:
        variants: settings by name.
        rates: the learning rates that each variant may try, from small to large; with one there is nothing to try.
        further: whether each variant may try one more, where the best of these tells it to look.
        seeds: how many.
        minutes: of the clock.
        workers: how many runs go on at once.
    """

    variants: Mapping[str, Settings]
    lrs: tuple[float, ...]
    refine: bool
    seeds: int
    minutes: float
    workers: int

    @property
    def stages(self) -> list[int]:
        """Runs of each variant, of which each stage waits for the one before."""
        tuning_runs = [len(self.lrs) * TUNING_SEEDS] if len(self.lrs) > 1 else []
        return [*tuning_runs, *([TUNING_SEEDS] if self.refine else []), self.seeds]

    @property
    def trials(self) -> int:
        """All of them, but for those that only tell the pace."""
        return len(self.variants) * sum(self.stages)

    @property
    def work(self) -> float:
        """That of all of them, if each had one step: how many they will have is not known yet."""
        return sum(work_of(one_step(settings)) for settings in self.variants.values()) * sum(self.stages)


def one_step(settings: Settings) -> Settings:
    return {**settings, "steps": 1}


@dataclass(frozen=True)
class Comparison:
    """What came of a comparison.

    Args:
        runs: all of them, with the learning rate of each variant.
        settings: of each variant.
        tuned: what each variant gave with each learning rate that was tried.
        steps: of each run.
        seconds: of a core, for the steps of a run of each variant; 0 if none of them came to its end.
        workers: how many runs went on at once.
    """

    runs: VariantRuns
    settings: Mapping[str, Settings]
    tuned: Mapping[str, Mapping[float, float]]
    steps: int
    seconds: Mapping[str, float]
    workers: int


def comparison(plan: ComparisonPlan) -> Study[Comparison]:
    """Pace, learning rates, runs."""
    pace = [one.metrics for one in (yield timing_trials(plan))]
    steps = steps_within(run_costs(pace), plan.stages, 60 * plan.minutes, plan.workers)
    variants: dict[str, Settings] = {name: {**settings, "steps": steps} for name, settings in plan.variants.items()}
    tuned: Mapping[str, Mapping[float, float]] = {}
    lrs = dict.fromkeys(variants, plan.lrs[0])
    if len(plan.lrs) > 1:
        tuned = yield from _tune(plan, variants)
        lrs = best_lrs(tuned)
    variants = {name: {**settings, "lr": lrs[name]} for name, settings in variants.items()}
    seeds = range(plan.seeds)
    done = yield [_run(settings, seed) for settings in variants.values() for seed in seeds]
    runs = VariantRuns.collect(variants, seeds, [one.metrics for one in done], lrs)
    seconds = {
        name: _usual(done[i * plan.seeds : (i + 1) * plan.seeds], pace[i]["overhead"])
        for i, name in enumerate(variants)
    }
    return Comparison(runs, variants, tuned, steps, seconds, plan.workers)


def timing_trials(plan: ComparisonPlan) -> list[LabTrial]:
    """What is timed before anything else."""
    return [
        LabTrial(function_path(measure_run_cost), {**one, "lr": PACE_RATE}, PACE_SEED) for one in plan.variants.values()
    ]


def _usual(done: Sequence[TrialResult], overhead: float) -> float:
    """Seconds of a run's steps, but for runs that ended before their time."""
    seconds = [one.seconds for one in done if not one.metrics["diverged"]]
    return max(0.0, statistics.median(seconds) - overhead) if seconds else 0.0


def _tune(plan: ComparisonPlan, variants: Mapping[str, Settings]) -> Study[Mapping[str, Mapping[float, float]]]:
    """What each rate gave each variant: the same rates for all, and then, if the plan has it, one more of its own."""
    tuning = LRTuning(plan.lrs, seeds=TUNING_SEEDS)
    done = yield [_run(settings, seed) for settings, seed in tuning_runs(variants, tuning)]
    tuned = tuned_losses(list(variants), tuning, done)
    if not plan.refine:
        return tuned
    refine = {name: extra_lr(losses) for name, losses in tuned.items()}
    seeds = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + TUNING_SEEDS)
    done = yield [_run({**variants[name], "lr": lr}, seed) for name, lr in refine.items() for seed in seeds]
    losses = iter(float(one.metrics[tuning.by]) for one in done)
    return {name: {**tuned[name], lr: statistics.fmean(next(losses) for _ in seeds)} for name, lr in refine.items()}


def _run(settings: Settings, seed: int) -> LabTrial:
    return LabTrial(function_path(train_text), settings, seed)


def extra_lr(losses: Mapping[float, float]) -> float:
    """One more rate to try: beyond the edge if the best is there, else between the best and its better neighbour.

    Every variant tries as many, so none is favoured; and none is judged at the end of a row that was too short for it.

    >>> extra_lr({0.01: 2.3, 0.03: 2.2, 0.1: 2.1}), extra_lr({0.01: 2.2, 0.04: 2.1, 0.16: 2.5})
    (0.33, 0.02)
    """
    lrs = sorted(losses)
    place = min(range(len(lrs)), key=lambda place: losses[lrs[place]])
    if place in (0, len(lrs) - 1):
        beyond = lrs[0] ** 2 / lrs[1] if place == 0 else lrs[-1] ** 2 / lrs[-2]
        return round_lr(beyond)
    neighbour = min(lrs[place - 1], lrs[place + 1], key=losses.__getitem__)
    return round_lr((lrs[place] * neighbour) ** 0.5)
