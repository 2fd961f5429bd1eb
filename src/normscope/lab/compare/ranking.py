"""Who is better than whom: the best first, and of each pair the paired difference with its interval."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from normscope.lab.statistics import Interval, confidence_interval, standard_errors
from normscope.lab.variant_runs import VariantRuns
from normscope.lab.verdict import bonferroni_confidence

FEWEST_SEEDS = 2
"""With fewer pairs there is no interval."""
USUAL_SEEDS = 5
MOST_ERRORS = 12.0
"""Standard errors to either side of a mean, from which on an interval says next to nothing."""


@dataclass(frozen=True)
class Ranked:
    """A variant's place.

    Args:
        name: of the variant.
        loss: its interval over the seeds, by itself.
        failed: with how many seeds it was no better than guessing.
        seeds: how many there are.
    """

    name: str
    loss: Interval
    failed: int
    seeds: int

    @property
    def learnt_nothing(self) -> bool:
        """With no seed at all."""
        return self.failed == self.seeds


@dataclass(frozen=True)
class Pair:
    """Two variants, seed by seed.

    Args:
        behind: how far the second one's loss is above the first's.
        where_learnt: the same of those seeds with which neither failed; None if that is all of them, or too few.
        learnt: how many those seeds are.
    """

    behind: Interval
    where_learnt: Interval | None
    learnt: int

    @property
    def differs(self) -> bool:
        """Whether the second is worse beyond chance."""
        return self.behind.low > 0


@dataclass(frozen=True)
class Ranking:
    """All variants, the smallest mean first, and all pairs: the better one's name, then the other's."""

    ranked: Sequence[Ranked]
    pairs: Mapping[tuple[str, str], Pair]

    @property
    def best(self) -> Ranked:
        return self.ranked[0]

    def behind(self, one: Ranked) -> Pair | None:
        """How far it is behind the best; None for the best itself."""
        return self.pairs.get((self.best.name, one.name))


def ranking(runs: VariantRuns) -> Ranking:
    """Rank by the loss.

    Which one is the best is seen in the same runs, so any two might have been compared: the intervals are those of all
    pairs together.

    >>> losses = {"a": [1.0, 1.2], "b": [2.0, 2.2]}
    >>> runs = {name: [{"loss": loss, "guessing": False} for loss in both] for name, both in losses.items()}
    >>> found = ranking(VariantRuns(runs, seeds=(0, 1)))
    >>> found.best.name, found.pairs["a", "b"].differs
    ('a', True)
    """
    names = sorted(runs.variants, key=lambda name: runs.mean(name, "loss"))
    seeds = len(runs.seeds)
    ranked = [Ranked(name, runs.interval(name, "loss"), sum(_failed(runs, name)), seeds) for name in names]
    pairs = list(itertools.combinations(names, 2))
    confidence = bonferroni_confidence(len(pairs))
    return Ranking(ranked, {(one, other): _pair(runs, one, other, confidence) for one, other in pairs})


def too_few_seeds(variants: int, seeds: int) -> str | None:
    """A warning, if only huge differences could be found with so few seeds for so many pairs.

    >>> too_few_seeds(12, 2)
    '12 variants with 2 seeds: only a difference of 840 times its standard error would be found; with 5 seeds 9.3 times'
    >>> too_few_seeds(2, 5)
    """
    pairs = variants * (variants - 1) // 2
    here, usual = (standard_errors(count, bonferroni_confidence(pairs)) for count in (seeds, USUAL_SEEDS))
    if here < MOST_ERRORS:
        return None
    return (
        f"{variants} variants with {seeds} seeds: only a difference of {here:.0f} times its standard error would be "
        f"found; with {USUAL_SEEDS} seeds {usual:.1f} times"
    )


def _pair(runs: VariantRuns, one: str, other: str, confidence: float) -> Pair:
    both = zip(runs.values(one, "loss"), runs.values(other, "loss"), strict=True)
    behind = [worse - better for better, worse in both]
    learnt = [
        difference
        for difference, *failed in zip(behind, _failed(runs, one), _failed(runs, other), strict=True)
        if not any(failed)
    ]
    enough = FEWEST_SEEDS <= len(learnt) < len(behind)
    where_learnt = confidence_interval(learnt, confidence) if enough else None
    return Pair(confidence_interval(behind, confidence), where_learnt, len(learnt))


def _failed(runs: VariantRuns, name: str) -> list[bool]:
    return [bool(metrics["guessing"]) for metrics in runs.metrics[name]]
