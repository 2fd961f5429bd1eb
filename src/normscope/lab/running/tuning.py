"""Tuning of learning rates: which are tried, their losses, and the best."""

import math
import statistics
from collections.abc import Mapping, Sequence

from normscope.errors import ConfigError
from normscope.lab.claim import LRTuning, Settings
from normscope.lab.running.trial import TrialResult

FIRST_TUNING_SEED = 1000
"""Learning rates are tuned with seeds that no verdict uses, so that the selection does not bias it."""
DIGITS = 2
"""Significant digits of a learning rate."""
CLIFF = 4
"""The rise in loss on one side of the best learning rate counts for at most this many times the other."""

Tuned = Mapping[str, Mapping[float, float]]
"""Loss by learning rate, for each variant."""


def tuned_variants(names: Sequence[str], tuning: LRTuning) -> list[str]:
    """Return the variants whose learning rate is tuned."""
    unknown = (set(tuning.shared) | set(tuning.shared.values())) - set(names)
    twice = set(tuning.shared) & set(tuning.shared.values())
    if unknown or twice:
        raise ConfigError(f"cannot share the learning rate of {sorted(unknown | twice)}: not a tuned variant")
    return [name for name in names if name not in tuning.shared]


def tuning_runs(variants: Mapping[str, Settings], tuning: LRTuning) -> list[tuple[Settings, int]]:
    """Return the settings and seeds of all tuning runs."""
    return [
        ({**variants[name], tuning.setting: lr}, FIRST_TUNING_SEED + seed)
        for name in tuned_variants(list(variants), tuning)
        for lr in tuning.lrs
        for seed in range(tuning.seeds)
    ]


def tuned_losses(
    names: Sequence[str], tuning: LRTuning, results: Sequence[TrialResult]
) -> dict[str, dict[float, float]]:
    """Return the mean loss of each variant by learning rate; `results` are in the order of `tuning_runs`."""
    losses = iter(float(result.metrics[tuning.metric]) for result in results)
    return {
        name: {lr: statistics.fmean(next(losses) for _ in range(tuning.seeds)) for lr in tuning.lrs}
        for name in tuned_variants(names, tuning)
    }


def best_lrs(tuned: Tuned, shared: Mapping[str, str] | None = None) -> dict[str, float]:
    """Return the best learning rate of each variant: its own, or that of the variant it shares with.

    >>> best_lrs({"rms": {0.001: 2.5, 0.01: 2.1}}, {"rms without bias": "rms"})
    {'rms': 0.01, 'rms without bias': 0.01}
    """
    own = {name: best_lr(losses) for name, losses in tuned.items()}
    return own | {name: own[other] for name, other in (shared or {}).items()}


def best_lr(losses: Mapping[float, float]) -> float:
    """Minimize a parabola through the best learning rate and its neighbors; at the edge, return the best itself.

    Between two learning rates of nearly equal loss, seed noise decides. The minimum then lies between them, so that
    noise moves the choice a little and not by a whole grid step.

    >>> best_lr({0.001: 2.5, 0.004: 2.1, 0.016: 2.5}), best_lr({0.001: 2.2, 0.004: 2.1, 0.016: 2.3})
    (0.004, 0.0032)
    """
    lrs = sorted(losses)
    best_index = min(range(len(lrs)), key=lambda best_index: losses[lrs[best_index]])
    if best_index in (0, len(lrs) - 1):
        return lrs[best_index]
    best = losses[lrs[best_index]]
    smaller, larger = losses[lrs[best_index - 1]] - best, losses[lrs[best_index + 1]] - best
    # Next to a diverging learning rate the parabola would move far away, though the best is just below the cliff.
    below, above = min(smaller, CLIFF * larger), min(larger, CLIFF * smaller)
    if below + above == 0:
        return lrs[best_index]
    left, middle, right = (math.log(lr) for lr in lrs[best_index - 1 : best_index + 2])
    # The chords' slopes are the parabola's slopes at their midpoints, and its minimum is where the slope is zero.
    falling, rising = below / (middle - left), above / (right - middle)
    start, end = (left + middle) / 2, (middle + right) / 2
    return round_lr(math.exp(start + falling * (end - start) / (rising + falling)))


def round_lr(lr: float) -> float:
    return float(f"{lr:.{DIGITS}g}")


def best_lr_at_edge(tuned: Tuned) -> list[str]:
    """Return the variants whose best learning rate is at the edge of the grid; grids of two are all edge."""
    return [
        name
        for name, losses in tuned.items()
        if len(losses) > 2 and min(losses, key=losses.__getitem__) in (min(losses), max(losses))
    ]
