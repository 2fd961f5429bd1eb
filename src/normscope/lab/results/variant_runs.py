"""The metrics of every variant with every seed."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from normscope.errors import ConfigError
from normscope.lab.results.statistics import Interval, confidence_interval
from normscope.lab.results.verdict import BySeed, Metrics


@dataclass(frozen=True)
class VariantRuns:
    """Metrics by variant, in the order of the seeds.

    Args:
        metrics: one mapping per seed for each variant.
        seeds: the seeds.
        lrs: the tuned learning rate of each variant; empty without tuning.

    >>> metrics = {"layer": [{"loss": 2.0}, {"loss": 2.2}], "rms": [{"loss": 2.1}, {"loss": 2.1}]}
    >>> runs = VariantRuns(metrics, (0, 1))
    >>> runs.values("rms", "loss"), runs.mean("layer", "loss")
    ([2.1, 2.1], 2.1)
    >>> runs.differences("rms", "layer", "loss")  # paired by seed
    [0.10000000000000009, -0.10000000000000009]
    """

    metrics: Mapping[str, Sequence[Metrics]]
    seeds: tuple[int, ...]
    lrs: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def collect(
        cls, variants: Iterable[str], seeds: Sequence[int], metrics: Sequence[Metrics], lrs: Mapping[str, float]
    ) -> "VariantRuns":
        """Build from a flat list: all seeds of the first variant, then all seeds of the second, and so on."""
        count = len(seeds)
        by_variant = {name: metrics[i * count : (i + 1) * count] for i, name in enumerate(variants)}
        return cls(by_variant, tuple(seeds), lrs)

    @property
    def variants(self) -> list[str]:
        return list(self.metrics)

    def by_seed(self) -> list[BySeed]:
        """For each seed the metrics of all variants: paired, with the same data in the same order."""
        return [{name: metrics[i] for name, metrics in self.metrics.items()} for i in range(len(self.seeds))]

    def values(self, variant: str, metric: str) -> list[float]:
        """One value of a metric per seed."""
        if variant not in self.metrics:
            raise ConfigError(f"no variant {variant!r}; the variants are {', '.join(self.metrics)}")
        return [float(metrics[metric]) for metrics in self.metrics[variant]]

    def differences(self, one: str, other: str, metric: str) -> list[float]:
        """The first variant's metric minus the second's, for each seed."""
        return [a - b for a, b in zip(self.values(one, metric), self.values(other, metric), strict=True)]

    def mean(self, variant: str, metric: str) -> float:
        return statistics.fmean(self.values(variant, metric))

    def interval(self, variant: str, metric: str) -> Interval:
        """The 95% confidence interval of the mean over the seeds."""
        return confidence_interval(self.values(variant, metric))

    def curve(self, variant: str, metric: str) -> list[tuple[float, float]]:
        """A metric that is a list of (x, y) pairs, averaged at each x over the seeds that have a value there."""
        return [(x, statistics.fmean(ys)) for x, ys in self._by_x(variant, metric)]

    def band(self, variant: str, metric: str) -> list[tuple[float, float, float]]:
        """The minimum and maximum of a curve over the seeds, at each x."""
        return [(x, min(ys), max(ys)) for x, ys in self._by_x(variant, metric)]

    def _by_x(self, variant: str, metric: str) -> list[tuple[float, list[float]]]:
        found: dict[float, list[float]] = {}
        for metrics in self.metrics[variant]:
            for x, y in metrics[metric]:
                found.setdefault(float(x), []).append(float(y))
        return sorted(found.items())
