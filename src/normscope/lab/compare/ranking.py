"""Ranks variants by loss, with the interval of the paired difference of each pair, and says so in a few sentences."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from normscope.lab.report.describe import format_range
from normscope.lab.results.statistics import Interval, confidence_interval, standard_errors
from normscope.lab.results.variant_runs import VariantRuns
from normscope.lab.results.verdict import bonferroni_confidence
from normscope.render.formatting import format_number, join_words, pluralize

UNIT = "nats per byte"
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


def summarize(found: Ranking) -> str:
    """Summarize a ranking.

    >>> best, other = Ranked("rms", Interval(2.0, 1.9, 2.1), 0, 5), Ranked("layer", Interval(2.1, 2.0, 2.2), 0, 5)
    >>> summarize(Ranking([best, other], {("rms", "layer"): RankedPair(Interval(0.1, 0.05, 0.15), None, 5)}))
    'With this budget rms is better than layer by 0.100 nats per byte (95% 0.0500 to 0.150).'
    >>> summarize(Ranking([best, other], {("rms", "layer"): RankedPair(Interval(0.01, -0.02, 0.04), None, 5)}))
    'No difference found between rms and layer: 0.0100 nats per byte (95% -0.0200 to 0.0400).'
    """
    trained = [one for one in found.ranked if not one.all_failed]
    failed = [one.name for one in found.ranked if one.all_failed]
    seeds = pluralize(found.best.seeds, "seed")
    if not trained:
        none = f"Neither {' nor '.join(failed)}" if len(failed) == 2 else f"None of {join_words(failed)}"
        return f"{none} learned anything: no better than a uniform guess with any of {seeds}."
    parts = _among(found, trained) if len(trained) > 1 else [f"Only {found.best.name} learned anything."]
    if failed:
        verb = "was" if len(failed) == 1 else "were"
        parts.append(f"{join_words(failed)} {verb} no better than a uniform guess with any of {seeds}.")
    return " ".join(parts)


def _among(found: Ranking, trained: Sequence[Ranked]) -> list[str]:
    """Compare the variants that trained with at least one seed."""
    best, *others = trained
    worse = [one for one in others if found.pairs[best.name, one.name].differs]
    alike = [one for one in others if one not in worse]
    unsure = [one for one in alike if best.failed or one.failed]
    parts = _similar(found, [one.name for one in alike if one not in unsure])
    if worse:
        first = _by(found.pairs[best.name, worse[0].name].behind)
        parts.append(f"With this budget {best.name} is better than {worse[0].name} by {first}.")
    if len(worse) > 1:
        parts.append(f"It is also better than {join_words([one.name for one in worse[1:]])}.")
    failed = [f"{one.name} failed with {one.failed} of {one.seeds} seeds" for one in trained if one.failed]
    if failed:
        parts.append(f"{join_words(failed)}: no better than a uniform guess.")
    return parts + [_where_trained(best.name, one.name, found.pairs[best.name, one.name]) for one in unsure]


def _similar(found: Ranking, names: Sequence[str]) -> list[str]:
    """Describe the variants that do not differ from the best; two of them may still differ from each other."""
    best = found.best.name
    if not names:
        return []
    if len(names) == 1:
        return [f"No difference found between {best} and {names[0]}: {_by(found.pairs[best, names[0]].behind)}."]
    among = [(pair, one) for pair, one in found.pairs.items() if set(pair) <= set(names) and one.differs]
    if not among:
        return [f"No difference found between {join_words([best, *names])}."]
    (better, other), pair = max(among, key=lambda one: one[1].behind.middle)
    similar, more = join_words(names, "or"), f"; {pluralize(len(among) - 1, 'more pair')} of these differ too"
    text = f"{best} does not differ from {similar}, but {better} is better than {other} by {_by(pair.behind)}"
    return [f"{text}{more if len(among) > 1 else ''}."]


def _where_trained(best: str, other: str, pair: RankedPair) -> str:
    """Compare two variants over the seeds with which both trained: a failed seed widens the interval over all."""
    seeds = pluralize(pair.trained, "seed")
    if pair.where_trained is None:
        return f"Both {best} and {other} trained with only {seeds}, too few to compare them."
    found = pair.where_trained
    start = f"Over the {seeds} with which both {best} and {other} trained"
    if found.low > 0:
        return f"{start}, {best} is better by {_by(found)}."
    if found.high < 0:
        return f"{start}, {other} is better by {_by(Interval(-found.middle, -found.high, -found.low))}."
    return f"{start}, no difference found: {_by(found)}."


def _by(interval: Interval) -> str:
    return f"{format_number(interval.middle)} {UNIT} (95% {format_range(interval)})"
