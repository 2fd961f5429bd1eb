"""An x-ray as a page: one file with everything in it, which asks nobody for anything."""

from collections.abc import Sequence

from normscope.diagnostics.findings.base import SEVERITIES, Finding
from normscope.diagnostics.record import XrayRecord
from normscope.diagnostics.report.finding_cards import MARKS, anchor, draw_cards, marked_up
from normscope.diagnostics.report.module_table import ModuleTable
from normscope.diagnostics.report.over_steps import draw_steps
from normscope.diagnostics.report.parameter_table import draw_weights
from normscope.diagnostics.report.signal_chart import draw_picture
from normscope.diagnostics.report.style import PAGE_SCRIPT, PAGE_STYLE
from normscope.diagnostics.report.summary import facts, idle, verdict, what_ran
from normscope.errors import ConfigError
from normscope.render.chart_style import CHART_SCRIPT, CHART_STYLE
from normscope.render.formatting import one_line
from normscope.render.html_page import html_document, html_text


def render_page(records: XrayRecord | Sequence[XrayRecord], findings: Sequence[Finding]) -> str:
    """The page of an x-ray; of several, which were taken one after the other, that of the last and how it came there.

    Args:
        records: what was seen; several in the order in which they were taken.
        findings: what is wrong, as `find` gives it for the last of them.
    """
    series = [records] if isinstance(records, XrayRecord) else list(records)
    if not series:
        raise ConfigError("a page is made of one record at least, but got none\nfix: render_page(x.record, findings)")
    record = series[-1]
    title = f"X-ray of {one_line(record.model)}"
    anchors = {i: anchor(i) for i in range(len(findings))}
    table = ModuleTable(record, {finding.module for finding in findings if finding.module})
    picture = draw_picture(record, findings, anchors)
    body = [
        *_head(title, series, findings),
        *draw_cards(findings, table.rows),
        *(["<h2>The signal by depth</h2>", picture] if picture else []),
        *draw_steps(series),
        *table.draw(),
        *draw_weights(record),
        *_notices(record),
    ]
    return html_document(title, body, style=CHART_STYLE + PAGE_STYLE, script=CHART_SCRIPT + PAGE_SCRIPT)


def _head(title: str, records: Sequence[XrayRecord], findings: Sequence[Finding]) -> list[str]:
    record = records[-1]
    which = f", the last of {len(records)} x-rays" if len(records) > 1 else ""
    worst = next((severity for severity in SEVERITIES if any(f.severity == severity for f in findings)), "good")
    mark = "✓" if worst == "good" else MARKS[worst]
    return [
        "<header>",
        f"<h1>{html_text(title)}</h1>",
        f'<p class="faint">{html_text(what_ran(record) + which)}</p>',
        f'<p class="verdict {worst}"><i>{mark}</i>{marked_up(verdict(record, findings))}</p>',
        '<dl class="tiles">',
        *(f"<div><dt>{html_text(name)}</dt><dd>{html_text(value)}</dd></div>" for name, value in facts(record)),
        "</dl>",
        "</header>",
    ]


def _notices(record: XrayRecord) -> list[str]:
    never = idle(record)
    items = [f"never ran: {', '.join(never)}"] if never else []
    items += [one_line(notice) for notice in record.notices]
    lines = ["<h2>Notices</h2>", "<ul>", *(f"<li>{html_text(item)}</li>" for item in items), "</ul>"] if items else []
    versions = f"normscope {record.normscope or '?'}, torch {record.torch or '?'}, record version {record.version}"
    return [*lines, f'<footer><p class="faint">{html_text(versions)}</p></footer>']
