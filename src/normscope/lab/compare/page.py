"""The HTML report of a comparison: summary, ranked table and curves."""

import json

from normscope.lab.charts import categories, curves
from normscope.lab.compare.comparison import Comparison
from normscope.lab.compare.ranking import Ranking, ranking
from normscope.lab.compare.summary import UNIT, summarize
from normscope.lab.compare.table import BEHIND, columns, heading, notices, rows_of, timing
from normscope.lab.report.page import lab_style
from normscope.lab.report.tables import common_range, forest_plot, html_table
from normscope.render.chart import Chart, draw_chart
from normscope.render.chart_style import CHART_SCRIPT, CHART_STYLE
from normscope.render.html_page import html_document, html_text

MAX_CURVES = 8
MAX_CATEGORIES = 6
"""More labels would overlap below a chart; the table has all variants."""
INTERVALS = (
    "Differences from the best are paired by seed; their intervals are corrected for all pairs. Bars in the chart of "
    "losses are of each loss alone: variants may differ even where they overlap."
)


def comparison_page(found: Comparison) -> str:
    """Return the whole page."""
    ranked = ranking(found.runs)
    body = [
        "<header>",
        "<h1>Comparison</h1>",
        f"<p><b>{html_text(summarize(ranked))}</b></p>",
        f'<p class="faint">{html_text(heading(found))}. {INTERVALS}</p>',
        *(f'<p class="faint">Note: {html_text(notice)}.</p>' for notice in notices(found, ranked)),
        "</header>",
        '<div class="grid">',
        *(draw_chart(chart) for chart in _charts(found, ranked)),
        "</div>",
        _table(found, ranked),
        f'<p class="faint">{html_text(timing(found))}.</p>',
        "<details><summary>Settings</summary>",
        *(
            f'<p class="text">{html_text(name)}: {html_text(json.dumps(one))}</p>'
            for name, one in found.settings.items()
        ),
        "</details>",
    ]
    return html_document("normscope compare", body, style=CHART_STYLE + lab_style(), script=CHART_SCRIPT)


def _charts(found: Comparison, ranked: Ranking) -> list[Chart]:
    names = [one.name for one in ranked.ranked]
    shown = {name: name for name in names[:MAX_CURVES]}
    which = f", the best {MAX_CURVES}" if len(names) > MAX_CURVES else ""
    charts = [curves(f"Training loss{which}", "step", UNIT, found.runs, "curve", shown)]
    if len(names) <= MAX_CATEGORIES:
        charts.insert(0, categories("Loss on held-out text", "", UNIT, found.runs, "loss", {"mean": names}, names))
    return charts


def _table(found: Comparison, ranked: Ranking) -> str:
    head, plots = ["", *columns(ranked)], _forest_plots(ranked)
    rows = []
    for rank, (one, cells) in enumerate(zip(ranked.ranked, rows_of(found, ranked), strict=True), start=1):
        row = [html_text(cell) for cell in (str(rank), *cells)]
        row.insert(1 + head.index(BEHIND), plots.get(one.name, ""))
        rows.append(row)
    titles = [f'<th colspan="2">{html_text(name)}</th>' if name == BEHIND else html_text(name) for name in head]
    return html_table(titles, rows, "ranked")


def _forest_plots(ranked: Ranking) -> dict[str, str]:
    """Draw the difference of each variant from the best, on a common scale."""
    if ranked.best.all_failed:
        return {}
    found = {one.name: pair.behind for one in ranked.ranked if (pair := ranked.behind(one)) is not None}
    low, high = common_range((interval, 0.0) for interval in found.values())
    return {name: forest_plot(interval, 0.0, low, high) for name, interval in found.items()}
