"""Everything a claim file needs: `from normscope.lab import toolkit as lab`.

Types to declare a claim, questions about pairs of variants and about extremes, and charts by variant.
"""

import math
from collections.abc import Callable, Sequence

from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, Experiment, LRTuning, Settings, Variants
from normscope.lab.report.charts import (
    OF_SEEDS,
    by_number,
    categories,
    curves,
    differences,
    dots_and_theory,
    interval_categories,
    interval_dots,
    seed_band,
)
from normscope.lab.variant_runs import VariantRuns
from normscope.lab.verdict import LOG2_RATIO, BySeed, Metrics, Question, Side
from normscope.render.chart import COLORS, Chart, ChartLine

__all__ = [
    "COLORS",
    "LOG2_RATIO",
    "OF_SEEDS",
    "Budget",
    "BySeed",
    "Chart",
    "ChartLine",
    "Claim",
    "Experiment",
    "LRTuning",
    "Metrics",
    "Question",
    "Settings",
    "VariantRuns",
    "Variants",
    "by_number",
    "categories",
    "curves",
    "difference",
    "differences",
    "dots_and_theory",
    "interval_categories",
    "interval_dots",
    "largest",
    "log2_ratio",
    "seed_band",
    "smallest",
]

Metric = str | Callable[[Metrics], float]
"""The name of a metric, or a function of a run's metrics."""


def difference(
    text: str, one: str, other: str, *, threshold: float = 0.0, side: Side = "above", metric: str = "loss"
) -> Question:
    """Ask for the paired difference of a metric in nats: the first variant's minus the second's."""
    return Question(text, lambda runs: float(runs[one][metric] - runs[other][metric]), threshold, side, unit="nats")


def log2_ratio(
    text: str, one: str, other: str, metric: str, *, threshold: float = 0.0, side: Side = "above"
) -> Question:
    """Ask for log2 of the ratio of a metric: the first variant's divided by the second's."""
    return Question(
        text, lambda runs: math.log2(runs[one][metric] / runs[other][metric]), threshold, side, unit=LOG2_RATIO
    )


def largest(
    text: str, metric: Metric, threshold: float, variants: Sequence[str] | None = None, *, unit: str = ""
) -> Question:
    """Require for every seed that the largest value of a metric over these or all variants is below the threshold."""
    return Question(text, lambda runs: max(_values(runs, metric, variants)), threshold, "below", unit, every_seed=True)


def smallest(
    text: str, metric: Metric, threshold: float, variants: Sequence[str] | None = None, *, unit: str = ""
) -> Question:
    """Require for every seed that the smallest value of a metric over these or all variants is above the threshold."""
    return Question(text, lambda runs: min(_values(runs, metric, variants)), threshold, "above", unit, every_seed=True)


def _values(runs: BySeed, metric: Metric, variants: Sequence[str] | None) -> list[float]:
    chosen = [runs[name] for name in (runs if variants is None else variants)]
    return [float(metrics[metric] if isinstance(metric, str) else metric(metrics)) for metrics in chosen]
