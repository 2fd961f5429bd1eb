"""Heat map of attention entropy: a column per layer, a row per head, darker for more uniform attention."""

from collections.abc import Sequence
from dataclasses import dataclass

from normscope.diagnostics.record import AttentionStats
from normscope.render.axis_scale import Scale
from normscope.render.chart_axes import text
from normscope.render.chart_panels import LEFT, TITLE
from normscope.render.formatting import format_number
from normscope.render.svg import element, escape

MAX_HEADS = 32
"""With more heads, each row is the mean of several."""


@dataclass(frozen=True)
class AttentionColumn:
    """An attention layer: its name, the first and last position of its column, and its statistics."""

    name: str
    first: float
    last: float
    attention: AttentionStats


def draw_attention_map(layers: Sequence[AttentionColumn], x: Scale, top: float) -> tuple[list[str], float]:
    """Draw the map with its title at `top`, along the shared x axis; also returns where it ends."""
    most = max(min(layer.attention.heads, MAX_HEADS) for layer in layers)
    tall = (
        18 if most <= 8 else 15 if most <= 12 else 11 if most <= 16 else 7
    )  # with few heads there is space for numbers
    body = [_title(top)]
    for layer in layers:
        left, right = x.position(layer.first - 0.47), x.position(layer.last + 0.47)
        for row, (heads, entropy, peaked) in enumerate(_groups(layer.attention)):
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


def _title(top: float) -> str:
    steps = [element("tspan", "■", class_="step", dx=0 if i else 6, style=_opacity(i / 5)) for i in range(6)]
    name = element("tspan", "Attention entropy per head", class_="name")
    scale = [element("tspan", "0: one token", dx=14), *steps, element("tspan", "1: uniform", dx=6)]
    return element("text", name, *scale, x=LEFT, y=f"{top + 16:g}")


def _opacity(strength: float) -> str:
    return f"fill-opacity:{0.04 + 0.96 * strength:.2f}"


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
