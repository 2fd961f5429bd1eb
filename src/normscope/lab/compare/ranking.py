"""Ranks variants by loss, with the interval of the paired difference of each pair."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from normscope.lab.results.statistics import Interval, confidence_interval, standard_errors
from normscope.lab.results.variant_runs import VariantRuns
from normscope.lab.results.verdict import bonferroni_confidence

FEWEST_SEEDS = 2
"""An interval needs two seeds."""
DEFAULT_SEEDS = 5
MAX_STANDARD_ERRORS = 12.0
"""Half width of an interval, in standard errors, beyond which it is useless."""


@dataclass(frozen=True)
class Ranked:
    """A ranked variant.

    Args:
        name: of the variant.
        loss: its interval over the seeds.
        failed: number of seeds with which it was no better than a uniform guess.
        seeds: number of seeds.
    """

    name: str
    loss: Interval
    failed: int
    seeds: int

    @property
    def all_failed(self) -> bool:
        """Whether it failed with every seed."""
        return self.failed == self.seeds


@dataclass(frozen=True)
class RankedPair:
    """Two variants, paired by seed.

    Args:
        behind: the second one's loss minus the first's.
        where_trained: the same over the seeds with which neither failed; None if that is all of them, or too few.
        trained: the number of those seeds.
    """

    behind: Interval
    where_trained: Interval | None
    trained: int

    @property
    def differs(self) -> bool:
        """Whether the second is significantly worse."""
        return self.behind.low > 0


@dataclass(frozen=True)
class Ranking:
    """All variants, the smallest mean loss first, and all pairs by name, the better one first."""

    ranked: Sequence[Ranked]
    pairs: Mapping[tuple[str, str], RankedPair]

    @property
    def best(self) -> Ranked:
        return self.ranked[0]

    def behind(self, one: Ranked) -> RankedPair | None:
        """Compare a variant with the best; None for the best itself."""
        return self.pairs.get((self.best.name, one.name))


def ranking(runs: VariantRuns) -> Ranking:
    """Rank variants by mean loss.

    The best is selected from the same runs, so the intervals are corrected for all pairs.

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
    """Return a warning if only huge differences could be detected with so few seeds for so many pairs.

    >>> too_few_seeds(12, 2)
    '12 variants with 2 seeds: only differences above 840 standard errors are detectable; with 5 seeds, 9.3'
    >>> too_few_seeds(2, 5)
    """
    pairs = variants * (variants - 1) // 2
    here, usual = (standard_errors(count, bonferroni_confidence(pairs)) for count in (seeds, DEFAULT_SEEDS))
    if here < MAX_STANDARD_ERRORS:
        return None
    return (
        f"{variants} variants with {seeds} seeds: only differences above {here:.0f} standard errors are detectable; "
        f"with {DEFAULT_SEEDS} seeds, {usual:.1f}"
    )


def _pair(runs: VariantRuns, one: str, other: str, confidence: float) -> RankedPair:
    behind = runs.differences(other, one, "loss")
    trained = [
        difference
        for difference, *failed in zip(behind, _failed(runs, one), _failed(runs, other), strict=True)
        if not any(failed)
    ]
    enough = FEWEST_SEEDS <= len(trained) < len(behind)
    where_trained = confidence_interval(trained, confidence) if enough else None
    return RankedPair(confidence_interval(behind, confidence), where_trained, len(trained))


def _failed(runs: VariantRuns, name: str) -> list[bool]:
    return [bool(metrics["guessing"]) for metrics in runs.metrics[name]]
