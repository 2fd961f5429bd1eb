"""Charts that several claims need."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from normscope.lab.claim import Claim
from normscope.lab.outcome import Outcome
from normscope.lab.statistics import Interval, confidence_interval
from normscope.lab.variant_runs import VariantRuns
from normscope.lab.verdict import Question, bonferroni_confidence, count_random
from normscope.render.chart import COLORS, Chart, ChartLine

OF_EACH = "95% of each mean by itself"
OF_SEEDS = "least to greatest of the seeds"


def categories(
    title: str,
    x_label: str,
    y_label: str,
    runs: VariantRuns,
    metric: str,
    lines: Mapping[str, Sequence[str]],
    names: Sequence[str],
    *,
    levels: Sequence[tuple[str, float]] = (),
    log_y: bool = False,
) -> Chart:
    """A figure of named things: a dot for the mean of the seeds and a bar for its 95% interval.

    Args:
        lines: for each line of the legend its variants, one for each of `names`.
        names: what stands below the axis.
    """
    drawn = []
    for i, (label, variants) in enumerate(lines.items()):
        shift = 0.12 * (i - (len(lines) - 1) / 2)  # side by side
        intervals = [(place + shift, runs.interval(variant, metric)) for place, variant in enumerate(variants)]
        drawn.append(interval_dots(label, intervals, COLORS[i % len(COLORS)]))
    return Chart(title, x_label, y_label, drawn, categories=names, reference_lines=levels, log_y=log_y)


def differences(
    title: str,
    x_label: str,
    y_label: str,
    runs: VariantRuns,
    metric: str,
    lines: Mapping[str, Sequence[tuple[str, str]]],
    names: Sequence[str],
    *,
    asked: Sequence[Question],
    levels: Sequence[tuple[str, float]] = (),
    own_levels: tuple[str, Sequence[float]] | None = None,
) -> Chart:
    """How much more of a figure one variant has than another, seed by seed: what both owe to the seed cancels.

    The bars are as wide as the verdict's: with narrower ones an answer that is open would look decided.

    Args:
        lines: for each line of the legend its pairs, one for each of `names`: the first less the second.
        names: what stands below the axis.
        asked: all that the claim asks.
        levels: where the lines are, if all of these have the same one.
        own_levels: what the line is called, and where it is for each of `names`, if they differ.
    """
    confidence = bonferroni_confidence(count_random(asked))
    drawn = []
    for i, (label, pairs) in enumerate(lines.items()):
        shift = 0.12 * (i - (len(lines) - 1) / 2)
        intervals = []
        for place, (one, other) in enumerate(pairs):
            both = zip(runs.values(one, metric), runs.values(other, metric), strict=True)
            intervals.append((place + shift, confidence_interval([a - b for a, b in both], confidence)))
        as_decided = f"{100 * confidence:.4g}% of each difference, as the verdict has it"
        drawn.append(replace(interval_dots(label, intervals, COLORS[i % len(COLORS)]), interval_label=as_decided))
    return Chart(
        title,
        x_label,
        y_label,
        drawn,
        categories=names,
        reference_lines=levels,
        category_lines=own_levels,
        y_from_zero=True,
    )


def interval_dots(label: str, intervals: Sequence[tuple[float, Interval]], colour: str) -> ChartLine:
    """95% intervals by their place along x: a dot for the middle and a bar from end to end."""
    return ChartLine(
        label,
        [(at, found.middle) for at, found in intervals],
        colour,
        connected=False,
        interval=[(at, found.low, found.high) for at, found in intervals],
        interval_label=OF_EACH,
    )


def by_number(
    title: str,
    x_label: str,
    y_label: str,
    runs: VariantRuns,
    metric: str,
    lines: Mapping[str, Mapping[float, str]],
    *,
    levels: Sequence[tuple[str, float]] = (),
    log_x: bool = False,
    log_y: bool = False,
) -> Chart:
    """A figure against a number that the variants differ in: the means as lines, their 95% intervals as bands.

    Args:
        lines: for each line of the legend, the variant at every number.
    """
    drawn = []
    for i, (label, variants) in enumerate(lines.items()):
        intervals = [(at, runs.interval(variant, metric)) for at, variant in sorted(variants.items())]
        drawn.append(
            ChartLine(
                label,
                [(at, found.middle) for at, found in intervals],
                COLORS[i % len(COLORS)],
                dots=True,
                interval=[(at, found.low, found.high) for at, found in intervals],
                interval_label=OF_EACH,
            )
        )
    return Chart(title, x_label, y_label, drawn, reference_lines=levels, log_x=log_x, log_y=log_y)


def curves(
    title: str,
    x_label: str,
    y_label: str,
    runs: VariantRuns,
    metric: str,
    variants: Mapping[str, str],
    *,
    log_x: bool = False,
    log_y: bool = False,
) -> Chart:
    """A curve of each variant, the mean of the seeds, in a band from the least to the greatest.

    Args:
        variants: the variants by the names of their lines.
    """
    drawn = [
        ChartLine(
            label,
            runs.curve(variant, metric),
            COLORS[i % len(COLORS)],
            interval=runs.band(variant, metric),
            interval_label=OF_SEEDS,
        )
        for i, (label, variant) in enumerate(variants.items())
    ]
    return Chart(title, x_label, y_label, drawn, log_x=log_x, log_y=log_y)


def charts_of(claim: Claim, outcome: Outcome) -> list[Chart]:
    """A claim's charts; none if they cannot be made of figures of before, whose variants had other names, say."""
    try:
        return list(claim.charts(outcome.runs))
    except (LookupError, ArithmeticError, TypeError, ValueError):
        return []
