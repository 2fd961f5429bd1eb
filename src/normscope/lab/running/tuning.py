"""Tuning of learning rates: which are tried, their losses, and the best."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from normscope.errors import ConfigError
from normscope.lab.claim import LRTuning, Settings
from normscope.lab.running.scheduler import Study
from normscope.lab.running.trial import LabTrial

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
    tuned = [name for name in names if tuning.shared(name) == name]
    unknown = {tuning.shared(name) for name in names} - set(tuned)
    if unknown:
        raise ConfigError(f"cannot share the learning rate of {sorted(unknown)}: not a tuned variant")
    return tuned


def tune(
    variants: Mapping[str, Settings],
    lrs: Mapping[str, Sequence[float]],
    seeds: int,
    trial: Callable[[Settings, int], LabTrial],
) -> Study[tuple[dict[str, dict[float, float]], float]]:
    """Return the mean loss of each variant by learning rate, and the CPU seconds of all runs.

    Args:
        variants: settings by name.
        lrs: learning rates to try, by variant.
        seeds: runs per learning rate.
        trial: the trial of settings and a seed.
    """
    tried = [(name, lr) for name in lrs for lr in lrs[name]]
    numbers = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + seeds)
    results = yield [trial({**variants[name], "lr": lr}, seed) for name, lr in tried for seed in numbers]
    losses = iter(float(result.metrics["loss"]) for result in results)
    found: dict[str, dict[float, float]] = {name: {} for name in lrs}
    for name, lr in tried:
        found[name][lr] = statistics.fmean(next(losses) for _ in numbers)
    return found, sum(result.seconds for result in results)


def best_lr(losses: Mapping[float, float]) -> float:
    """Minimize a parabola through the best learning rate and its neighbors; at the edge, return the best itself.

    Between two learning rates of nearly equal loss, seed noise decides. The minimum then lies between them, so that
    noise moves the choice a little and not by a whole grid step.

    >>> best_lr({0.001: 2.5, 0.004: 2.1, 0.016: 2.5}), best_lr({0.001: 2.2, 0.004: 2.1, 0.016: 2.3})
    (0.004, 0.0032)
    """
    lrs = sorted(losses)
    index = min(range(len(lrs)), key=lambda i: losses[lrs[i]])
    if index in (0, len(lrs) - 1):
        return lrs[index]
    smaller, best, larger = (losses[lr] for lr in lrs[index - 1 : index + 2])
    smaller, larger = smaller - best, larger - best
    # Next to a diverging learning rate the parabola would move far away, though the best is just below the cliff.
    below, above = min(smaller, CLIFF * larger), min(larger, CLIFF * smaller)
    if below + above == 0:
        return lrs[index]
    left, middle, right = (math.log(lr) for lr in lrs[index - 1 : index + 2])
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
