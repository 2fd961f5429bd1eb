"""Confidence intervals from a few seeds.

Variants are compared seed by seed: both saw the same data in the same order, so common seed effects cancel, and the
differences scatter far less than the metrics. Student's t accounts for the small number of seeds; the bootstrap would
be too narrow for five values.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from normscope.errors import ConfigError


@dataclass(frozen=True)
class Interval:
    """A point estimate and its bounds.

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
    """Student's t interval of the mean. A single value has an infinite interval.

    >>> confidence_interval([1.0, 2.0, 3.0])
    Interval(middle=2.0, low=-0.484..., high=4.484...)
    >>> confidence_interval([2.0])
    Interval(middle=2.0, low=-inf, high=inf)
    """
    _check(values)
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence={confidence!r} must be between 0 and 1, such as 0.95")
    middle = statistics.fmean(values)
    if len(values) == 1:
        return Interval(middle, -math.inf, math.inf)
    error = standard_errors(len(values), confidence) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(middle, middle - error, middle + error)


def extremes(values: Sequence[float]) -> Interval:
    """Mean, minimum and maximum: for what has to hold for every seed.

    >>> extremes([1.0, 2.0, 6.0])
    Interval(middle=3.0, low=1.0, high=6.0)
    """
    _check(values)
    return Interval(statistics.fmean(values), min(values), max(values))


def standard_errors(values: int, confidence: float) -> float:
    """Half width of the interval of a mean of this many values, in standard errors.

    >>> round(standard_errors(5, 0.95), 2)
    2.78
    """
    return _student_quantile((1 + confidence) / 2, values - 1)


def _student_quantile(probability: float, degrees: int) -> float:
    try:
        from scipy.stats import t  # slow to import, and part of the extra `lab`
    except ImportError:
        raise ConfigError("confidence intervals need SciPy\nfix: pip install 'normscope[lab]'") from None
    return float(t.ppf(probability, degrees))


def _check(values: Sequence[float]) -> None:
    if not values:
        raise ConfigError("an interval needs at least one value, got none")
    if not all(math.isfinite(value) for value in values):
        raise ConfigError(f"an interval needs finite values, got {list(values)}")
