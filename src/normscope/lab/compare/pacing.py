"""How many steps the time allows: a few of each variant are timed, and the rest is divided."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from normscope.errors import ConfigError
from normscope.lab.trial import Done

PACE_STEPS = 12
USED = 0.85
"""The share of the time that is planned for; the rest is for what cannot be foreseen."""
FEWEST_STEPS = 40
"""With fewer nothing is learnt that could differ."""


@dataclass(frozen=True)
class Pace:
    """What one run of a variant takes: seconds for each step, and seconds besides."""

    step: float
    besides: float

    def seconds(self, steps: int) -> float:
        return self.besides + steps * self.step


def pace_of(done: Done) -> Pace:
    """From a short run. What a process takes to get going is in it too, which makes the plan careful."""
    step = float(done.figures["seconds_a_step"])
    return Pace(step, max(0.0, done.seconds - PACE_STEPS * step))


def steps_for(paces: Sequence[Pace], runs: int, seconds: float, workers: int) -> int:
    """The number of steps with which all runs of all variants fit in the time.

    Args:
        paces: of each variant.
        runs: how many of each.
        seconds: of the clock.
        workers: how many runs go on at once.

    >>> steps_for([Pace(0.01, 0.5), Pace(0.02, 0.5)], runs=9, seconds=120, workers=2)
    722
    """
    # The first processes' beginnings are in `besides`; of several variants the quickest tells what a run takes.
    besides = min(pace.besides for pace in paces)
    time = USED * seconds * workers - runs * len(paces) * besides
    steps = math.floor(time / (runs * sum(pace.step for pace in paces)))
    if steps < FEWEST_STEPS:
        needed = runs * (len(paces) * besides + FEWEST_STEPS * sum(pace.step for pace in paces)) / (USED * workers)
        raise ConfigError(
            f"{runs * len(paces)} runs do not fit into {seconds / 60:g} minutes\n"
            f"fix: --minutes {math.ceil(needed / 60)}, or fewer variants, seeds or rates, or a smaller model"
        )
    return steps
