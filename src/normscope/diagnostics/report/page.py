"""Render an x-ray as a self-contained HTML page."""

from collections.abc import Sequence

from markupsafe import Markup

from normscope.diagnostics.findings.finding import SEVERITIES, Finding
from normscope.diagnostics.record import XrayRecord
from normscope.diagnostics.report.module_table import ModuleTable
from normscope.diagnostics.report.over_steps import draw_step_charts
from normscope.diagnostics.report.parameter_table import describe_parameters
from normscope.diagnostics.report.signal_chart import draw_signal_chart
from normscope.diagnostics.report.summary import (
    describe_passes,
    format_evidence,
    group_by_kind,
    key_facts,
    notices,
    verdict,
    versions,
)
from normscope.errors import ConfigError
from normscope.render.formatting import one_line
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
        passes=describe_passes(record) + (f", last of {len(series)} x-rays" if len(series) > 1 else ""),
        worst=next((severity for severity in SEVERITIES if any(f.severity == severity for f in findings)), "good"),
        verdict=verdict(record, findings),
        facts=key_facts(record),
        groups=group_by_kind(findings),
        mark=lambda severity: marks.get(severity, marks["note"]),
        evidence=format_evidence,
        anchor=lambda finding: f"f{numbers[id(finding)]}",
        signal_chart=Markup(draw_signal_chart(record, findings)),
        steps=draw_step_charts(series),
        modules=ModuleTable(record, {finding.module for finding in findings if finding.module}),
        parameters=describe_parameters(record),
        notices=notices(record),
        versions=f"{versions(record)}, record version {record.version}",
    )
