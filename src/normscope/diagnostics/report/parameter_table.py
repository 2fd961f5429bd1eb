"""The parameters on a page: how large they are, their gradients, and by how much a step changes them."""

from collections.abc import Sequence

from normscope.diagnostics.record import ParameterRecord, TensorStats, XrayRecord
from normscope.diagnostics.report.panels import TITLE, WIDTH, Panel, Trace, across, draw_panel, text
from normscope.diagnostics.report.signal_path import size_of
from normscope.diagnostics.report.summary import shape
from normscope.diagnostics.report.text_columns import UNICODE, Bars
from normscope.render.formatting import format_number, one_line
from normscope.render.html_page import html_text

MOST_ROWS = 400
OPEN_ROWS = 24
"""A table that is no longer than this stands open."""

USUAL = 1e-3
"""The usual change of a weight by one step, as a share of its size. Far below it a weight hardly learns."""


def draw_weights(record: XrayRecord) -> list[str]:
    """The section; nothing for a model without parameters."""
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
        lines.append('<p class="faint">No step of an optimiser was seen, so nothing is known of their updates.</p>')
    shown = known[:MOST_ROWS]
    lines.append(f"<details{' open' if len(known) <= OPEN_ROWS else ''}><summary>All {len(known):,}</summary>")
    lines += _table(shown)
    if len(shown) < len(known):
        lines.append(f'<p class="faint">{len(known) - len(shown):,} more are in the record, and not on this page.</p>')
    return [*lines, "</details>"]


def _updates(known: Sequence[tuple[str, ParameterRecord]]) -> str:
    moved = [(name, parameter) for name, parameter in known if parameter.update_ratio is not None]
    moved = moved[:: max(1, -(-len(moved) // MOST_ROWS))]
    x = across(len(moved))
    traces = []
    for label, color, is_matrix in (("matrices", "a", True), ("gains and biases", "c", False)):
        chosen = [(i, name, p) for i, (name, p) in enumerate(moved) if (len(p.shape) > 1) == is_matrix]
        points = [(float(i), p.update_ratio, False) for i, _, p in chosen]
        words = [f"{one_line(name)}\nupdate {format_number(p.update_ratio)} of its size" for _, name, p in chosen]
        if points:
            traces.append(Trace(label, color, points, joined=False, words=words))
    panel = Panel("By how much a step changes each, as a share of its size", traces, 170, [("usual: 0.001", USUAL)])
    height = TITLE + panel.height + 26
    middle = (x.start + x.end) / 2
    return "\n".join(
        [
            f'<figure class="picture"><svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{panel.title}">',
            *draw_panel(panel, x, 0),
            text(middle, height - 8, "the parameters, in the order in which their modules run", "middle"),
            "</svg></figure>",
        ]
    )


def _table(known: Sequence[tuple[str, ParameterRecord]]) -> list[str]:
    bars = Bars([parameter.update_ratio for _, parameter in known], 0, UNICODE)
    lines = [
        '<div class="scroll"><table class="weights"><thead><tr><th scope="col">name</th><th scope="col">shape</th>'
        '<th scope="col">rms</th><th scope="col">gradient rms</th><th scope="col">update</th></tr></thead><tbody>'
    ]
    for name, parameter in known:
        width, ratio = 100 * bars.share(parameter.update_ratio), format_number(parameter.update_ratio)
        update = f'<td class="a" style="--w:{width:.0f}%">{ratio}</td>'
        lines.append(
            f'<tr><th scope="row">{html_text(one_line(name))}{"" if parameter.requires_grad else " (not trained)"}</th>'
            f"<td>{shape(parameter.shape)}</td>{_size(parameter.values)}{_size(parameter.gradient)}"
            f"{update}</tr>"
        )
    return [*lines, "</tbody></table></div>"]


def _size(signal: TensorStats | None) -> str:
    doubt = ' <em title="not all finite">!</em>' if signal is not None and signal.non_finite > 0 else ""
    return f"<td>{format_number(size_of(signal))}{doubt}</td>"
