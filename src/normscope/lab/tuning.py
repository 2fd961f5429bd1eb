"""Learning rates: what is tried, what each gave, and which is the best."""

import math
import statistics
from collections.abc import Mapping, Sequence

from normscope.errors import ConfigError
from normscope.lab.claim import LRTuning, Settings
from normscope.lab.trial import TrialResult

FIRST_TUNING_SEED = 1000
"""Rates are chosen with seeds that nothing is judged by: else the winner would owe some of it to luck."""
DIGITS = 2
"""Of a rate: nobody writes more, and no loss notices."""
CLIFF = 4
"""Of the rises on both sides of the best rate, one counts for at most this many times the other."""

Tuned = Mapping[str, Mapping[float, float]]
"""Of each variant: what each rate gave."""


def tuned_variants(names: Sequence[str], tuning: LRTuning) -> list[str]:
    """The variants that look for a rate of their own."""
    unknown = (set(tuning.shared) | set(tuning.shared.values())) - set(names)
    twice = set(tuning.shared) & set(tuning.shared.values())
    if unknown or twice:
        raise ConfigError(f"no rate can be shared with {sorted(unknown | twice)}: not a variant that finds its own")
    return [name for name in names if name not in tuning.shared]


def tuning_runs(variants: Mapping[str, Settings], tuning: LRTuning) -> list[tuple[Settings, int]]:
    """The runs that find the rates: settings and seed."""
    return [
        ({**variants[name], tuning.setting: lr}, FIRST_TUNING_SEED + seed)
        for name in tuned_variants(list(variants), tuning)
        for lr in tuning.lrs
        for seed in range(tuning.seeds)
    ]


def tuned_losses(names: Sequence[str], tuning: LRTuning, done: Sequence[TrialResult]) -> dict[str, dict[float, float]]:
    """What each rate gave each variant, on average over the tuning's seeds; `done` is in the order of `tuning_runs`."""
    losses = iter(float(one.metrics[tuning.by]) for one in done)
    return {
        name: {lr: statistics.fmean(next(losses) for _ in range(tuning.seeds)) for lr in tuning.lrs}
        for name in tuned_variants(names, tuning)
    }


def best_lrs(tuned: Tuned, shared: Mapping[str, str] | None = None) -> dict[str, float]:
    """The best rate of each variant: its own, or that of the one it shares with.

    >>> best_lrs({"rms": {0.001: 2.5, 0.01: 2.1}}, {"rms without bias": "rms"})
    {'rms': 0.01, 'rms without bias': 0.01}
    """
    own = {name: best_lr(losses) for name, losses in tuned.items()}
    return own | {name: own[other] for name, other in (shared or {}).items()}


def best_lr(losses: Mapping[float, float]) -> float:
    """Where the parabola through the best rate and its neighbours is lowest; at the edge, the best one itself.

    Two rates that give nearly the same are told apart by chance: the lowest point then lies between them, whichever
    was ahead, so that chance moves the choice a little and not by a whole step.

    >>> best_lr({0.001: 2.5, 0.004: 2.1, 0.016: 2.5}), best_lr({0.001: 2.2, 0.004: 2.1, 0.016: 2.3})
    (0.004, 0.0032)
    """
    lrs = sorted(losses)
    place = min(range(len(lrs)), key=lambda place: losses[lrs[place]])
    if place in (0, len(lrs) - 1):
        return lrs[place]
    best = losses[lrs[place]]
    smaller, larger = losses[lrs[place - 1]] - best, losses[lrs[place + 1]] - best
    # Beside a rate at which nothing is learnt a parabola would flee, though the best place is just before the cliff.
    below, above = min(smaller, CLIFF * larger), min(larger, CLIFF * smaller)
    if below + above == 0:
        return lrs[place]
    left, middle, right = (math.log(lr) for lr in lrs[place - 1 : place + 2])
    # The chords' slopes are the parabola's own slopes half way, and the lowest point is where the slope is zero.
    falling, rising = below / (middle - left), above / (right - middle)
    start, end = (left + middle) / 2, (middle + right) / 2
    return round_lr(math.exp(start + falling * (end - start) / (rising + falling)))


def round_lr(lr: float) -> float:
    return float(f"{lr:.{DIGITS}g}")


def best_lr_at_edge(tuned: Tuned) -> list[str]:
    """The variants whose best rate is the least or the greatest that was tried: a better one may lie beyond.

    Of two rates each is an edge, which says nothing.
    """
    return [
        name
        for name, losses in tuned.items()
        if len(losses) > 2 and min(losses, key=losses.__getitem__) in (min(losses), max(losses))
    ]
