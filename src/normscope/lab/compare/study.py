"""The study behind a comparison: the pace of each variant, its learning rate, then all with every seed."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from normscope.lab.claim import Settings, Tuning
from normscope.lab.claim_runs import Runs
from normscope.lab.compare.pacing import measure_pace, paces_of, steps_for
from normscope.lab.schedule import Study
from normscope.lab.time_left import work_of
from normscope.lab.trial import Done, Trial, name_of
from normscope.lab.trials.text import train_text
from normscope.lab.tuning import FIRST_TUNING_SEED, best_rates, rounded, tries, tuned_losses

PACE_SEED = 2000
PACE_RATE = 1e-4
"""No rate is slower than another, but a run that stops being finite ends too soon to be timed."""
AUTO_RATES = (1e-3, 3e-3, 1e-2, 3e-2)
TUNING_SEEDS = 2


@dataclass(frozen=True)
class Plan:
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
    rates: tuple[float, ...]
    further: bool
    seeds: int
    minutes: float
    workers: int

    @property
    def stages(self) -> list[int]:
        """Runs of each variant, of which each stage waits for the one before."""
        tries = [len(self.rates) * TUNING_SEEDS] if len(self.rates) > 1 else []
        return [*tries, *([TUNING_SEEDS] if self.further else []), self.seeds]

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

    runs: Runs
    settings: Mapping[str, Settings]
    tuned: Mapping[str, Mapping[float, float]]
    steps: int
    seconds: Mapping[str, float]
    workers: int


def comparison(plan: Plan) -> Study[Comparison]:
    """Pace, learning rates, runs."""
    pace = [one.figures for one in (yield pace_trials(plan))]
    steps = steps_for(paces_of(pace), plan.stages, 60 * plan.minutes, plan.workers)
    variants: dict[str, Settings] = {name: {**settings, "steps": steps} for name, settings in plan.variants.items()}
    tuned: Mapping[str, Mapping[float, float]] = {}
    rates = dict.fromkeys(variants, plan.rates[0])
    if len(plan.rates) > 1:
        tuned = yield from _tune(plan, variants)
        rates = best_rates(tuned)
    variants = {name: {**settings, "rate": rates[name]} for name, settings in variants.items()}
    seeds = range(plan.seeds)
    done = yield [_run(settings, seed) for settings in variants.values() for seed in seeds]
    runs = Runs.collect(variants, seeds, [one.figures for one in done], rates)
    seconds = {
        name: _usual(done[i * plan.seeds : (i + 1) * plan.seeds], pace[i]["besides"]) for i, name in enumerate(variants)
    }
    return Comparison(runs, variants, tuned, steps, seconds, plan.workers)


def pace_trials(plan: Plan) -> list[Trial]:
    """What is timed before anything else."""
    return [Trial(name_of(measure_pace), {**one, "rate": PACE_RATE}, PACE_SEED) for one in plan.variants.values()]


def _usual(done: Sequence[Done], besides: float) -> float:
    """Seconds of a run's steps, but for runs that ended before their time."""
    seconds = [one.seconds for one in done if not one.figures["diverged"]]
    return max(0.0, statistics.median(seconds) - besides) if seconds else 0.0


def _tune(plan: Plan, variants: Mapping[str, Settings]) -> Study[Mapping[str, Mapping[float, float]]]:
    """What each rate gave each variant: the same rates for all, and then, if the plan has it, one more of its own."""
    tuning = Tuning(plan.rates, seeds=TUNING_SEEDS)
    done = yield [_run(settings, seed) for settings, seed in tries(variants, tuning)]
    tuned = tuned_losses(list(variants), tuning, done)
    if not plan.further:
        return tuned
    further = {name: further_rate(losses) for name, losses in tuned.items()}
    seeds = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + TUNING_SEEDS)
    done = yield [_run({**variants[name], "rate": rate}, seed) for name, rate in further.items() for seed in seeds]
    losses = iter(float(one.figures[tuning.by]) for one in done)
    return {
        name: {**tuned[name], rate: statistics.fmean(next(losses) for _ in seeds)} for name, rate in further.items()
    }


def _run(settings: Settings, seed: int) -> Trial:
    return Trial(name_of(train_text), settings, seed)


def further_rate(losses: Mapping[float, float]) -> float:
    """One more rate to try: beyond the edge if the best is there, else between the best and its better neighbour.

    Every variant tries as many, so none is favoured; and none is judged at the end of a row that was too short for it.

    >>> further_rate({0.01: 2.3, 0.03: 2.2, 0.1: 2.1}), further_rate({0.01: 2.2, 0.04: 2.1, 0.16: 2.5})
    (0.33, 0.02)
    """
    rates = sorted(losses)
    place = min(range(len(rates)), key=lambda place: losses[rates[place]])
    if place in (0, len(rates) - 1):
        beyond = rates[0] ** 2 / rates[1] if place == 0 else rates[-1] ** 2 / rates[-2]
        return rounded(beyond)
    neighbour = min(rates[place - 1], rates[place + 1], key=losses.__getitem__)
    return rounded((rates[place] * neighbour) ** 0.5)
