"""Smooth and downsample curves for charts."""

import math
from collections.abc import Sequence
from itertools import accumulate

Point = tuple[float, float]


def smooth(points: Sequence[Point]) -> list[Point]:
    """Smooth with a centered moving average.

    The window is small at the start, where a curve falls fast, and up to two hundred points later. Non-finite values
    are dropped.

    >>> smooth([(1, 9.0), (2, 6.0), (3, 5.0), (4, 4.0), (5, 3.0), (6, 5.0)])
    [(1, 9.0), (2, 6.0), (3, 5.0), (4, 4.0), (5, 4.0), (6, 4.0)]
    """
    known = [(x, y) for x, y in points if math.isfinite(y)]
    sums = [0.0, *accumulate(y for _, y in known)]
    most = min(max(len(known) // 50, 2), 100)
    smoothed = []
    for i, (x, _) in enumerate(known):
        reach = min(most, i // 4)
        start, stop = i - reach, min(i + reach + 1, len(known))
        smoothed.append((x, (sums[stop] - sums[start]) / (stop - start)))
    return smoothed


def downsample(points: Sequence[Point], most: int, *, log_x: bool = False) -> list[Point]:
    """Keep at most `most` points, in order: the minimum and maximum of each bin, so that no peak is lost.

    Bins have equal width on the axis; on a log axis, x must be above zero.

    >>> downsample([(1, 0.0), (2, 5.0), (3, 1.0), (4, 1.0), (5, -2.0), (6, 1.0)], most=4)
    [(1, 0.0), (2, 5.0), (4, 1.0), (5, -2.0)]
    """
    if len(points) <= most:
        return list(points)
    places = [math.log(x) if log_x else x for x, _ in points]
    bins = max(1, most // 2)
    length = (places[-1] - places[0]) / bins or 1.0
    lowest: dict[int, int] = {}
    highest: dict[int, int] = {}
    for k, (_, y) in enumerate(points):
        if math.isfinite(y):
            bin_ = min(bins - 1, int((places[k] - places[0]) / length))
            if y < points[lowest.setdefault(bin_, k)][1]:
                lowest[bin_] = k
            if y > points[highest.setdefault(bin_, k)][1]:
                highest[bin_] = k
    return [points[k] for k in sorted({*lowest.values(), *highest.values()})]


def drops_early(points: Sequence[Point]) -> bool:
    """Whether half of the decrease happens in the first twentieth, so that a log axis is needed to see it.

    >>> drops_early([(x, 1 / x) for x in range(1, 1000)]), drops_early([(x, -x) for x in range(1, 1000)])
    (True, False)
    """
    if len(points) < 100:
        return False
    first, early, last = points[0][1], points[len(points) // 20][1], points[-1][1]
    return first > last and first - early > (first - last) / 2


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which this fraction of the values lies.

    >>> quantile([3.0, 1.0, 2.0], 0.5)
    2.0
    """
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
