"""The colours of the drawings: light enough for black letters, and told apart by most eyes."""

PALETTE = ("#8ec1f0", "#ffb870", "#93d68c", "#f59a98", "#f4d966", "#cfa9e3", "#7fd6cd", "#d3b596")


def palette_color(number: int) -> str:
    """The colour of a statistic. Colours come round again, so a drawing never relies on them alone."""
    return PALETTE[number % len(PALETTE)]


def shade(color: str, factor: float) -> str:
    """A colour made darker (below one) or lighter (above one)."""
    parts = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    mixed = (part * factor if factor <= 1 else part + (255 - part) * (factor - 1) for part in parts)
    return "#" + "".join(f"{round(part):02x}" for part in mixed)
