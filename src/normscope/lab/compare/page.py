"""A comparison as a page: the sentence, the ranked table, and the curves."""

import json

from normscope.lab.compare.ranking import Ranking, ranking
from normscope.lab.compare.study import Comparison
from normscope.lab.compare.summary import UNIT, summarize
from normscope.lab.compare.table import BEHIND, columns, heading, notices, rows_of, timing
from normscope.lab.report.charts import categories, curves
from normscope.lab.report.forest_plot import FOREST_STYLE, common_range, forest_plot
from normscope.render.chart import Chart, draw_chart
from normscope.render.chart_style import CHART_SCRIPT, CHART_STYLE
from normscope.render.html_page import html_document, html_text

MOST_CURVES = 8
MOST_NAMES = 6
"""Beside each other below a chart; more would be drawn over one another, and the table has them all."""
_INTERVALS = (
    "How far one is behind the best is found seed by seed; these intervals, in sentence and table, are those of "
    "all pairs together. Bars in the chart of losses are of each loss by itself: where they overlap, two may still "
    "differ."
)


def comparison_page(found: Comparison) -> str:
    """The whole page."""
    ranked = ranking(found.runs)
    body = [
        "<header>",
        "<h1>A comparison</h1>",
        f"<p><b>{html_text(summarize(ranked))}</b></p>",
        f'<p class="faint">{html_text(heading(found))}. {_INTERVALS}</p>',
        *(f'<p class="faint">Mind: {html_text(notice)}.</p>' for notice in notices(found, ranked)),
        "</header>",
        '<div class="grid">',
        *(draw_chart(chart) for chart in _charts(found, ranked)),
        "</div>",
        *_table(found, ranked),
        f'<p class="faint">{html_text(timing(found))}.</p>',
        "<details><summary>Settings</summary>",
        *(
            f'<p class="text">{html_text(name)}: {html_text(json.dumps(one))}</p>'
            for name, one in found.settings.items()
        ),
        "</details>",
    ]
    return html_document("normscope compare", body, style=CHART_STYLE + FOREST_STYLE + _STYLE, script=CHART_SCRIPT)


def _charts(found: Comparison, ranked: Ranking) -> list[Chart]:
    names = [one.name for one in ranked.ranked]
    shown = {name: name for name in names[:MOST_CURVES]}
    which = f", the best {MOST_CURVES}" if len(names) > MOST_CURVES else ""
    charts = [curves(f"Loss while training{which}", "step", UNIT, found.runs, "curve", shown)]
    if len(names) <= MOST_NAMES:
        charts.insert(0, categories("Loss on held-out text", "", UNIT, found.runs, "loss", {"mean": names}, names))
    return charts


def _table(found: Comparison, ranked: Ranking) -> list[str]:
    head = ("", *columns(ranked))
    pictures = _behind(ranked)
    rows = []
    for place, (one, cells) in enumerate(zip(ranked.ranked, rows_of(found, ranked), strict=True), start=1):
        written = [f"<td>{html_text(cell)}</td>" for cell in (str(place), *cells)]
        written.insert(1 + head.index(BEHIND), f"<td>{pictures.get(one.name, '')}</td>")
        rows.append(f"<tr>{''.join(written)}</tr>")
    titles = [
        f'<th colspan="2">{html_text(word)}</th>' if word == BEHIND else f"<th>{html_text(word)}</th>" for word in head
    ]
    return [
        '<div class="scroll"><table class="ranked">',
        f"<thead><tr>{''.join(titles)}</tr></thead>",
        *rows,
        "</table></div>",
    ]


def _behind(ranked: Ranking) -> dict[str, str]:
    """What the ranking goes by, drawn: how far each is behind the best, with its interval, all to one scale."""
    if ranked.best.learnt_nothing:
        return {}
    found = {one.name: pair.behind for one in ranked.ranked if (pair := ranked.behind(one)) is not None}
    low, high = common_range((interval, 0.0) for interval in found.values())
    return {name: forest_plot(interval, 0.0, low, high) for name, interval in found.items()}


_STYLE = """\
.ranked { table-layout: auto; margin-top: 20px }
.ranked td { font-family: inherit; font-variant-numeric: tabular-nums }
.ranked :is(th, td) { white-space: nowrap }
.scroll { overflow-x: auto }
"""
