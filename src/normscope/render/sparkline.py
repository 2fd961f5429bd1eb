"""Sparklines: curves of block characters."""

import math
from collections.abc import Sequence
from itertools import pairwise

BLOCKS = " ▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int, height: int = 1) -> list[str]:
    """Draw values as rows of block characters, top row first; more than `width` values are averaged in bins.

    The minimum gets the lowest block, so that it is visible. Non-finite values leave a gap.

    >>> sparkline([1, 2, 3, 4, 5, 6, 7, 8], width=8)
    ['▁▂▃▄▅▆▇█']
    >>> sparkline([8, 4, 2, 1], width=4, height=2)
    ['█   ', '█▇▃▁']
    """
    if width < 1 or height < 1:
        return []
    means = _bin_means(values, width)
    known = [mean for mean in means if math.isfinite(mean)]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    top = 8 * height
    # Halved first: the difference of two very large numbers could overflow.
    span = high / 2 - low / 2
    levels = [
        0 if not math.isfinite(mean) else 1 + round((top - 1) * ((mean / 2 - low / 2) / span)) if span > 0 else 1
        for mean in means
    ]
    rows = range(height - 1, -1, -1)
    return ["".join(BLOCKS[min(8, max(0, level - 8 * row))] for level in levels) for row in rows]


def _bin_means(values: Sequence[float], width: int) -> list[float]:
    """The values themselves if they fit, otherwise the means of `width` bins."""
    count = len(values)
    if count <= width:
        return list(values)
    edges = [count * i // width for i in range(width + 1)]
    return [_mean(values[start:stop]) for start, stop in pairwise(edges)]


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return sum(value / len(known) for value in known) if known else math.nan
