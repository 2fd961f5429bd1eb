"""Render an x-ray as a self-contained HTML page."""

from collections.abc import Sequence

from markupsafe import Markup

from normscope.diagnostics.findings.finding import SEVERITIES, Finding
from normscope.diagnostics.record import XrayRecord
from normscope.diagnostics.report import summary, tables
from normscope.diagnostics.report.over_steps import draw_step_charts
from normscope.diagnostics.report.signal_chart import draw_signal_chart
from normscope.diagnostics.report.signal_path import rms_of
from normscope.errors import ConfigError
from normscope.render.formatting import format_count, format_number, one_line
from normscope.render.pages import render_page
from normscope.render.text_columns import UNICODE


def xray_page(records: XrayRecord | Sequence[XrayRecord], findings: Sequence[Finding]) -> str:
    """Render the page of a record, or of the last of several with charts over the steps.

    Args:
        records: one record, or several in chronological order.
        findings: findings of the last record, from `find`.
    """
    series = [records] if isinstance(records, XrayRecord) else list(records)
    if not series:
        raise ConfigError("expected at least one record, got none\nfix: xray_page(x.record, findings)")
    record = series[-1]
    numbers = {id(finding): i for i, finding in enumerate(findings)}
    marks = dict(zip((*SEVERITIES, "good"), UNICODE.marks, strict=True))
    return render_page(
        "diagnostics/report/xray.html",
        title=f"X-ray of {one_line(record.model)}",
        record=record,
        findings=findings,
        series=series,
        worst=next((severity for severity in SEVERITIES if any(f.severity == severity for f in findings)), "good"),
        mark=lambda severity: marks.get(severity, marks["note"]),
        anchor=lambda finding: f"f{numbers[id(finding)]}",
        signal_chart=Markup(draw_signal_chart(record, findings)),
        steps=draw_step_charts(series),
        modules=tables.ModuleTable(record, {finding.module for finding in findings if finding.module}),
        parameters=tables.describe_parameters(record),
        summary=summary,
        tables=tables,
        count=format_count,
        number=format_number,
        rms=rms_of,
    )
