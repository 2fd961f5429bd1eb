"""Heat map of attention entropy: a column per layer, a row per head, darker for more uniform attention."""

from collections.abc import Sequence
from dataclasses import dataclass

from normscope.diagnostics.record import AttentionStats
from normscope.diagnostics.report.panels import LEFT, TITLE, text
from normscope.render.axis_scale import Scale
from normscope.render.formatting import format_number
from normscope.render.svg import escape

MAX_HEADS = 32
"""With more heads, each row is the mean of several."""


@dataclass(frozen=True)
class AttentionColumn:
    """An attention layer: its name, the first and last position of its column, and its statistics."""

    name: str
    first: float
    last: float
    attention: AttentionStats


def attention_map_height(layers: Sequence[AttentionColumn]) -> float:
    rows = max((min(layer.attention.heads, MAX_HEADS) for layer in layers), default=0)
    return rows * _row(rows)


def draw_attention_map(layers: Sequence[AttentionColumn], x: Scale, top: float) -> list[str]:
    """Draw the map with its title at `top`, along the shared x axis."""
    body = [_title(top)]
    most = max(min(layer.attention.heads, MAX_HEADS) for layer in layers)
    tall = _row(most)
    for layer in layers:
        name, groups = layer.name, _groups(layer.attention)
        left, wide = x.position(layer.first - 0.47), x.position(layer.last + 0.47) - x.position(layer.first - 0.47)
        for row, (heads, entropy, sharp) in enumerate(groups):
            y = top + TITLE + row * tall
            words = f"{name}\n{heads}\nentropy {format_number(entropy)} of the maximum"
            words += f"\n{sharp:.0%} of queries attend to a single token"
            strength = min(1.0, max(0.0, entropy)) if entropy == entropy else 0.0
            body.append(
                f'<rect class="cell" x="{left:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{tall - 1:g}" '
                f'style="fill-opacity:{0.04 + 0.96 * strength:.2f}"><title>{escape(words)}</title></rect>'
            )
            if wide >= 34 and tall >= 14:
                kind = "on" if strength > 0.55 else "off"
                body.append(text(left + wide / 2, y + tall / 2 + 3.5, f"{entropy:.2f}", "middle", kind=kind))
    every = max(1, round(14 / tall))
    rows = [text(LEFT - 7, top + TITLE + (row + 0.5) * tall + 3.5, str(row), "end") for row in range(0, most, every)]
    return body + rows


def _title(top: float) -> str:
    steps = "".join(
        f'<tspan class="step" dx="{0 if i else 6}" style="fill-opacity:{0.04 + 0.96 * i / 5:.2f}">■</tspan>'
        for i in range(6)
    )
    return (
        f'<text x="{LEFT}" y="{top + 16:g}"><tspan class="name">Attention entropy per head</tspan>'
        f'<tspan dx="14">0: one token</tspan>{steps}<tspan dx="6">1: uniform</tspan></text>'
    )


def _groups(attention: AttentionStats) -> list[tuple[str, float, float]]:
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


def _row(heads: int) -> float:
    """Height of a row; with few heads there is space for numbers."""
    return 18 if heads <= 8 else 15 if heads <= 12 else 11 if heads <= 16 else 7
