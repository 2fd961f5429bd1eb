"""Learning rates: what is tried, what each gave, and which is the best."""

import math
import statistics
from collections.abc import Mapping, Sequence

from normscope.errors import ConfigError
from normscope.lab.claim import Settings, Tuning
from normscope.lab.trial import Done

FIRST_TUNING_SEED = 1000
"""Rates are chosen with seeds that nothing is judged by: else the winner would owe some of it to luck."""
DIGITS = 2
"""Of a rate: nobody writes more, and no loss notices."""
CLIFF = 4
"""Of the rises on both sides of the best rate, one counts for at most this many times the other."""

Tuned = Mapping[str, Mapping[float, float]]
"""Of each variant: what each rate gave."""


def finders(names: Sequence[str], tuning: Tuning) -> list[str]:
    """The variants that look for a rate of their own."""
    unknown = (set(tuning.shared) | set(tuning.shared.values())) - set(names)
    twice = set(tuning.shared) & set(tuning.shared.values())
    if unknown or twice:
        raise ConfigError(f"no rate can be shared with {sorted(unknown | twice)}: not a variant that finds its own")
    return [name for name in names if name not in tuning.shared]


def tries(variants: Mapping[str, Settings], tuning: Tuning) -> list[tuple[Settings, int]]:
    """The runs that find the rates: settings and seed."""
    return [
        ({**variants[name], tuning.setting: rate}, FIRST_TUNING_SEED + seed)
        for name in finders(list(variants), tuning)
        for rate in tuning.rates
        for seed in range(tuning.seeds)
    ]


def tuned_losses(names: Sequence[str], tuning: Tuning, done: Sequence[Done]) -> dict[str, dict[float, float]]:
    """What each rate gave each variant, on average over the tuning's seeds; `done` is in the order of `tries`."""
    losses = iter(float(one.figures[tuning.by]) for one in done)
    return {
        name: {rate: statistics.fmean(next(losses) for _ in range(tuning.seeds)) for rate in tuning.rates}
        for name in finders(names, tuning)
    }


def best_rates(tuned: Tuned, shared: Mapping[str, str] | None = None) -> dict[str, float]:
    """The best rate of each variant: its own, or that of the one it shares with.

    >>> best_rates({"rms": {0.001: 2.5, 0.01: 2.1}}, {"rms without bias": "rms"})
    {'rms': 0.01, 'rms without bias': 0.01}
    """
    own = {name: best_rate(losses) for name, losses in tuned.items()}
    return own | {name: own[other] for name, other in (shared or {}).items()}


def best_rate(losses: Mapping[float, float]) -> float:
    """Where the parabola through the best rate and its neighbours is lowest; at the edge, the best one itself.

    Two rates that give nearly the same are told apart by chance: the lowest point then lies between them, whichever
    was ahead, so that chance moves the choice a little and not by a whole step.

    >>> best_rate({0.001: 2.5, 0.004: 2.1, 0.016: 2.5}), best_rate({0.001: 2.2, 0.004: 2.1, 0.016: 2.3})
    (0.004, 0.0032)
    """
    rates = sorted(losses)
    place = min(range(len(rates)), key=lambda place: losses[rates[place]])
    if place in (0, len(rates) - 1):
        return rates[place]
    best = losses[rates[place]]
    smaller, larger = losses[rates[place - 1]] - best, losses[rates[place + 1]] - best
    # Beside a rate at which nothing is learnt a parabola would flee, though the best place is just before the cliff.
    below, above = min(smaller, CLIFF * larger), min(larger, CLIFF * smaller)
    if below + above == 0:
        return rates[place]
    left, middle, right = (math.log(rate) for rate in rates[place - 1 : place + 2])
    # The chords' slopes are the parabola's own slopes half way, and the lowest point is where the slope is zero.
    falling, rising = below / (middle - left), above / (right - middle)
    start, end = (left + middle) / 2, (middle + right) / 2
    return rounded(math.exp(start + falling * (end - start) / (rising + falling)))


def rounded(rate: float) -> float:
    return float(f"{rate:.{DIGITS}g}")


def at_the_edge(tuned: Tuned) -> list[str]:
    """The variants whose best rate is the least or the greatest that was tried: a better one may lie beyond.

    Of two rates each is an edge, which says nothing.
    """
    return [
        name
        for name, losses in tuned.items()
        if len(losses) > 2 and min(losses, key=losses.__getitem__) in (min(losses), max(losses))
    ]
