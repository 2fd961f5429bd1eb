"""All runs of a claim: the figures of every variant with every seed."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from normscope.errors import ConfigError
from normscope.lab.statistics import Interval, confidence_interval
from normscope.lab.verdict import BySeed, Figures


@dataclass(frozen=True)
class Runs:
    """Figures by variant, in the order of the seeds.

    Args:
        figures: for each variant one set of figures a seed.
        seeds: which ones.
        rates: the learning rate that each variant was found to like best; empty if none was looked for.

    >>> runs = Runs({"layer": [{"loss": 2.0}, {"loss": 2.2}], "rms": [{"loss": 2.1}, {"loss": 2.1}]}, seeds=(0, 1))
    >>> runs.values("rms", "loss"), runs.mean("layer", "loss")
    ([2.1, 2.1], 2.1)
    >>> [seed["rms"]["loss"] - seed["layer"]["loss"] for seed in runs.by_seed()]  # pairs
    [0.10000000000000009, -0.10000000000000009]
    """

    figures: Mapping[str, Sequence[Figures]]
    seeds: tuple[int, ...]
    rates: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def collect(
        cls, variants: Iterable[str], seeds: Sequence[int], figures: Sequence[Figures], rates: Mapping[str, float]
    ) -> "Runs":
        """From a list that has all seeds of the first variant, then all of the second, and so on."""
        names, many = list(variants), len(seeds)
        by_variant = {name: figures[i * many : (i + 1) * many] for i, name in enumerate(names)}
        return cls(by_variant, tuple(seeds), rates)

    @property
    def variants(self) -> list[str]:
        return list(self.figures)

    def by_seed(self) -> list[BySeed]:
        """For each seed the figures of all variants, which are pairs: same seed, same data, same order."""
        return [{name: figures[i] for name, figures in self.figures.items()} for i in range(len(self.seeds))]

    def values(self, variant: str, figure: str) -> list[float]:
        """One figure of a variant, of each seed."""
        if variant not in self.figures:
            raise ConfigError(f"there is no variant {variant!r}; there are {', '.join(self.figures)}")
        return [float(figures[figure]) for figures in self.figures[variant]]

    def mean(self, variant: str, figure: str) -> float:
        return statistics.fmean(self.values(variant, figure))

    def interval(self, variant: str, figure: str) -> Interval:
        """Of the mean over the seeds, at 95%."""
        return confidence_interval(self.values(variant, figure))

    def curve(self, variant: str, figure: str) -> list[tuple[float, float]]:
        """A curve, a list of pairs (x, y), as the mean over the seeds of all that have a value there."""
        return [(x, statistics.fmean(ys)) for x, ys in self._by_x(variant, figure)]

    def band(self, variant: str, figure: str) -> list[tuple[float, float, float]]:
        """A curve's least and greatest value over the seeds at every x."""
        return [(x, min(ys), max(ys)) for x, ys in self._by_x(variant, figure)]

    def _by_x(self, variant: str, figure: str) -> list[tuple[float, list[float]]]:
        found: dict[float, list[float]] = {}
        for figures in self.figures[variant]:
            for x, y in figures[figure]:
                found.setdefault(float(x), []).append(float(y))
        return sorted(found.items())
