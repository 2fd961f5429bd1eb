"""Downsampling of curves."""

from collections.abc import Sequence
from itertools import pairwise

POINTS = 40


def thinned(values: Sequence[float], points: int = POINTS) -> list[tuple[int, float]]:
    """Average equal segments, each placed at its middle step, counted from 1.

    >>> thinned([4.0, 2.0, 1.0, 1.0], points=2)
    [(1, 3.0), (3, 1.0)]
    """
    count = min(points, len(values))
    ends = [round(i * len(values) / count) for i in range(count + 1)] if count else []
    return [((start + end + 1) // 2, sum(values[start:end]) / (end - start)) for start, end in pairwise(ends)]
