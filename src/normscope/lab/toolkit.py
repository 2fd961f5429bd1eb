"""Everything a claim file needs: `from normscope.lab import toolkit as lab`.

Types to declare an experiment, questions about pairs of variants and about extremes, charts by variant, and what claims
on the same data share. The constants are placeholders in the claims' TOML files, too.
"""

import math
from collections.abc import Callable, Mapping, Sequence

from normscope.lab.budget import Budget as Budget
from normscope.lab.charts import OF_SEEDS as OF_SEEDS
from normscope.lab.charts import against_theory as against_theory
from normscope.lab.charts import by_number as by_number
from normscope.lab.charts import categories as categories
from normscope.lab.charts import curves as curves
from normscope.lab.charts import differences as differences
from normscope.lab.charts import image_charts as image_charts
from normscope.lab.charts import interval_categories as interval_categories
from normscope.lab.charts import interval_dots as interval_dots
from normscope.lab.charts import lines as lines
from normscope.lab.charts import seed_band as seed_band
from normscope.lab.charts import theory_line as theory_line
from normscope.lab.claim import Experiment as Experiment
from normscope.lab.claim import LRTuning as LRTuning
from normscope.lab.claim import Settings as Settings
from normscope.lab.claim import Variants as Variants
from normscope.lab.results.variant_runs import VariantRuns as VariantRuns
from normscope.lab.results.verdict import LOG2_RATIO as LOG2_RATIO
from normscope.lab.results.verdict import BySeed as BySeed
from normscope.lab.results.verdict import Metrics as Metrics
from normscope.lab.results.verdict import Question as Question
from normscope.lab.results.verdict import Side as Side
from normscope.render.chart import COLORS as COLORS
from normscope.render.chart import Chart as Chart
from normscope.render.chart import ChartLine as ChartLine

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


def lr_grid(
    quick: Sequence[float],
    full: Sequence[float] | None = None,
    *,
    seeds: tuple[int, int] = (1, 3),
    shared: Callable[[Budget], Mapping[str, str]] = lambda budget: {},
) -> Callable[[Budget], LRTuning]:
    """The learning rates to try, and the seeds of each: with the quick and with the full budget.

    Args:
        quick, full: learning rates; the same for both if `full` is None.
        seeds: runs per learning rate.
        shared: as in `LRTuning`.
    """
    lrs = tuple(quick), tuple(full or quick)
    return lambda budget: LRTuning(
        budget.pick(quick=lrs[0], full=lrs[1]), budget.pick(quick=seeds[0], full=seeds[1]), shared=shared(budget)
    )


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
