"""The parameters section of the HTML report: rms, gradients and update sizes."""

from collections.abc import Sequence

from normscope.diagnostics.record import ParameterRecord, TensorStats, XrayRecord
from normscope.diagnostics.report.panels import TITLE, WIDTH, Panel, PanelSeries, draw_panel, shared_x_scale, text
from normscope.diagnostics.report.signal_path import rms_of
from normscope.diagnostics.report.summary import format_shape
from normscope.diagnostics.report.text_columns import UNICODE, LogBars
from normscope.render.formatting import format_number, one_line
from normscope.render.html_page import html_text

MAX_ROWS = 400
OPEN_ROWS = 24
"""Tables up to this length are expanded initially."""

TYPICAL_UPDATE = 1e-3
"""Typical update rms over weight rms per step. Far below it, a weight hardly learns."""


def draw_parameters(record: XrayRecord) -> list[str]:
    """The section; empty for a model without parameters."""
    known = [
        (f"{module.name}.{parameter.name}" if module.name else parameter.name, parameter)
        for module in sorted(record.modules, key=lambda module: (module.order is None, module.order or 0))
        for parameter in module.parameters
        if parameter.alias_of is None
    ]
    if not known:
        return []
    lines = ["<h2>Parameters</h2>"]
    if any(parameter.update_ratio is not None for _, parameter in known):
        lines.append(_updates(known))
    else:
        lines.append('<p class="faint">No optimizer step was recorded, so update sizes are unknown.</p>')
    shown = known[:MAX_ROWS]
    lines.append(
        f"<details{' open' if len(known) <= OPEN_ROWS else ''}><summary>All {len(known):,} parameters</summary>"
    )
    lines += _table(shown)
    if len(shown) < len(known):
        lines.append(f'<p class="faint">{len(known) - len(shown):,} more are in the record but not shown here.</p>')
    return [*lines, "</details>"]


def _updates(known: Sequence[tuple[str, ParameterRecord]]) -> str:
    moved = [(name, parameter) for name, parameter in known if parameter.update_ratio is not None]
    moved = moved[:: max(1, -(-len(moved) // MAX_ROWS))]
    x = shared_x_scale(len(moved))
    traces = []
    for label, color, is_matrix in (("matrices", "a", True), ("gains and biases", "c", False)):
        chosen = [(i, name, p) for i, (name, p) in enumerate(moved) if (len(p.shape) > 1) == is_matrix]
        points = [(float(i), p.update_ratio, False) for i, _, p in chosen]
        words = [f"{one_line(name)}\nupdate {format_number(p.update_ratio)} of its rms" for _, name, p in chosen]
        if points:
            traces.append(PanelSeries(label, color, points, joined=False, words=words))
    panel = Panel("Update size per step, relative to the weight", traces, 170, [("typical: 0.001", TYPICAL_UPDATE)])
    height = TITLE + panel.height + 26
    middle = (x.start + x.end) / 2
    return "\n".join(
        [
            f'<figure class="picture"><svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{panel.title}">',
            *draw_panel(panel, x, 0),
            text(middle, height - 8, "parameters, in execution order", "middle"),
            "</svg></figure>",
        ]
    )


def _table(known: Sequence[tuple[str, ParameterRecord]]) -> list[str]:
    bars = LogBars([parameter.update_ratio for _, parameter in known], 0, UNICODE)
    lines = [
        '<div class="scroll"><table class="weights"><thead><tr><th scope="col">name</th><th scope="col">shape</th>'
        '<th scope="col">rms</th><th scope="col">gradient rms</th><th scope="col">update</th></tr></thead><tbody>'
    ]
    for name, parameter in known:
        width, ratio = 100 * bars.share(parameter.update_ratio), format_number(parameter.update_ratio)
        update = f'<td class="a" style="--w:{width:.0f}%">{ratio}</td>'
        lines.append(
            f'<tr><th scope="row">{html_text(one_line(name))}{"" if parameter.requires_grad else " (frozen)"}</th>'
            f"<td>{format_shape(parameter.shape)}</td>{_size(parameter.values)}{_size(parameter.gradient)}"
            f"{update}</tr>"
        )
    return [*lines, "</tbody></table></div>"]


def _size(signal: TensorStats | None) -> str:
    mark = ' <em title="some values are NaN or Inf">!</em>' if signal is not None and signal.non_finite > 0 else ""
    return f"<td>{format_number(rms_of(signal))}{mark}</td>"
