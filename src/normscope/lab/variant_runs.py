"""All runs of a claim: the figures of every variant with every seed."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from normscope.errors import ConfigError
from normscope.lab.statistics import Interval, confidence_interval
from normscope.lab.verdict import BySeed, Metrics


@dataclass(frozen=True)
class VariantRuns:
    """Figures by variant, in the order of the seeds.

    Args:
        figures: for each variant one set of figures a seed.
        seeds: which ones.
        rates: the learning rate that each variant was found to like best; empty if none was looked for.

    >>> metrics = {"layer": [{"loss": 2.0}, {"loss": 2.2}], "rms": [{"loss": 2.1}, {"loss": 2.1}]}
    >>> runs = VariantRuns(metrics, seeds=(0, 1))
    >>> runs.values("rms", "loss"), runs.mean("layer", "loss")
    ([2.1, 2.1], 2.1)
    >>> [seed["rms"]["loss"] - seed["layer"]["loss"] for seed in runs.by_seed()]  # pairs
    [0.10000000000000009, -0.10000000000000009]
    """

    metrics: Mapping[str, Sequence[Metrics]]
    seeds: tuple[int, ...]
    lrs: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def collect(
        cls, variants: Iterable[str], seeds: Sequence[int], metrics: Sequence[Metrics], lrs: Mapping[str, float]
    ) -> "VariantRuns":
        """From a list that has all seeds of the first variant, then all of the second, and so on."""
        names, many = list(variants), len(seeds)
        by_variant = {name: metrics[i * many : (i + 1) * many] for i, name in enumerate(names)}
        return cls(by_variant, tuple(seeds), lrs)

    @property
    def variants(self) -> list[str]:
        return list(self.metrics)

    def by_seed(self) -> list[BySeed]:
        """For each seed the figures of all variants, which are pairs: same seed, same data, same order."""
        return [{name: metrics[i] for name, metrics in self.metrics.items()} for i in range(len(self.seeds))]

    def values(self, variant: str, metric: str) -> list[float]:
        """One figure of a variant, of each seed."""
        if variant not in self.metrics:
            raise ConfigError(f"there is no variant {variant!r}; there are {', '.join(self.metrics)}")
        return [float(metrics[metric]) for metrics in self.metrics[variant]]

    def mean(self, variant: str, metric: str) -> float:
        return statistics.fmean(self.values(variant, metric))

    def interval(self, variant: str, metric: str) -> Interval:
        """Of the mean over the seeds, at 95%."""
        return confidence_interval(self.values(variant, metric))

    def curve(self, variant: str, metric: str) -> list[tuple[float, float]]:
        """A curve, a list of pairs (x, y), as the mean over the seeds of all that have a value there."""
        return [(x, statistics.fmean(ys)) for x, ys in self._by_x(variant, metric)]

    def band(self, variant: str, metric: str) -> list[tuple[float, float, float]]:
        """A curve's least and greatest value over the seeds at every x."""
        return [(x, min(ys), max(ys)) for x, ys in self._by_x(variant, metric)]

    def _by_x(self, variant: str, metric: str) -> list[tuple[float, list[float]]]:
        found: dict[float, list[float]] = {}
        for metrics in self.metrics[variant]:
            for x, y in metrics[metric]:
                found.setdefault(float(x), []).append(float(y))
        return sorted(found.items())
