"""Learning rates: what is tried, what each gave, and which is the best."""

import statistics
from collections.abc import Mapping, Sequence

from normscope.lab.claim import Settings, Tuning
from normscope.lab.trial import Done

FIRST_TUNING_SEED = 1000
"""Rates are chosen with seeds that nothing is judged by: else the winner would owe some of it to luck."""

Tuned = Mapping[str, Mapping[float, float]]
"""Of each variant: what each rate gave."""


def tries(variants: Mapping[str, Settings], tuning: Tuning) -> list[tuple[Settings, int]]:
    """The runs that find the rates: settings and seed."""
    return [
        ({**settings, tuning.setting: rate}, FIRST_TUNING_SEED + seed)
        for settings in variants.values()
        for rate in tuning.rates
        for seed in range(tuning.seeds)
    ]


def tuned_losses(names: Sequence[str], tuning: Tuning, done: Sequence[Done]) -> dict[str, dict[float, float]]:
    """What each rate gave each variant, on average over the tuning's seeds; `done` is in the order of `tries`."""
    losses = iter(float(one.figures[tuning.by]) for one in done)
    return {
        name: {rate: statistics.fmean(next(losses) for _ in range(tuning.seeds)) for rate in tuning.rates}
        for name in names
    }


def best_rates(tuned: Tuned) -> dict[str, float]:
    """The rate with the smallest loss, of each variant.

    >>> best_rates({"rms": {0.001: 2.5, 0.01: 2.1}})
    {'rms': 0.01}
    """
    return {name: min(losses, key=losses.__getitem__) for name, losses in tuned.items()}


def at_the_edge(tuned: Tuned, rates: Mapping[str, float]) -> list[str]:
    """The variants whose best rate is the least or the greatest that was tried: a better one may lie beyond."""
    return [name for name, losses in tuned.items() if len(losses) > 1 and rates[name] in (min(losses), max(losses))]
