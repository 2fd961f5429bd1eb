"""Axis scales: map values to pixels and choose ticks."""

import math
import sys
from dataclasses import dataclass, replace

_LEAST, _GREATEST = math.ulp(0.0), sys.float_info.max


@dataclass(frozen=True)
class Scale:
    """A linear or logarithmic map from values to pixels.

    Args:
        low, high: values at the ends; above zero on a log scale.
        start, end: pixels of the ends.
        log: use a logarithmic scale.

    >>> scale = Scale(0, 10, start=100, end=200)
    >>> scale.position(5), scale.ticks(5)
    (150.0, [0.0, 2.0, 4.0, 6.0, 8.0, 10.0])
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def position(self, value: float) -> float:
        if self.log:
            low, high = math.log(self.low), math.log(self.high)  # the ratio of two floats may overflow
            share = (math.log(value) - low) / (high - low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, max_ticks: int) -> list[float]:
        """Round values on the scale, about `max_ticks` of them."""
        return _log_ticks(self.low, self.high, max_ticks) if self.log else _linear_ticks(self.low, self.high, max_ticks)


def fit_scale(values: list[float], start: float, end: float, *, log: bool = False, margin: float = 0.05) -> Scale:
    """Fit a scale to the values, with a margin at both ends.

    >>> fit_scale([2.0, 2.0], 0, 100)
    Scale(low=1.5, high=2.5, start=0, end=100, log=False)
    """
    known = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
    low, high = (min(known), max(known)) if known else (1.0, 2.0)
    if log:
        factor = max(math.exp(margin * (math.log(high) - math.log(low))), 1.0001) if high > low else 2.0
        return Scale(max(low / factor, _LEAST), min(high * factor, _GREATEST), start, end, log=True)
    extra = (high - low) * margin if high - low > 1e-9 * max(abs(high), abs(low)) else max(abs(high) / 4, 1e-9)
    return Scale(low - extra, high + extra, start, end)


def extend_to_tick(scale: Scale, values: list[float], max_ticks: int) -> Scale:
    """Extend the scale, if needed, so that it has a tick at or below the smallest value.

    >>> extend_to_tick(Scale(0.9, 3.1, 0, 100), [1.2, 3.0], 5).low  # already has a tick at 1
    0.9
    >>> extend_to_tick(Scale(1.2, 3.1, 0, 100), [1.3, 3.0], 5).low
    1.0
    """
    known = [value for value in values if math.isfinite(value) and (value > 0 or not scale.log)]
    for _ in range(9):  # a longer scale may have wider steps and lose the tick
        ticks = scale.ticks(max_ticks)
        if not known or (ticks and ticks[0] <= min(known)):
            break
        scale = replace(scale, low=_lower(scale, max_ticks))
    return scale


def _lower(scale: Scale, max_ticks: int) -> float:
    """The next round number below the scale."""
    if not scale.log:
        step = _step(scale.low, scale.high, max_ticks)
        return math.floor(scale.low / step + 1e-9) * step
    decade = math.floor(math.log10(scale.low))
    round_ones = [float(f"{factor}e{power}") for power in (decade - 1, decade) for factor in (1, 2, 3, 5)]
    return max((one for one in round_ones if 0 < one < scale.low), default=scale.low)


def tick_label(value: float) -> str:
    """Format a tick value compactly.

    >>> [tick_label(v) for v in (0.0, 0.25, 2.0, 1500.0, 20000.0, 3e6, 1e-4, 2.5e-5)]
    ['0', '0.25', '2', '1500', '20k', '3M', '1e-4', '2.5e-5']
    """
    size = abs(value)
    if size != 0 and size < 1e-3:
        mantissa, exponent = f"{value:e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    for unit, one in (("M", 1e6), ("k", 1e3)):
        if size >= 10 * one or (unit == "M" and size >= one):
            return f"{value / one:g}{unit}"
    return f"{value:g}"


def _linear_ticks(low: float, high: float, max_ticks: int) -> list[float]:
    step = _step(low, high, max_ticks)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(number * step, 12 - math.floor(math.log10(step))) for number in range(first, last + 1)]


def _step(low: float, high: float, max_ticks: int) -> float:
    """A round step for about `max_ticks` ticks."""
    rough = (high - low) / max(1, max_ticks)
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))


def _log_ticks(low: float, high: float, max_ticks: int) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        ticks = [float(f"{factor}e{decade}") for decade in decades for factor in factors]
        inside = [tick for tick in ticks if low <= tick <= high]
        if len(inside) <= max_ticks:
            break
    if len(inside) < 2:  # within one decade, use linear ticks
        return _linear_ticks(low, high, max_ticks)
    return inside[:: math.ceil(len(inside) / max_ticks)]
