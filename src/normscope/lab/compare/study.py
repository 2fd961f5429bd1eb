"""The study behind a comparison: the pace of each variant, its learning rate, then all with every seed."""

from collections.abc import Mapping
from dataclasses import dataclass

from normscope.lab.claim import Settings, Tuning
from normscope.lab.compare.pacing import PACE_STEPS, pace_of, steps_for
from normscope.lab.runs import Runs
from normscope.lab.schedule import Study
from normscope.lab.trial import Trial, name_of
from normscope.lab.trials.text import train_text
from normscope.lab.tuning import best_rates, tries, tuned_losses

PACE_SEED = 2000
AUTO_RATES = (1e-3, 3e-3, 1e-2, 3e-2)


@dataclass(frozen=True)
class Plan:
    """What is compared, and in what time.

    Args:
        variants: settings by name.
        rates: the learning rates that each variant may try; with one there is nothing to try.
        seeds: how many.
        minutes: of the clock.
        workers: how many runs go on at once.
    """

    variants: Mapping[str, Settings]
    rates: tuple[float, ...]
    seeds: int
    minutes: float
    workers: int

    @property
    def tries(self) -> int:
        """Runs of each variant to find its rate."""
        return len(self.rates) if len(self.rates) > 1 else 0

    @property
    def trials(self) -> int:
        return len(self.variants) * (1 + self.tries + self.seeds)


@dataclass(frozen=True)
class Comparison:
    """All runs of a comparison, its learning rates, and how many steps each had."""

    runs: Runs
    settings: Mapping[str, Settings]
    tuned: Mapping[str, Mapping[float, float]]
    steps: int


def comparison(plan: Plan) -> Study[Comparison]:
    """Pace, learning rates, runs."""
    measure = name_of(train_text)
    short = [{**settings, "steps": PACE_STEPS, "rate": plan.rates[0]} for settings in plan.variants.values()]
    done = yield [Trial(measure, settings, PACE_SEED, alone=True) for settings in short]
    paces = [pace_of(one) for one in done]
    steps = steps_for(paces, plan.tries + plan.seeds, 60 * plan.minutes, plan.workers)
    variants: dict[str, Settings] = {name: {**settings, "steps": steps} for name, settings in plan.variants.items()}
    tuned: dict[str, dict[float, float]] = {}
    rates = dict.fromkeys(variants, plan.rates[0])
    if plan.tries:
        tuning = Tuning(plan.rates)
        done = yield [Trial(measure, settings, seed) for settings, seed in tries(variants, tuning)]
        tuned = tuned_losses(list(variants), tuning, done)
        rates = best_rates(tuned)
    variants = {name: {**settings, "rate": rates[name]} for name, settings in variants.items()}
    seeds = range(plan.seeds)
    done = yield [Trial(measure, settings, seed) for settings in variants.values() for seed in seeds]
    return Comparison(Runs.collect(variants, seeds, [one.figures for one in done], rates), variants, tuned, steps)
