"""A comparison as a page: the sentence, the ranked table, and the curves."""

import json
from collections.abc import Sequence

from normscope.display.chart import Chart, draw_chart
from normscope.display.chart_look import CHART_SCRIPT, CHART_STYLE
from normscope.display.document import clean, document
from normscope.display.words import count, figure
from normscope.lab.compare.ranking import Ranked, ranking
from normscope.lab.compare.study import Comparison
from normscope.lab.compare.words import UNIT, notices, sentence
from normscope.lab.report.charts import categories, curves
from normscope.lab.report.words import interval_in_words

MOST_CURVES = 8


def comparison_page(found: Comparison) -> str:
    """The whole page."""
    ranked = ranking(found.runs)
    body = [
        "<header>",
        "<h1>A comparison</h1>",
        f"<p><b>{clean(sentence(ranked))}</b></p>",
        f'<p class="faint">{found.steps} steps each, seeds 0 to {len(found.runs.seeds) - 1}, compared seed by seed; '
        f"the intervals are those of all pairs together.</p>",
        *(f'<p class="faint">Mind: {clean(notice)}.</p>' for notice in notices(found)),
        "</header>",
        '<div class="grid">',
        *(draw_chart(chart) for chart in _charts(found, ranked)),
        "</div>",
        *_table(found, ranked),
        "<details><summary>Settings</summary>",
        *(f'<p class="text">{clean(name)}: {clean(json.dumps(one))}</p>' for name, one in found.settings.items()),
        "</details>",
    ]
    return document("normscope compare", body, style=CHART_STYLE + _STYLE, script=CHART_SCRIPT)


def _charts(found: Comparison, ranked: Sequence[Ranked]) -> list[Chart]:
    names = [one.name for one in ranked]
    shown = {name: name for name in names[:MOST_CURVES]}
    return [
        categories("Loss on held-out text", "", UNIT, found.runs, "loss", {"mean and 95%": names}, names),
        curves("Loss while training", "step", UNIT, found.runs, "curve", shown),
    ]


def _table(found: Comparison, ranked: Sequence[Ranked]) -> list[str]:
    head = ("", "variant", f"loss, {UNIT} (95%)", "behind the best (95%)", "rate", "weights", "ms a step")
    rows = []
    for place, one in enumerate(ranked, start=1):
        milliseconds = 1000 * found.runs.mean(one.name, "seconds_a_step")
        cells = (
            str(place),
            one.name,
            interval_in_words(one.loss),
            "" if one.behind is None else interval_in_words(one.behind),
            f"{found.runs.rates[one.name]:g}",
            count(found.runs.mean(one.name, "parameters")),
            figure(milliseconds),
        )
        rows.append(f"<tr>{''.join(f'<td>{clean(cell)}</td>' for cell in cells)}</tr>")
    return [
        '<div class="scroll"><table class="ranked">',
        f"<thead><tr>{''.join(f'<th>{clean(word)}</th>' for word in head)}</tr></thead>",
        *rows,
        "</table></div>",
    ]


_STYLE = """\
.ranked { table-layout: auto; margin-top: 20px }
.ranked td { font-family: inherit; font-variant-numeric: tabular-nums }
.scroll { overflow-x: auto }
"""
