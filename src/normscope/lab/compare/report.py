"""The report of a comparison: the ranked table, notices about its validity, and the HTML page of `compare.html`."""

import json
from collections.abc import Mapping

from markupsafe import Markup

from normscope.lab.compare.comparison import Comparison, leaks_future
from normscope.lab.compare.ranking import UNIT, Ranked, Ranking, ranking, summarize
from normscope.lab.report.describe import BUILT_IN, format_range
from normscope.lab.report.page import common_range, forest_plot
from normscope.lab.running.tuning import best_lr_at_edge
from normscope.lab.toolkit import curves, mean_lines
from normscope.render.chart import Chart, draw_chart
from normscope.render.formatting import format_count, format_number
from normscope.render.pages import render_page

MAX_COST_RATIO = 1.5
"""Beyond this, the better variant may only have used more compute."""
BEHIND = "behind the best (95%)"
UNDETECTED = 0.1
"""Nats per byte: if an undetected difference may be this large, more seeds are worthwhile."""
MAX_CURVES = 8
MAX_CATEGORIES = 6
"""More labels would overlap below a chart; the table has all variants."""


def heading(found: Comparison) -> str:
    """Describe the budget of a comparison."""
    text: str | Mapping[str, str] = next(iter(found.settings.values()))["text"]
    name = BUILT_IN if isinstance(text, str) else text["name"]
    seeds = f"seeds 0 to {len(found.runs.seeds) - 1}"
    return f"{found.steps:,} steps each, {seeds}, {name}; loss in {UNIT} on held-out text"


def table(found: Comparison, ranking: Ranking) -> str:
    """Format the ranked table for a terminal."""
    cells = rows_of(found, ranking)
    rows = [["", *cells[0]], *([str(rank), *row.values()] for rank, row in enumerate(cells, start=1))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    left = (1, 3)  # variant and difference; numbers are right-aligned
    lines = [
        "  ".join(cell.ljust(widths[i]) if i in left else cell.rjust(widths[i]) for i, cell in enumerate(row))
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def timing(found: Comparison) -> str:
    """Explain the ms/step column."""
    runs = "one run at a time" if found.workers == 1 else f"{found.workers} parallel runs"
    return (
        f"ms/step is CPU time on one core, measured with {runs}: compare it between these variants, not with other "
        "runs or machines"
    )


def rows_of(found: Comparison, ranking: Ranking) -> list[dict[str, str]]:
    """Return the cells of each variant by column, the best first; failures have a column if there are any."""
    return [_row(found, ranking, one) for one in ranking.ranked]


def _row(found: Comparison, ranking: Ranking, one: Ranked) -> dict[str, str]:
    pair, behind = ranking.behind(one), ""
    if pair is not None and not ranking.best.all_failed:
        behind = f"{format_number(pair.behind.middle)} ({format_range(pair.behind)})"
    cells = {
        "variant": one.name,
        "loss": f"{one.loss.middle:.3f}",
        BEHIND: behind,
        "lr": f"{found.runs.lrs[one.name]:g}",
        "parameters": format_count(found.runs.mean(one.name, "parameters")),
        "ms/step": format_number(1000 * found.seconds[one.name] / found.steps),
    }
    return {**cells, "failed": f"{one.failed} of {one.seeds}"} if _any_failed(ranking) else cells


def _any_failed(ranking: Ranking) -> bool:
    return any(one.failed for one in ranking.ranked)


def notices(found: Comparison, ranking: Ranking) -> list[str]:
    """Return what to know before relying on the result."""
    texts = _costs(found)
    leaking = ", ".join(name for name, settings in found.settings.items() if leaks_future(settings))
    if leaking:
        texts.append(
            f"in training the norm of {leaking} sees later tokens; it is evaluated with running statistics, which do "
            "not leak"
        )
    edge = ", ".join(best_lr_at_edge(found.tuned))
    if edge:
        texts.append(f"the best learning rate of {edge} is at the edge of the grid; extend it with --lr")
    diverged = ", ".join(name for name, runs in found.runs.metrics.items() if any(run["diverged"] for run in runs))
    if diverged:
        texts.append(f"{diverged} diverged (NaN or Inf) with at least one seed, which counts as a uniform guess")
    unresolved = [
        pair.behind.high for pair in ranking.pairs.values() if not pair.differs and pair.behind.high > UNDETECTED
    ]
    if unresolved and not _any_failed(ranking):
        texts.append(
            f"too few seeds to separate some variants: they may differ by up to {format_number(max(unresolved))} "
            f"{UNIT}; try --seeds {2 * len(found.runs.seeds)}"
        )
    if any(one.all_failed for one in ranking.ranked):
        texts.append("a variant that learns nothing may need a smaller --lr, more --minutes, or a norm")
    return texts


def _costs(found: Comparison) -> list[str]:
    """Steps are equal for all; their cost and data need not be."""
    texts = []
    seconds = {name: value for name, value in found.seconds.items() if value > 0}
    if seconds:
        slow, fast = max(seconds, key=seconds.__getitem__), min(seconds, key=seconds.__getitem__)
        ratio = seconds[slow] / seconds[fast]
        if ratio > MAX_COST_RATIO:
            texts.append(
                f"equal steps, unequal time: a step of {slow} takes {ratio:.1f} times as long as one of {fast}"
            )
    if len({settings["model"]["context"] for settings in found.settings.values()}) > 1:
        texts.append("a step with a longer context sees more bytes, and different ones for the same seed")
    return texts


def comparison_page(found: Comparison) -> str:
    """Return the whole page."""
    ranked = ranking(found.runs)
    return render_page(
        "lab/compare/compare.html",
        summary=summarize(ranked),
        heading=heading(found),
        notices=notices(found, ranked),
        charts=[Markup(draw_chart(chart)) for chart in _charts(found, ranked)],
        BEHIND=BEHIND,
        rows=rows_of(found, ranked),
        plots=_forest_plots(ranked),
        timing=timing(found),
        settings=found.settings,
        to_json=json.dumps,
    )


def _charts(found: Comparison, ranked: Ranking) -> list[Chart]:
    names = [one.name for one in ranked.ranked]
    shown = {name: name for name in names[:MAX_CURVES]}
    which = f", the best {MAX_CURVES}" if len(names) > MAX_CURVES else ""
    charts = [Chart(f"Training loss{which}", "step", UNIT, curves(found.runs, "curve", shown))]
    if len(names) <= MAX_CATEGORIES:
        means = mean_lines(found.runs, "loss", {"mean": names})
        charts.insert(0, Chart("Loss on held-out text", "", UNIT, means, categories=names))
    return charts


def _forest_plots(ranked: Ranking) -> dict[str, Markup]:
    """Draw the difference of each variant from the best, on a common scale."""
    if ranked.best.all_failed:
        return {}
    found = {one.name: pair.behind for one in ranked.ranked if (pair := ranked.behind(one)) is not None}
    low, high = common_range((interval, 0.0) for interval in found.values())
    return {name: forest_plot(interval, 0.0, low, high) for name, interval in found.items()}
