"""Colors of drawings: light enough for black text, and distinguishable with most color vision."""

PALETTE = ("#8ec1f0", "#ffb870", "#93d68c", "#f59a98", "#f4d966", "#cfa9e3", "#7fd6cd", "#d3b596")


def palette_color(number: int) -> str:
    """The color with this index. Colors repeat, so a drawing never relies on color alone."""
    return PALETTE[number % len(PALETTE)]


def shade(color: str, factor: float) -> str:
    """Darken (factor below 1) or lighten (above 1) a color."""
    parts = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    mixed = (part * factor if factor <= 1 else part + (255 - part) * (factor - 1) for part in parts)
    return "#" + "".join(f"{round(part):02x}" for part in mixed)
