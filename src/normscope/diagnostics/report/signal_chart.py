"""The main chart of the HTML report: activations, gradients, residual branches, norms and attention by depth."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from normscope.diagnostics.findings.finding import Finding
from normscope.diagnostics.record import ModuleRecord, XrayRecord
from normscope.diagnostics.report.attention_map import AttentionColumn, attention_map_height, draw_attention_map
from normscope.diagnostics.report.panels import (
    TITLE,
    WIDTH,
    Panel,
    PanelSeries,
    blocks_of,
    draw_axis,
    draw_bands,
    draw_panel,
    labeled_value,
    shared_x_scale,
    text,
)
from normscope.diagnostics.report.signal_path import SignalPoint, position_of, signal_path, subsample
from normscope.render.axis_scale import Scale
from normscope.render.formatting import one_line
from normscope.render.svg import escape

MAX_POINTS = 300
MAX_LAYERS = 200
_GAP, _FLAG = 14, 22


def draw_signal_chart(record: XrayRecord, findings: Sequence[Finding], anchors: Mapping[int, str]) -> str:
    """Draw the chart as an HTML figure; "" if there is nothing to show.

    Args:
        record: the record.
        findings: findings to flag in the chart.
        anchors: HTML id of each finding's card, by its index.
    """
    everything = signal_path(record)
    orders = {module.name: module.order for module in record.ran}
    flagged = [(i, orders[finding.module]) for i, finding in enumerate(findings) if finding.module in orders]
    known = [(i, order) for i, order in flagged if order is not None]
    points = subsample(everything, MAX_POINTS, [position_of(everything, order) for _, order in known])
    if not points:
        return ""
    x = shared_x_scale(len(points))
    labels = [(point.label, point.block) for point in points]
    flags = _flags([(i, position_of(points, order)) for i, order in known], findings, anchors, x)
    top = 0.0
    body: list[str] = []
    for panel in _panels(record, points, air=_FLAG if flags else 0):
        body += draw_panel(panel, x, top)
        top += panel.total_height + _GAP
    layers = _attention(record, points)
    if layers:
        body += draw_attention_map(layers, x, top)
        top += TITLE + attention_map_height(layers) + _GAP
    top -= _GAP
    names, room = draw_axis(labels, x, top)
    shown = "" if len(points) == len(everything) else f"; {len(points)} of {len(everything):,} points"
    return "\n".join(
        [
            '<figure class="picture">',
            f'<svg viewBox="0 0 {WIDTH} {top + room:.0f}" role="img" aria-label="{escape(_spoken(record, points))}">',
            *draw_bands(labels, x, TITLE, top),
            *_columns(points, x, TITLE, top),
            *body,
            *names,
            *flags,
            "</svg>",
            f"<figcaption>{escape(_caption(points) + shown)}.</figcaption>",
            "</figure>",
        ]
    )


def _panels(record: XrayRecord, points: Sequence[SignalPoint], air: int) -> list[Panel]:
    joined = any(point.branch for point in points)
    stream = PanelSeries(
        "stream" if joined else "",
        "a",
        [(i, point.rms, point.non_finite) for i, point in enumerate(points)],
    )
    back = [(float(i), point.gradient, point.non_finite_gradient) for i, point in enumerate(points)]
    panels = [
        Panel("Forward: activation rms", [stream, *_branches(points, ratio=False)], 190, arrow="→", air=air),
    ]
    if any(point.gradient is not None for point in points):
        panels.append(Panel("Backward: gradient rms", [PanelSeries("", "b", back)], 140, arrow="←"))
    if joined:
        panels.append(Panel("Branch rms relative to the stream", _branches(points, ratio=True), 110))
    norms, levels = _norms(record, points)
    if norms:
        panels.append(Panel("Input rms of the norms", norms, 100, levels))
    return panels


def _branches(points: Sequence[SignalPoint], *, ratio: bool) -> list[PanelSeries]:
    """One series per kind of branch; a single series if there are more than three kinds."""
    labels = list(dict.fromkeys(point.branch.label for point in points if point.branch))
    kinds = [{label} for label in labels] if len(labels) <= 3 else [set(labels)]
    traces = []
    for kind, color in zip(kinds, "cde", strict=False):
        values = [
            (float(i), point.branch.ratio if ratio else point.branch.rms, False)
            for i, point in enumerate(points)
            if point.branch is not None and point.branch.label in kind
        ]
        traces.append(PanelSeries("branches" if len(kind) > 1 else next(iter(kind)), color, values, joined=ratio))
    return traces


def _norms(record: XrayRecord, points: Sequence[SignalPoint]) -> tuple[list[PanelSeries], list[tuple[str, float]]]:
    """Input rms of the norms, one series per name within the block; and the level of eps, if it matters."""
    norms = [module for module in record.ran if _normalizes(module)]
    kinds: dict[str, list[ModuleRecord]] = {}
    for module in norms:
        kinds.setdefault(_within_block(module.name), []).append(module)
    kinds = dict([(kind, modules) for kind, modules in kinds.items() if len(modules) > 1][:4])
    rest = [module for module in norms if _within_block(module.name) not in kinds]
    traces = [
        _given(kind, color, modules, points) for (kind, modules), color in zip(kinds.items(), "acde", strict=False)
    ]
    if rest:
        traces.append(_given("others" if kinds else "", "b" if kinds else "a", rest, points))
    sizes = [value for trace in traces for _, value, _ in trace.points if value is not None and value > 0]
    level = math.sqrt(max((module.norm.eps or 0.0 for module in norms if module.norm is not None), default=0.0))
    matters = level > 0 and min(sizes, default=math.inf) < 30 * level
    return traces, [(f"√eps = {level:.2g}", level)] if matters else []


def _given(label: str, color: str, norms: Sequence[ModuleRecord], points: Sequence[SignalPoint]) -> PanelSeries:
    values, words = [], []
    for module in norms:
        assert module.norm is not None
        size = math.sqrt(module.norm.input_variance) if module.norm.input_variance >= 0 else math.nan
        non_finite = module.input is not None and module.input.non_finite > 0
        values.append((position_of(points, module.order or 0), size, non_finite))
        words.append(f"{module.name}\n{labeled_value('input rms', size, non_finite)}")
    return PanelSeries(label, color, values, joined=label != "others", words=words)


def _normalizes(module: ModuleRecord) -> bool:
    """Whether it is a real norm, not a placeholder that does nothing."""
    return module.norm is not None and (module.norm.eps is not None or bool(module.norm.reduced_axes))


def _within_block(name: str) -> str:
    """Name of a module within its block: `norms.1` for `blocks.3.norms.1`.

    >>> _within_block("blocks.3.norms.1"), _within_block("transformer.ln_f")
    ('norms.1', 'transformer.ln_f')
    """
    match = re.match(r"(?:.*?\.)??\d+\.(.+)", name)
    return match.group(1) if match else name


def _attention(record: XrayRecord, points: Sequence[SignalPoint]) -> list[AttentionColumn]:
    """Columns of the attention map, each as wide as its block unless a block has several."""
    found = [module for module in record.ran if module.attention is not None and module.attention.entropy]
    spans = blocks_of([point.block for point in points])
    layers = []
    for module in found[:: max(1, -(-len(found) // MAX_LAYERS))]:
        assert module.order is not None
        assert module.attention is not None
        place = min(math.ceil(position_of(points, module.order)), len(points) - 1)  # where its branch joins
        first, last = next((first, last) for _, first, last in spans if first <= place <= last)
        layers.append(AttentionColumn(module.name, first, last, module.attention))
    alone = len({layer.first for layer in layers}) == len(layers)
    wide = max((layer.last - layer.first for layer in layers), default=0) <= 8
    if alone and wide:
        return layers
    return [replace(layer, first=i, last=i) for layer, i in zip(layers, _places(layers, record, points), strict=True)]


def _places(layers: Sequence[AttentionColumn], record: XrayRecord, points: Sequence[SignalPoint]) -> list[float]:
    return [position_of(points, record[layer.name].order or 0) for layer in layers]


def _columns(points: Sequence[SignalPoint], x: Scale, top: float, bottom: float) -> list[str]:
    """A transparent column with a tooltip for each point."""
    half = (x.position(1) - x.position(0)) / 2
    columns = []
    for i, point in enumerate(points):
        words = [
            one_line(f"{point.title} ({point.kind})"),
            labeled_value("forward", point.rms, point.non_finite),
        ]
        if point.gradient is not None:
            words.append(labeled_value("gradient", point.gradient, point.non_finite_gradient))
        if point.branch is not None:
            words.append(f"{labeled_value('added', point.branch.rms)}, {labeled_value('x', point.branch.ratio)}")
        columns.append(
            f'<rect class="place" x="{x.position(i) - half:.1f}" y="{top:g}" width="{2 * half:.1f}" '
            f'height="{bottom - top:g}"><title>{escape(chr(10).join(words))}</title></rect>'
        )
    return columns


def _flags(
    flagged: Sequence[tuple[int, float]], findings: Sequence[Finding], anchors: Mapping[int, str], x: Scale
) -> list[str]:
    """A flag for each point with findings; it links to the card of the most severe one."""
    places: dict[float, list[int]] = {}
    for i, place in flagged:
        near = next((known for known in places if abs(x.position(known) - x.position(place)) < 18), place)
        places.setdefault(near, []).append(i)
    body, y = [], TITLE + 8
    for place, found in places.items():
        finding, left = findings[found[0]], x.position(max(place, -0.5))
        words = "\n".join(one_line(f"{findings[i].severity}: {findings[i].title}") for i in found)
        sign = str(len(found)) if len(found) > 1 else "!"
        body.append(
            f'<a href="#{anchors.get(found[0], "")}"><g class="flag {escape(finding.severity)}">'
            f'<title>{escape(words)}</title><line x1="{left:.1f}" x2="{left:.1f}" y1="{y + 8}" y2="{y + 16}"/>'
            f'<circle cx="{left:.1f}" cy="{y}" r="8"/>{text(left, y + 4, sign, "middle")}</g></a>'
        )
    return body


def _caption(points: Sequence[SignalPoint]) -> str:
    way = "points are additions to the residual stream, and modules outside the branches"
    if not any(point.branch for point in points):
        way = "points are modules, in execution order"
    zero = any(_has_zero(point) for point in points)
    non_finite = any(point.non_finite or point.non_finite_gradient for point in points)
    backward = any(point.gradient is not None for point in points)
    more = [] if backward else ["no gradients were recorded"]
    more += ["a ring at the bottom is zero"] if zero else []
    more += ["a cross marks non-finite values"] if non_finite else []
    return "; ".join([f"Rms on log scales; {way}", *more])


def _has_zero(point: SignalPoint) -> bool:
    forward, backward = (
        point.rms == 0 and not point.non_finite,
        point.gradient == 0 and not point.non_finite_gradient,
    )
    return forward or backward or (point.branch is not None and point.branch.rms == 0)


def _spoken(record: XrayRecord, points: Sequence[SignalPoint]) -> str:
    """Text for screen readers."""
    first, last = points[0], points[-1]
    words = f"Signal by depth of {record.model}: {labeled_value('forward', first.rms)} to {labeled_value('', last.rms)}"
    return one_line(words + f"; {labeled_value('gradient', last.gradient)} back to {labeled_value('', first.gradient)}")
