"""Everything a claim file needs: `from normscope.lab import toolkit as lab`.

Types to declare an experiment, questions about pairs of variants and about extremes, charts by variant, and what claims
on the same data share. The constants are placeholders in the claims' TOML files, too.
"""

import math
from collections.abc import Callable, Sequence

from normscope.lab.budget import Budget
from normscope.lab.charts import (
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
from normscope.lab.claim import Experiment, LRTuning, Settings, Variants
from normscope.lab.results.variant_runs import VariantRuns
from normscope.lab.results.verdict import LOG2_RATIO, BySeed, Metrics, Question, Side
from normscope.render.chart import COLORS, Chart, ChartLine

__all__ = [
    "COLORS",
    "FIXED_SPLIT",
    "IMAGE_MARGIN",
    "LOG2_RATIO",
    "OF_SEEDS",
    "TEXT_MARGIN",
    "Budget",
    "BySeed",
    "Chart",
    "ChartLine",
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

TEXT_MARGIN = 0.03
"""Nats per byte: about what 10% more steps gain in so short a training. Smaller differences do not matter in the choice
of a norm, an activation or a wiring, so claims on text do not count them."""
IMAGE_MARGIN = 0.05
"""Nats: smaller differences in loss on the digits do not matter in practice. It is a fiftieth of ln 10, and about the
cost of one more wrong image in a hundred. All claims on the digits share this margin, so that none is fitted."""
FIXED_SPLIT = (
    "All seeds train on the same 1,400 images and hold out the same 397: seeds change initialization and data order, "
    "and intervals describe that variation, on these images."
)
"""Part of the design of all claims on the digits."""

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
