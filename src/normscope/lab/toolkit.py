"""Everything a claim file needs: `from normscope.lab import toolkit as lab`.

Types to declare an experiment, questions about pairs of variants and about extremes, lines of charts by variant, and
what claims on the same data share. The constants are placeholders in the claims' TOML files, too.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import cycle
from typing import Any

from normscope.lab.claim import Budget as Budget
from normscope.lab.claim import Experiment as Experiment
from normscope.lab.claim import LRTuning, get_budget
from normscope.lab.claim import Settings as Settings
from normscope.lab.claim import Variants as Variants
from normscope.lab.results.statistics import Interval, confidence_interval
from normscope.lab.results.variant_runs import VariantRuns as VariantRuns
from normscope.lab.results.verdict import CONFIDENCE, LOG2_RATIO, Side, bonferroni_confidence, count_random
from normscope.lab.results.verdict import BySeed as BySeed
from normscope.lab.results.verdict import Metrics as Metrics
from normscope.lab.results.verdict import Question as Question
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
OF_EACH = "95% interval of each mean"
OF_SEEDS = "minimum to maximum over seeds"
OF_VERDICT = "interval of each difference, as used for the verdict"

Metric = str | Callable[[Metrics], float]
"""The name of a metric, or a function of a run's metrics."""
Points = Sequence[tuple[float, float]]


def lr_grid(
    quick: Sequence[float],
    full: Sequence[float] | None = None,
    *,
    seeds: tuple[int, int] = (1, 3),
    shared: Callable[[str], str] = lambda name: name,
) -> Callable[[Budget], LRTuning]:
    """The learning rates to try, and the seeds of each: with the quick and with the full budget.

    Args:
        quick, full: learning rates; the same for both if `full` is None.
        seeds: runs per learning rate.
        shared: as in `LRTuning`.
    """
    few, many = (LRTuning(tuple(lrs), count, shared) for lrs, count in zip((quick, full or quick), seeds, strict=True))
    return lambda budget: budget.pick(quick=few, full=many)


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


def lines(points: Mapping[str, Points], *, dots_only: Collection[str] = (), **line: Any) -> list[ChartLine]:
    """Lines by legend entry, each in its own color; those that would hide others are drawn as dots only."""
    return [
        ChartLine(label, found, color, **{"dots": True, "connected": label not in dots_only, **line})
        for (label, found), color in zip(points.items(), COLORS, strict=False)
    ]


def against_theory(found: Mapping[str, tuple[Points, Points]], colors: Sequence[str] = COLORS) -> list[ChartLine]:
    """Measured points as dots and the predicted curve as a dashed line, by legend entry."""
    drawn = []
    for (label, (points, theory)), color in zip(found.items(), colors, strict=False):
        drawn.append(ChartLine(label, points, color, connected=False))
        drawn.append(ChartLine(f"{label}, theory", theory, color, dashed=True))
    return drawn


def interval_dots(
    label: str, intervals: Sequence[tuple[float, Interval]], color: str, interval_label: str = OF_EACH, **line: Any
) -> ChartLine:
    """Intervals by their x position: a dot at the middle and a bar from end to end."""
    bars = [(x, found.low, found.high) for x, found in intervals]
    options = {"connected": False, "interval": bars, "interval_label": interval_label, **line}
    return ChartLine(label, [(x, found.middle) for x, found in intervals], color, **options)


def interval_lines(
    values: Mapping[str, Sequence[Sequence[float]]], confidence: float = CONFIDENCE, interval_label: str = OF_EACH
) -> list[ChartLine]:
    """Mean and confidence interval of lists of values, side by side: for each legend entry, one list per category.

    An empty list leaves its category out.
    """
    drawn = []
    for i, ((label, found), color) in enumerate(zip(values.items(), cycle(COLORS), strict=False)):
        shift = 0.12 * (i - (len(values) - 1) / 2)
        intervals = [(at + shift, confidence_interval(ys, confidence)) for at, ys in enumerate(found) if ys]
        drawn.append(interval_dots(label, intervals, color, interval_label))
    return drawn


def mean_lines(runs: VariantRuns, metric: str, variants: Mapping[str, Sequence[str]]) -> list[ChartLine]:
    """A metric by category, with its 95% interval: for each legend entry its variants, one per category."""
    return interval_lines({label: [runs.values(name, metric) for name in names] for label, names in variants.items()})


def difference_lines(
    runs: VariantRuns, pairs: Mapping[str, Sequence[tuple[str, str]]], questions: Callable[[Budget], Sequence[Question]]
) -> list[ChartLine]:
    """Paired differences of the loss by category, with intervals as wide as those that decide the verdict.

    Args:
        runs: of the claim.
        pairs: for each legend entry its pairs, one per category: the first variant minus the second.
        questions: those of the claim, whose number sets the confidence.
    """
    confidence = bonferroni_confidence(count_random(questions(get_budget("quick"))))
    values = {label: [runs.differences(*pair, "loss") for pair in found] for label, found in pairs.items()}
    return interval_lines(values, confidence, f"{100 * confidence:.4g}% {OF_VERDICT}")


def lines_by_number(runs: VariantRuns, metric: str, variants: Mapping[str, Mapping[float, str]]) -> list[ChartLine]:
    """A metric against a number that the variants differ in: means as lines, their 95% intervals as bands."""
    drawn = []
    for (label, names), color in zip(variants.items(), COLORS, strict=False):
        intervals = [(x, runs.interval(name, metric)) for x, name in sorted(names.items())]
        drawn.append(interval_dots(label, intervals, color, connected=True, dots=True))
    return drawn


def seed_band(label: str, runs: VariantRuns, variant: str, metric: str, color: str, **line: Any) -> ChartLine:
    """A curve averaged over the seeds, with a band from the minimum to the maximum."""
    band = runs.band(variant, metric)
    return ChartLine(label, runs.curve(variant, metric), color, interval=band, interval_label=OF_SEEDS, **line)


def curves(runs: VariantRuns, metric: str, variants: Mapping[str, str], **line: Any) -> list[ChartLine]:
    """The curve of each variant, by legend entry: the mean over the seeds in a band from minimum to maximum."""
    return [
        seed_band(label, runs, name, metric, color, **line)
        for (label, name), color in zip(variants.items(), COLORS, strict=False)
    ]


def image_charts(
    runs: VariantRuns, x_label: str, variants: Mapping[str, str], curve_title: str = "Training loss"
) -> list[Chart]:
    """Draw what `train_images` measures: loss and error rate on held-out images, and the training loss."""
    names, chosen = list(variants), list(variants.values())
    loss, error = mean_lines(runs, "loss", {"loss": chosen}), mean_lines(runs, "error", {"error rate": chosen})
    return [
        Chart("Loss on held-out images", x_label, "nats", loss, categories=names),
        Chart("Error rate on held-out images", x_label, "share", error, categories=names),
        Chart(curve_title, "step", "nats", curves(runs, "curve", variants), log_y=True),
    ]
