"""The parameters section of the HTML report: rms, gradients and update sizes."""

from collections.abc import Sequence
from dataclasses import dataclass

from normscope.diagnostics.record import ParameterRecord, XrayRecord
from normscope.diagnostics.report.module_table import Bar
from normscope.diagnostics.report.signal_path import rms_of
from normscope.diagnostics.report.summary import format_shape
from normscope.render.chart_axes import text
from normscope.render.chart_panels import WIDTH, draw_panels, measured_line, panel, shared_x_scale
from normscope.render.formatting import format_number, one_line
from normscope.render.svg import figure
from normscope.render.text_columns import LogBars

MAX_ROWS = 400

TYPICAL_UPDATE = 1e-3
"""Typical update rms over weight rms per step. Far below it, a weight hardly learns."""

_Named = Sequence[tuple[str, ParameterRecord]]


@dataclass(frozen=True)
class ParameterRow:
    """A row of the table."""

    name: str
    shape: str
    is_frozen: bool
    rms: Bar
    gradient: Bar
    update: Bar


@dataclass(frozen=True)
class ParameterTable:
    """The section: the chart of updates ("" without a step), the rows, and the number of parameters."""

    chart: str
    rows: list[ParameterRow]
    count: int


def describe_parameters(record: XrayRecord) -> ParameterTable:
    known = [
        (f"{module.name}.{parameter.name}" if module.name else parameter.name, parameter)
        for module in sorted(record.modules, key=lambda module: (module.order is None, module.order or 0))
        for parameter in module.parameters
        if parameter.alias_of is None
    ]
    shown = known[:MAX_ROWS]
    bars = LogBars(parameter.update_ratio for _, parameter in shown)
    rows = [
        ParameterRow(
            name=one_line(name),
            shape=format_shape(parameter.shape),
            is_frozen=not parameter.requires_grad,
            rms=Bar.of(rms_of(parameter.values), parameter.values),
            gradient=Bar.of(rms_of(parameter.gradient), parameter.gradient),
            update=Bar.of(parameter.update_ratio, None, bars),
        )
        for name, parameter in shown
    ]
    moved = [(name, parameter) for name, parameter in known if parameter.update_ratio is not None]
    return ParameterTable(_update_chart(moved) if moved else "", rows, len(known))


def _update_chart(moved: _Named) -> str:
    moved = moved[:: max(1, -(-len(moved) // MAX_ROWS))]
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
