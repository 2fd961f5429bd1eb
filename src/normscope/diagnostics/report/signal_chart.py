"""The main chart of the HTML report: activations, gradients, residual branches, norms and attention by depth."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from normscope.diagnostics.findings.finding import Finding
from normscope.diagnostics.record import ModuleRecord, XrayRecord
from normscope.diagnostics.report.signal_path import SignalPoint, point_of, position_of, signal_path, subsample
from normscope.diagnostics.stats.tensors import AttentionStats
from normscope.render.axis_scale import Scale
from normscope.render.chart import Chart, ChartLine
from normscope.render.chart_axes import text
from normscope.render.chart_panels import (
    GAP,
    LEFT,
    TITLE,
    blocks_of,
    draw_column,
    draw_figure,
    draw_panels,
    measured_line,
    panel,
    shared_x_scale,
)
from normscope.render.formatting import format_number, one_line
from normscope.render.svg import element, escape

MAX_POINTS = 300
MAX_LAYERS = 200
MAX_HEADS = 32
"""With more heads, each row of the attention map is the mean of several."""

FLAG = 22
"""Height of the flags of findings above the first panel."""


@dataclass(frozen=True)
class AttentionColumn:
    """An attention layer: its name, the first and last position of its column, and its statistics."""

    name: str
    first: float
    last: float
    attention: AttentionStats


def draw_signal_chart(record: XrayRecord, findings: Sequence[Finding]) -> str:
    """Draw the chart as an HTML figure; "" if there is nothing to show. The findings are flagged in it."""
    everything = signal_path(record)
    orders = {module.name: module.order for module in record.ran}
    known = [(i, finding.module, orders.get(finding.module)) for i, finding in enumerate(findings)]
    flagged = [(i, name, order) for i, name, order in known if order is not None]
    points = subsample(everything, MAX_POINTS, [point_of(everything, name, order) for _, name, order in flagged])
    if not points:
        return ""
    x = shared_x_scale(len(points))
    labels = [(point.label, point.block) for point in points]
    flags = _flags([(i, point_of(points, name, order)) for i, name, order in flagged], findings, x)
    body, bottom = draw_panels(_panels(record, points), x, headroom=FLAG if flags else 0)
    layers = _attention(record, points)
    if layers:
        heat_map, bottom = _attention_map(layers, x, bottom + GAP)
        body += heat_map
    shown = "" if len(points) == len(everything) else f"; {len(points)} of {len(everything):,} points"
    around = {"behind": _columns(points, x, bottom), "front": flags}
    caption = f"{_caption(points)}{shown}."
    return draw_figure(_spoken(record, points), (body, bottom), labels, x, **around, caption=caption)


def _panels(record: XrayRecord, points: Sequence[SignalPoint]) -> list[Chart]:
    joined = any(point.branch for point in points)
    forward = [(i, point.rms, point.non_finite) for i, point in enumerate(points)]
    backward = [(i, point.gradient, point.non_finite_gradient) for i, point in enumerate(points)]
    stream = measured_line("stream" if joined else "", "a", forward)
    panels = [panel("Forward: activation rms →", [stream, *_branches(points, ratio=False)], 190)]
    if any(point.gradient is not None for point in points):
        panels.append(panel("Backward: gradient rms ←", [measured_line("", "b", backward)], 140))
    if joined:
        panels.append(panel("Branch rms relative to the stream", _branches(points, ratio=True), 110))
    norms, levels = _norms(record, points)
    return [*panels, panel("Input rms of the norms", norms, 100, levels)] if norms else panels


def _branches(points: Sequence[SignalPoint], *, ratio: bool) -> list[ChartLine]:
    """One line per kind of branch; a single line if there are more than three kinds."""
    branches = [(i, point.branch) for i, point in enumerate(points) if point.branch is not None]
    labels = list(dict.fromkeys(branch.label for _, branch in branches))
    kinds = {label: {label} for label in labels} if len(labels) <= 3 else {"branches": set(labels)}
    lines = []
    for (name, kind), color in zip(kinds.items(), "cde", strict=False):
        own = [(i, branch) for i, branch in branches if branch.label in kind]
        values = [(i, branch.ratio if ratio else branch.rms, False) for i, branch in own]
        lines.append(measured_line(name, color, values, connected=ratio))
    return lines


def _norms(record: XrayRecord, points: Sequence[SignalPoint]) -> tuple[list[ChartLine], list[tuple[str, float]]]:
    """Input rms of the norms, one line per name within the block; and the level of eps, if it matters."""
    norms = [module for module in record.ran if _normalizes(module)]
    kinds: dict[str, list[ModuleRecord]] = {}
    for module in norms:
        kinds.setdefault(_within_block(module.name), []).append(module)
    kinds = dict([(kind, modules) for kind, modules in kinds.items() if len(modules) > 1][:4])
    rest = [module for module in norms if _within_block(module.name) not in kinds]
    lines = [_norm_line(kind, color, kinds[kind], points) for kind, color in zip(kinds, "acde", strict=False)]
    if rest:
        lines.append(_norm_line("others" if kinds else "", "b" if kinds else "a", rest, points))
    sizes = [value for line in lines for _, value in line.points if value > 0]
    level = math.sqrt(max((module.norm.eps or 0.0 for module in norms if module.norm is not None), default=0.0))
    matters = level > 0 and min(sizes, default=math.inf) < 30 * level
    return lines, [(f"√eps = {level:.2g}", level)] if matters else []


def _norm_line(label: str, color: str, norms: Sequence[ModuleRecord], points: Sequence[SignalPoint]) -> ChartLine:
    values, words = [], []
    for module in norms:
        assert module.norm is not None
        size = math.sqrt(module.norm.input_variance) if module.norm.input_variance >= 0 else math.nan
        non_finite = module.input is not None and module.input.non_finite > 0
        values.append((position_of(points, module.order or 0), size, non_finite))
        words.append(f"{module.name}\n{_labeled('input rms', size, non_finite)}")
    return measured_line(label, color, values, connected=label != "others", tooltips=words)


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
    found = [(module, own) for module in record.ran if (own := module.attention) is not None and own.entropy]
    spans = blocks_of([point.block for point in points])
    layers = []
    for module, attention in found[:: max(1, -(-len(found) // MAX_LAYERS))]:
        place = min(math.ceil(position_of(points, module.order or 0)), len(points) - 1)  # where its branch joins
        first, last = next((first, last) for _, first, last in spans if first <= place <= last)
        layers.append(AttentionColumn(module.name, first, last, attention))
    alone = len({layer.first for layer in layers}) == len(layers)
    wide = max((layer.last - layer.first for layer in layers), default=0) <= 8
    if alone and wide:
        return layers
    places = [position_of(points, record[layer.name].order or 0) for layer in layers]
    return [replace(layer, first=place, last=place) for layer, place in zip(layers, places, strict=True)]


def _attention_map(layers: Sequence[AttentionColumn], x: Scale, top: float) -> tuple[list[str], float]:
    """Draw the map with its title at `top`, along the shared x axis; also returns where it ends."""
    most = max(min(layer.attention.heads, MAX_HEADS) for layer in layers)
    tall = 18 if most <= 8 else 15 if most <= 12 else 11 if most <= 16 else 7  # with few heads, numbers fit
    body = [_attention_title(top)]
    for layer in layers:
        left, right = x.position(layer.first - 0.47), x.position(layer.last + 0.47)
        for row, (heads, entropy, peaked) in enumerate(_head_rows(layer.attention)):
            y = top + TITLE + row * tall
            words = f"{layer.name}\n{heads}\nentropy {format_number(entropy)} of the maximum"
            words += f"\n{peaked:.0%} of queries attend to a single token"
            strength = min(1.0, max(0.0, entropy)) if entropy == entropy else 0.0
            size = {"x": f"{left:.1f}", "y": f"{y:.1f}", "width": f"{right - left:.1f}", "height": tall - 1}
            title = element("title", escape(words))
            body.append(element("rect", title, class_="cell", **size, style=_opacity(strength)))
            if right - left >= 34 and tall >= 14:
                kind = "on" if strength > 0.55 else "off"
                body.append(text((left + right) / 2, y + tall / 2 + 3.5, f"{entropy:.2f}", "middle", kind=kind))
    numbered = range(0, most, max(1, round(14 / tall)))
    body += [text(LEFT - 7, top + TITLE + (row + 0.5) * tall + 3.5, str(row), "end") for row in numbered]
    return body, top + TITLE + most * tall


def _attention_title(top: float) -> str:
    steps = [element("tspan", "■", class_="step", dx=0 if i else 6, style=_opacity(i / 5)) for i in range(6)]
    name = element("tspan", "Attention entropy per head", class_="name")
    scale = [element("tspan", "0: one token", dx=14), *steps, element("tspan", "1: uniform", dx=6)]
    return element("text", name, *scale, x=LEFT, y=f"{top + 16:g}")


def _opacity(strength: float) -> str:
    return f"fill-opacity:{0.04 + 0.96 * strength:.2f}"


def _head_rows(attention: AttentionStats) -> list[tuple[str, float, float]]:
    """The rows: heads, mean entropy, and fraction of peaked queries."""
    size = -(-attention.heads // MAX_HEADS)
    rows = []
    for start in range(0, attention.heads, size):
        entropy = attention.entropy[start : start + size]
        sharpest = attention.peaked[start : start + size]
        last = start + len(entropy) - 1
        name = f"head {start}" if last == start else f"mean of heads {start} to {last}"
        if entropy and sharpest:
            rows.append((name, sum(entropy) / len(entropy), sum(sharpest) / len(sharpest)))
    return rows


def _columns(points: Sequence[SignalPoint], x: Scale, bottom: float) -> list[str]:
    """A transparent column with a tooltip for each point."""
    columns = []
    for i, point in enumerate(points):
        words = [one_line(f"{point.title} ({point.kind})"), _labeled("forward", point.rms, point.non_finite)]
        if point.gradient is not None:
            words.append(_labeled("gradient", point.gradient, point.non_finite_gradient))
        if point.branch is not None:
            words.append(f"{_labeled('added', point.branch.rms)}, {_labeled('x', point.branch.ratio)}")
        columns.append(draw_column("place", i, i, x, bottom, element("title", escape("\n".join(words)))))
    return columns


def _flags(flagged: Sequence[tuple[int, int]], findings: Sequence[Finding], x: Scale) -> list[str]:
    """A flag for each point with findings; it links to the card of the most severe one.

    Points too close for flags of their own share one, with a pole to each of them.
    """
    groups: dict[int, list[tuple[int, int]]] = {}
    for i, point in flagged:
        near = next((known for known in groups if abs(x.position(known) - x.position(point)) < 18), point)
        groups.setdefault(near, []).append((i, point))
    body, y = [], TITLE + 8
    for first, group in groups.items():
        left, found = f"{x.position(first):.1f}", [findings[i] for i, _ in group]
        words = "\n".join(one_line(f"{finding.severity}: {finding.title}") for finding in found)
        feet = dict.fromkeys(f"{x.position(point):.1f}" for _, point in group)
        poles = [element("line", x1=left, x2=foot, y1=y + 8, y2=y + 16) for foot in feet]
        sign = text(float(left), y + 4, str(len(found)) if len(found) > 1 else "!", "middle")
        parts = [element("title", escape(words)), *poles, element("circle", cx=left, cy=y, r=8), sign]
        flag = element("g", *parts, class_=f"flag {found[0].severity}")
        body.append(element("a", flag, href=f"#f{group[0][0]}"))
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
    forward, backward = point.rms == 0 and not point.non_finite, point.gradient == 0 and not point.non_finite_gradient
    return forward or backward or (point.branch is not None and point.branch.rms == 0)


def _spoken(record: XrayRecord, points: Sequence[SignalPoint]) -> str:
    """Text for screen readers."""
    first, last = points[0], points[-1]
    words = f"Signal by depth of {record.model}: {_labeled('forward', first.rms)} to {_labeled('', last.rms)}"
    return one_line(words + f"; {_labeled('gradient', last.gradient)} back to {_labeled('', first.gradient)}")


def _labeled(name: str, value: float | None, non_finite: bool = False) -> str:
    """A labeled number, for tooltips."""
    return f"{name} {format_number(value)}{' (some non-finite)' if non_finite else ''}"
