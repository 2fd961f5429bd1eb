"""The HTML report of a comparison: `compare.html` is its template."""

import json

from markupsafe import Markup

from normscope.lab.charts import categories, curves
from normscope.lab.compare.comparison import Comparison
from normscope.lab.compare.ranking import Ranking, ranking
from normscope.lab.compare.summary import UNIT, summarize
from normscope.lab.compare.table import BEHIND, columns, heading, notices, rows_of, timing
from normscope.lab.report.forest_plot import common_range, forest_plot
from normscope.render.chart import Chart, draw_chart
from normscope.render.pages import render_page

MAX_CURVES = 8
MAX_CATEGORIES = 6
"""More labels would overlap below a chart; the table has all variants."""


def comparison_page(found: Comparison) -> str:
    """Return the whole page."""
    ranked = ranking(found.runs)
    plots = _forest_plots(ranked)
    rows = zip(rows_of(found, ranked), (plots.get(one.name, "") for one in ranked.ranked), strict=True)
    return render_page(
        "lab/compare/compare.html",
        summary=summarize(ranked),
        heading=heading(found),
        notices=notices(found, ranked),
        charts=[Markup(draw_chart(chart)) for chart in _charts(found, ranked)],
        columns=columns(ranked),
        BEHIND=BEHIND,
        rows=list(rows),
        timing=timing(found),
        settings=found.settings,
        to_json=json.dumps,
    )


def _charts(found: Comparison, ranked: Ranking) -> list[Chart]:
    names = [one.name for one in ranked.ranked]
    shown = {name: name for name in names[:MAX_CURVES]}
    which = f", the best {MAX_CURVES}" if len(names) > MAX_CURVES else ""
    charts = [curves(f"Training loss{which}", "step", UNIT, found.runs, "curve", shown)]
    if len(names) <= MAX_CATEGORIES:
        charts.insert(0, categories("Loss on held-out text", "", UNIT, found.runs, "loss", {"mean": names}, names))
    return charts


def _forest_plots(ranked: Ranking) -> dict[str, Markup]:
    """Draw the difference of each variant from the best, on a common scale."""
    if ranked.best.all_failed:
        return {}
    found = {one.name: pair.behind for one in ranked.ranked if (pair := ranked.behind(one)) is not None}
    low, high = common_range((interval, 0.0) for interval in found.values())
    return {name: forest_plot(interval, 0.0, low, high) for name, interval in found.items()}
