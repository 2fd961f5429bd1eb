"""Render an x-ray as a self-contained HTML page: its text, its charts, and the tables of modules and parameters."""

from collections.abc import Collection, Sequence
from typing import Any

from markupsafe import Markup

from normscope.diagnostics.findings.finding import SEVERITIES, Finding
from normscope.diagnostics.module_names import join_names
from normscope.diagnostics.record import ParameterRecord, XrayRecord
from normscope.diagnostics.report import ranks, summary
from normscope.diagnostics.report.details import details_of
from normscope.diagnostics.report.module_tree import ModuleNode, build_tree, fold
from normscope.diagnostics.report.over_steps import draw_step_charts
from normscope.diagnostics.report.signal_chart import draw_signal_chart
from normscope.diagnostics.report.signal_path import rms_of
from normscope.errors import ConfigError
from normscope.render.chart import Chart, ChartLine, draw_chart
from normscope.render.chart_axes import text
from normscope.render.chart_panels import WIDTH, draw_panels, measured_line, panel, shared_x_scale
from normscope.render.formatting import format_count, format_number, one_line
from normscope.render.pages import render_page
from normscope.render.svg import figure
from normscope.render.text_columns import UNICODE, LogBars

MAX_ROWS = 1_200
"""Above this, identical blocks are folded; rows beyond the limit are omitted, with a notice."""

MAX_DETAILS = 600
MAX_PARAMETERS = 400

TYPICAL_UPDATE = 1e-3
"""Typical update rms over weight rms per step. Far below it, a weight hardly learns."""


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
        loss_chart=Markup(_loss_chart(record)),
        signal_chart=Markup(draw_signal_chart(record, findings)),
        steps=draw_step_charts(series),
        modules=ModuleTable(record, {finding.module for finding in findings if finding.module}),
        parameters=_parameters(record),
        summary=summary,
        ranks=ranks,
        output_size=output_size,
        folded_names=folded_names,
        count=format_count,
        number=format_number,
        rms=rms_of,
    )


class ModuleTable:
    """The module table of a record.

    Args:
        record: the record.
        named: modules with findings; they stay visible.
    """

    def __init__(self, record: XrayRecord, named: Collection[str]) -> None:
        self.roots = build_tree(record)
        if len(record.modules) > MAX_ROWS:
            self.roots = [fold(root, named) for root in self.roots]
        shown = [node for root in self.roots for node in root.walk()]
        ids = {module.name: f"m{i}" for i, module in enumerate(record.modules)}
        self.omitted = max(0, len(shown) - MAX_ROWS)
        """Number of rows beyond the limit."""
        self.ids = {node.module.name: ids[node.module.name] for node in shown[:MAX_ROWS]}
        """HTML id of each module's row."""
        self._named = set(named)
        self._detailed = {node.module.name for node in shown[:MAX_DETAILS]} | self._named
        self.forward = LogBars(rms_of(node.module.output) for node in shown)
        self.backward = LogBars(rms_of(node.module.gradient) for node in shown)

    def rows(self, nodes: Sequence[ModuleNode]) -> list[tuple[ModuleNode, bool]]:
        """The nodes that have a row, each with whether it is open initially: roots, and those unlike the one before."""
        shown = [node for node in nodes if node.module.name in self.ids]
        before = ["" if node in self.roots else node.module.kind for node in shown]
        return [(n, n.children != [] and n.module.kind != kind) for n, kind in zip(shown, ["", *before], strict=False)]

    def mark(self, node: ModuleNode) -> str:
        """ "named" if a module has a finding, "holds" if one inside it has."""
        return "named" if node.module.name in self._named else "holds" if node.holds(self._named) else ""

    def details(self, node: ModuleNode) -> list[tuple[str, str]]:
        """Label and text of each recorded detail; nothing for a plain container, whose row says it all."""
        m = node.module
        special = (m.norm, m.attention, m.units, m.joins, m.parameters, m.produced_non_finite)
        return details_of(m) if m.name in self._detailed and (not node.children or any(special)) else []


def output_size(node: ModuleNode) -> str:
    module = node.module
    if not module.output_shapes:
        return "" if module.alias_of is None else f"= {module.alias_of}"
    return ", ".join(summary.format_shape(shape) for shape in module.output_shapes if shape) or "scalar"


def folded_names(node: ModuleNode) -> str:
    """Which siblings are folded into this one, if any."""
    names = [one_line(other.label) for other in node.folded]
    if not names:
        return ""
    words = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
    return f"{len(names):,} more with the same structure as {one_line(node.label)}: {words}"


def _loss_chart(record: XrayRecord) -> str:
    """The loss during the x-ray; "" if it is no curve."""
    if len(record.loss_curve) < summary.MIN_LOSSES:
        return ""
    line = ChartLine("loss", list(enumerate(record.loss_curve, 1)), "d", dots=True)
    first = f" (the first {len(record.loss_curve):,})" if record.is_loss_curve_cut else ""
    title = f"Loss in the order of the batches{first}"
    return draw_chart(Chart(title, "", "", [line], width=WIDTH, height=200))


def _parameters(record: XrayRecord) -> dict[str, Any]:
    """The parameters: the chart of updates ("" without a step), the rows, bars of the updates, and the total."""
    known = [
        (join_names(module.name, parameter.name), parameter)
        for module in sorted(record.modules, key=lambda module: (module.order is None, module.order or 0))
        for parameter in module.parameters
        if parameter.alias_of is None
    ]
    shown = known[:MAX_PARAMETERS]
    moved = [(name, parameter) for name, parameter in known if parameter.update_ratio is not None]
    bars = LogBars(parameter.update_ratio for _, parameter in shown)
    return {"chart": _update_chart(moved) if moved else "", "rows": shown, "bars": bars, "count": len(known)}


def _update_chart(moved: Sequence[tuple[str, ParameterRecord]]) -> str:
    moved = moved[:: max(1, -(-len(moved) // MAX_PARAMETERS))]
    lines = []
    for label, color, is_matrix in (("matrices", "a", True), ("gains and biases", "c", False)):
        chosen = [(i, name, p) for i, (name, p) in enumerate(moved) if (len(p.shape) > 1) == is_matrix]
        values = [(i, p.update_ratio, False) for i, _, p in chosen]
        words = [f"{one_line(name)}\nupdate {format_number(p.update_ratio)} of its rms" for _, name, p in chosen]
        if values:
            lines.append(measured_line(label, color, values, connected=False, tooltips=words))
    title, x = "Update size per step, relative to the weight", shared_x_scale(len(moved))
    body, bottom = draw_panels([panel(title, lines, 170, [("typical: 0.001", TYPICAL_UPDATE)])], x)
    axis = text((x.start + x.end) / 2, bottom + 18, "parameters, in execution order", "middle")
    return figure(WIDTH, bottom + 26, title, [*body, axis])
