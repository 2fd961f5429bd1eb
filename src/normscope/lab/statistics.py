"""Intervals from a few seeds.

Variants are compared seed by seed: both saw the same data in the same order, so what the seed did to both cancels, and
the differences scatter far less than the figures. Student's t is for the mean of few of them. The bootstrap would be
too narrow: of five values it knows only five.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from normscope.errors import ConfigError


@dataclass(frozen=True)
class Interval:
    """A middle, and how far it may be off to either side.

    >>> Interval(1.0, 0.5, 1.5).width
    1.0
    """

    middle: float
    low: float
    high: float

    @property
    def width(self) -> float:
        return self.high - self.low


def confidence_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Of the mean of these values, by Student's t. A single value says nothing of its error, so it has no end.

    >>> confidence_interval([1.0, 2.0, 3.0])
    Interval(middle=2.0, low=-0.484..., high=4.484...)
    >>> confidence_interval([2.0])
    Interval(middle=2.0, low=-inf, high=inf)
    """
    _check(values)
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence={confidence!r} must be between 0 and 1, for instance 0.95")
    middle = statistics.fmean(values)
    if len(values) == 1:
        return Interval(middle, -math.inf, math.inf)
    error = standard_errors(len(values), confidence) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(middle, middle - error, middle + error)


def extremes(values: Sequence[float]) -> Interval:
    """The mean, the least and the greatest: for what has to hold every time.

    >>> extremes([1.0, 2.0, 6.0])
    Interval(middle=3.0, low=1.0, high=6.0)
    """
    _check(values)
    return Interval(statistics.fmean(values), min(values), max(values))


def standard_errors(values: int, confidence: float) -> float:
    """How many of them an interval of the mean of so many values reaches to either side.

    >>> round(standard_errors(5, 0.95), 2)
    2.78
    """
    return _student((1 + confidence) / 2, values - 1)


def _student(share: float, freedom: int) -> float:
    """The value that Student's t stays below with this probability."""
    try:
        from scipy.stats import t  # it takes a while to load, and comes with the extra `lab`
    except ImportError:
        raise ConfigError("intervals need SciPy\nfix: pip install 'normscope[lab]'") from None
    return float(t.ppf(share, freedom))


def _check(values: Sequence[float]) -> None:
    if not values:
        raise ConfigError("an interval needs a value or more, but there are none")
    if not all(math.isfinite(value) for value in values):
        raise ConfigError(f"an interval needs finite values, but got {list(values)}")
