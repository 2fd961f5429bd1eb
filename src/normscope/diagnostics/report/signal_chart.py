"""The picture of an x-ray: the signal forward and backward, branches as they join, attention, norms, by depth."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape

from normscope.diagnostics.findings.base import Finding
from normscope.diagnostics.record import ModuleRecord, XrayRecord
from normscope.diagnostics.report.attention_map import Layer, draw_heat, heat_height
from normscope.diagnostics.report.panels import (
    TITLE,
    WIDTH,
    Panel,
    Trace,
    across,
    blocks_of,
    draw_axis,
    draw_bands,
    draw_panel,
    text,
    value_words,
)
from normscope.diagnostics.report.signal_path import Station, few, place_of, stations_of
from normscope.render.axis_scale import Scale
from normscope.render.formatting import one_line

MOST_STATIONS = 300
MOST_LAYERS = 200
_GAP, _FLAG = 14, 22


def draw_picture(record: XrayRecord, findings: Sequence[Finding], anchors: Mapping[int, str]) -> str:
    """The picture as a figure for an HTML page; nothing if there is nothing to show.

    Args:
        record: what was seen.
        findings: those to flag in it.
        anchors: where each finding is told on the page, by its place in `findings`.
    """
    everything = stations_of(record)
    orders = {module.name: module.order for module in record.ran}
    flagged = [(i, orders[finding.module]) for i, finding in enumerate(findings) if finding.module in orders]
    known = [(i, order) for i, order in flagged if order is not None]
    stations = few(everything, MOST_STATIONS, [place_of(everything, order) for _, order in known])
    if not stations:
        return ""
    x = across(len(stations))
    labels = [(station.label, station.block) for station in stations]
    flags = _flags([(i, place_of(stations, order)) for i, order in known], findings, anchors, x)
    top = 0.0
    body: list[str] = []
    for panel in _panels(record, stations, air=_FLAG if flags else 0):
        body += draw_panel(panel, x, top)
        top += panel.room + _GAP
    layers = _attention(record, stations)
    if layers:
        body += draw_heat(layers, x, top)
        top += TITLE + heat_height(layers) + _GAP
    top -= _GAP
    names, room = draw_axis(labels, x, top)
    shown = "" if len(stations) == len(everything) else f"; {len(stations)} of {len(everything):,} places"
    return "\n".join(
        [
            '<figure class="picture">',
            f'<svg viewBox="0 0 {WIDTH} {top + room:.0f}" role="img" aria-label="{escape(_spoken(record, stations))}">',
            *draw_bands(labels, x, TITLE, top),
            *_columns(stations, x, TITLE, top),
            *body,
            *names,
            *flags,
            "</svg>",
            f"<figcaption>{escape(_caption(stations) + shown)}.</figcaption>",
            "</figure>",
        ]
    )


def _panels(record: XrayRecord, stations: Sequence[Station], air: int) -> list[Panel]:
    joined = any(station.branch for station in stations)
    stream = Trace(
        "the stream" if joined else "",
        "a",
        [(i, station.rms, station.non_finite) for i, station in enumerate(stations)],
    )
    back = [(float(i), station.gradient, station.non_finite_gradient) for i, station in enumerate(stations)]
    panels = [
        Panel("Forward: the size of the signal", [stream, *_branches(stations, ratio=False)], 190, arrow="→", air=air),
    ]
    if any(station.gradient is not None for station in stations):
        panels.append(Panel("Backward: the size of the loss's gradient", [Trace("", "b", back)], 140, arrow="←"))
    if joined:
        panels.append(Panel("What is added, as a multiple of the stream", _branches(stations, ratio=True), 110))
    norms, levels = _norms(record, stations)
    if norms:
        panels.append(Panel("What the norms are given", norms, 100, levels))
    return panels


def _branches(stations: Sequence[Station], *, ratio: bool) -> list[Trace]:
    """The branches of one kind together; if there are more than three kinds, all of them."""
    labels = list(dict.fromkeys(station.branch.label for station in stations if station.branch))
    kinds = [{label} for label in labels] if len(labels) <= 3 else [set(labels)]
    traces = []
    for kind, color in zip(kinds, "cde", strict=False):
        points = [
            (float(i), station.branch.ratio if ratio else station.branch.rms, False)
            for i, station in enumerate(stations)
            if station.branch is not None and station.branch.label in kind
        ]
        traces.append(Trace("branches" if len(kind) > 1 else next(iter(kind)), color, points, joined=ratio))
    return traces


def _norms(record: XrayRecord, stations: Sequence[Station]) -> tuple[list[Trace], list[tuple[str, float]]]:
    """The size of what each norm is given, those of the same name in their blocks together; and eps, if it matters."""
    norms = [module for module in record.ran if _normalizes(module)]
    kinds: dict[str, list[ModuleRecord]] = {}
    for module in norms:
        kinds.setdefault(_within_block(module.name), []).append(module)
    kinds = dict([(kind, modules) for kind, modules in kinds.items() if len(modules) > 1][:4])
    rest = [module for module in norms if _within_block(module.name) not in kinds]
    traces = [
        _given(kind, color, modules, stations) for (kind, modules), color in zip(kinds.items(), "acde", strict=False)
    ]
    if rest:
        traces.append(_given("others" if kinds else "", "b" if kinds else "a", rest, stations))
    sizes = [value for trace in traces for _, value, _ in trace.points if value is not None and value > 0]
    level = math.sqrt(max((module.norm.eps or 0.0 for module in norms if module.norm is not None), default=0.0))
    matters = level > 0 and min(sizes, default=math.inf) < 30 * level
    return traces, [(f"below √eps = {level:.2g} eps decides", level)] if matters else []


def _given(label: str, color: str, norms: Sequence[ModuleRecord], stations: Sequence[Station]) -> Trace:
    points, words = [], []
    for module in norms:
        assert module.norm is not None
        size = math.sqrt(module.norm.input_variance) if module.norm.input_variance >= 0 else math.nan
        non_finite = module.input is not None and module.input.non_finite > 0
        points.append((place_of(stations, module.order or 0), size, non_finite))
        words.append(f"{module.name}\n{value_words('given', size, non_finite)}")
    return Trace(label, color, points, joined=label != "others", words=words)


def _normalizes(module: ModuleRecord) -> bool:
    """Not one that stands in for a norm and does nothing."""
    return module.norm is not None and (module.norm.eps is not None or bool(module.norm.reduced_axes))


def _within_block(name: str) -> str:
    """The name that a module has in its block: `blocks.3.norms.1` is `norms.1` there.

    >>> _within_block("blocks.3.norms.1"), _within_block("transformer.ln_f")
    ('norms.1', 'transformer.ln_f')
    """
    match = re.match(r"(?:.*?\.)??\d+\.(.+)", name)
    return match.group(1) if match else name


def _attention(record: XrayRecord, stations: Sequence[Station]) -> list[Layer]:
    """The layers of attention: each as wide as its block, if it is alone there."""
    found = [module for module in record.ran if module.attention is not None and module.attention.entropy]
    spans = blocks_of([station.block for station in stations])
    layers = []
    for module in found[:: max(1, -(-len(found) // MOST_LAYERS))]:
        assert module.order is not None
        assert module.attention is not None
        place = min(math.ceil(place_of(stations, module.order)), len(stations) - 1)  # where its branch joins
        first, last = next((first, last) for _, first, last in spans if first <= place <= last)
        layers.append(Layer(module.name, first, last, module.attention))
    alone = len({layer.first for layer in layers}) == len(layers)
    wide = max((layer.last - layer.first for layer in layers), default=0) <= 8
    if alone and wide:
        return layers
    return [replace(layer, first=i, last=i) for layer, i in zip(layers, _places(layers, record, stations), strict=True)]


def _places(layers: Sequence[Layer], record: XrayRecord, stations: Sequence[Station]) -> list[float]:
    return [place_of(stations, record[layer.name].order or 0) for layer in layers]


def _columns(stations: Sequence[Station], x: Scale, top: float, bottom: float) -> list[str]:
    """Behind everything: a column for each place, which says its figures."""
    half = (x.position(1) - x.position(0)) / 2
    columns = []
    for i, station in enumerate(stations):
        words = [
            one_line(f"{station.title} ({station.kind})"),
            value_words("forward", station.rms, station.non_finite),
        ]
        if station.gradient is not None:
            words.append(value_words("gradient", station.gradient, station.non_finite_gradient))
        if station.branch is not None:
            words.append(f"{value_words('added', station.branch.rms)}, {value_words('x', station.branch.ratio)}")
        columns.append(
            f'<rect class="place" x="{x.position(i) - half:.1f}" y="{top:g}" width="{2 * half:.1f}" '
            f'height="{bottom - top:g}"><title>{escape(chr(10).join(words))}</title></rect>'
        )
    return columns


def _flags(
    flagged: Sequence[tuple[int, float]], findings: Sequence[Finding], anchors: Mapping[int, str], x: Scale
) -> list[str]:
    """A flag for each place that has findings: the mark of the first, which is the most severe, leads to its card."""
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


def _caption(stations: Sequence[Station]) -> str:
    way = "each place is an addition to the residual stream, or a module beside it"
    if not any(station.branch for station in stations):
        way = "each place is a module, in the order in which they run"
    zero = any(_has_zero(station) for station in stations)
    non_finite = any(station.non_finite or station.non_finite_gradient for station in stations)
    backward = any(station.gradient is not None for station in stations)
    more = [] if backward else ["no gradients were seen"]
    more += ["a ring at the bottom is a zero"] if zero else []
    more += ["a cross marks numbers that are infinite, or not numbers"] if non_finite else []
    return "; ".join([f"Root mean squares on logarithmic scales; {way}", *more])


def _has_zero(station: Station) -> bool:
    forward, backward = (
        station.rms == 0 and not station.non_finite,
        station.gradient == 0 and not station.non_finite_gradient,
    )
    return forward or backward or (station.branch is not None and station.branch.rms == 0)


def _spoken(record: XrayRecord, stations: Sequence[Station]) -> str:
    """What a screen reader says."""
    first, last = stations[0], stations[-1]
    words = f"The signal through {record.model}: {value_words('forward', first.rms)} to {value_words('', last.rms)}"
    return one_line(words + f"; {value_words('gradient', last.gradient)} back to {value_words('', first.gradient)}")
