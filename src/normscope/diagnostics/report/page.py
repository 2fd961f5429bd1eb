"""Render an x-ray as a self-contained HTML page."""

from collections.abc import Sequence

from normscope.diagnostics.findings.finding import SEVERITIES, Finding
from normscope.diagnostics.record import XrayRecord
from normscope.diagnostics.report.finding_cards import MARKS, anchor, draw_cards, markdown_code
from normscope.diagnostics.report.module_table import ModuleTable
from normscope.diagnostics.report.over_steps import draw_training_steps
from normscope.diagnostics.report.parameter_table import draw_parameters
from normscope.diagnostics.report.signal_chart import draw_signal_chart
from normscope.diagnostics.report.style import PAGE_SCRIPT, PAGE_STYLE
from normscope.diagnostics.report.summary import describe_passes, key_facts, unused_names, verdict
from normscope.errors import ConfigError
from normscope.render.chart_style import CHART_SCRIPT, CHART_STYLE
from normscope.render.formatting import one_line
from normscope.render.html_page import html_document, html_text


def render_page(records: XrayRecord | Sequence[XrayRecord], findings: Sequence[Finding]) -> str:
    """Render the page of a record, or of the last of several with charts over the steps.

    Args:
        records: one record, or several in chronological order.
        findings: findings of the last record, from `find`.
    """
    series = [records] if isinstance(records, XrayRecord) else list(records)
    if not series:
        raise ConfigError("expected at least one record, got none\nfix: render_page(x.record, findings)")
    record = series[-1]
    title = f"X-ray of {one_line(record.model)}"
    anchors = {i: anchor(i) for i in range(len(findings))}
    table = ModuleTable(record, {finding.module for finding in findings if finding.module})
    chart = draw_signal_chart(record, findings, anchors)
    body = [
        *_head(title, series, findings),
        *draw_cards(findings, table.rows),
        *(["<h2>Signal by depth</h2>", chart] if chart else []),
        *draw_training_steps(series),
        *table.draw(),
        *draw_parameters(record),
        *_notices(record),
    ]
    return html_document(title, body, style=CHART_STYLE + PAGE_STYLE, script=CHART_SCRIPT + PAGE_SCRIPT)


def _head(title: str, records: Sequence[XrayRecord], findings: Sequence[Finding]) -> list[str]:
    record = records[-1]
    which = f", last of {len(records)} x-rays" if len(records) > 1 else ""
    worst = next((severity for severity in SEVERITIES if any(f.severity == severity for f in findings)), "good")
    mark = "✓" if worst == "good" else MARKS[worst]
    return [
        "<header>",
        f"<h1>{html_text(title)}</h1>",
        f'<p class="faint">{html_text(describe_passes(record) + which)}</p>',
        f'<p class="verdict {worst}"><i>{mark}</i>{markdown_code(verdict(record, findings))}</p>',
        '<dl class="tiles">',
        *(f"<div><dt>{html_text(name)}</dt><dd>{html_text(value)}</dd></div>" for name, value in key_facts(record)),
        "</dl>",
        "</header>",
    ]


def _notices(record: XrayRecord) -> list[str]:
    never = unused_names(record)
    items = [f"never ran: {', '.join(never)}"] if never else []
    items += [one_line(notice) for notice in record.notices]
    lines = ["<h2>Notices</h2>", "<ul>", *(f"<li>{html_text(item)}</li>" for item in items), "</ul>"] if items else []
    versions = f"normscope {record.normscope or '?'}, torch {record.torch or '?'}, record version {record.version}"
    return [*lines, f'<footer><p class="faint">{html_text(versions)}</p></footer>']
