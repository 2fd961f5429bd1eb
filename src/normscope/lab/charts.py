"""Charts shared by several claims."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from normscope.lab.budget import Budget, get_budget
from normscope.lab.results.statistics import Interval, confidence_interval
from normscope.lab.results.variant_runs import VariantRuns
from normscope.lab.results.verdict import Question, bonferroni_confidence, count_random
from normscope.render.chart import COLORS, Chart, ChartLine

OF_EACH = "95% interval of each mean"
OF_SEEDS = "minimum to maximum over seeds"
OF_VERDICT = "interval of each difference, as used for the verdict"

Points = Sequence[tuple[float, float]]


def categories(
    title: str,
    x_label: str,
    y_label: str,
    runs: VariantRuns,
    metric: str,
    lines: Mapping[str, Sequence[str]],
    names: Sequence[str],
    **chart: Any,
) -> Chart:
    """Draw a metric by category: the mean over the seeds with its 95% interval.

    Args:
        lines: for each legend entry its variants, one per category.
        names: the categories.
        chart: further arguments of `Chart`.
    """
    values = {label: [runs.values(variant, metric) for variant in variants] for label, variants in lines.items()}
    return interval_categories(title, x_label, y_label, values, names, **chart)


def differences(
    title: str,
    x_label: str,
    y_label: str,
    runs: VariantRuns,
    metric: str,
    lines: Mapping[str, Sequence[tuple[str, str]]],
    names: Sequence[str],
    questions: Callable[[Budget], Sequence[Question]],
    **chart: Any,
) -> Chart:
    """Draw paired differences of a metric by category, with intervals as wide as those that decide the verdict.

    Args:
        lines: for each legend entry its pairs, one per category: the first variant minus the second.
        names: the categories.
        questions: those of the claim, whose number sets the confidence.
        chart: further arguments of `Chart`.
    """
    confidence = bonferroni_confidence(count_random(questions(get_budget("quick"))))
    values = {label: [runs.differences(*pair, metric) for pair in pairs] for label, pairs in lines.items()}
    label = f"{100 * confidence:.4g}% {OF_VERDICT}"
    return interval_categories(
        title, x_label, y_label, values, names, confidence=confidence, interval_label=label, y_from_zero=True, **chart
    )


def interval_categories(
    title: str,
    x_label: str,
    y_label: str,
    lines: Mapping[str, Sequence[Sequence[float]]],
    names: Sequence[str],
    *,
    confidence: float = 0.95,
    interval_label: str = OF_EACH,
    **chart: Any,
) -> Chart:
    """Draw the mean and confidence interval of lists of values: one list per category for each legend entry.

    An empty list leaves its category out.
    """
    drawn = []
    for i, (label, values) in enumerate(lines.items()):
        shift = 0.12 * (i - (len(lines) - 1) / 2)  # side by side
        intervals = [(at + shift, confidence_interval(ys, confidence)) for at, ys in enumerate(values) if ys]
        drawn.append(interval_dots(label, intervals, COLORS[i % len(COLORS)], interval_label))
    return Chart(title, x_label, y_label, drawn, categories=names, **chart)


def interval_dots(
    label: str, intervals: Sequence[tuple[float, Interval]], color: str, interval_label: str = OF_EACH, **line: Any
) -> ChartLine:
    """Intervals by their x position: a dot at the middle and a bar from end to end."""
    return ChartLine(
        label,
        [(x, found.middle) for x, found in intervals],
        color,
        interval=[(x, found.low, found.high) for x, found in intervals],
        interval_label=interval_label,
        **{"connected": False, **line},
    )


def seed_band(label: str, runs: VariantRuns, variant: str, metric: str, color: str, **line: Any) -> ChartLine:
    """A curve averaged over the seeds, with a band from the minimum to the maximum."""
    band = runs.band(variant, metric)
    return ChartLine(label, runs.curve(variant, metric), color, interval=band, interval_label=OF_SEEDS, **line)


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
        drawn.append(theory_line(f"{label}, theory", theory, color))
    return drawn


def theory_line(label: str, points: Points, color: str) -> ChartLine:
    return ChartLine(label, points, color, dashed=True)


def by_number(
    title: str,
    x_label: str,
    y_label: str,
    runs: VariantRuns,
    metric: str,
    lines: Mapping[str, Mapping[float, str]],
    **chart: Any,
) -> Chart:
    """Draw a metric against a number that the variants differ in: means as lines, their 95% intervals as bands.

    Args:
        lines: for each legend entry, the variant at every number.
        chart: further arguments of `Chart`.
    """
    drawn = []
    for i, (label, variants) in enumerate(lines.items()):
        intervals = [(x, runs.interval(variant, metric)) for x, variant in sorted(variants.items())]
        drawn.append(interval_dots(label, intervals, COLORS[i % len(COLORS)], connected=True, dots=True))
    return Chart(title, x_label, y_label, drawn, **chart)


def curves(
    title: str, x_label: str, y_label: str, runs: VariantRuns, metric: str, variants: Mapping[str, str], **chart: Any
) -> Chart:
    """Draw a curve of each variant, by legend entry: the mean over the seeds in a band from minimum to maximum."""
    drawn = [
        seed_band(label, runs, variant, metric, COLORS[i % len(COLORS)])
        for i, (label, variant) in enumerate(variants.items())
    ]
    return Chart(title, x_label, y_label, drawn, **chart)


def image_charts(
    runs: VariantRuns, x_label: str, variants: Mapping[str, str], curve_title: str = "Training loss"
) -> list[Chart]:
    """Draw what `train_images` measures: loss and error rate on held-out images, and the training loss."""
    names, chosen = list(variants), list(variants.values())
    return [
        categories("Loss on held-out images", x_label, "nats", runs, "loss", {"loss": chosen}, names),
        categories("Error rate on held-out images", x_label, "share", runs, "error", {"error rate": chosen}, names),
        curves(curve_title, "step", "nats", runs, "curve", variants, log_y=True),
    ]
