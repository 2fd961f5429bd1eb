"""What a norm divides by: the standard deviation, or the root mean square."""

from dataclasses import dataclass
from typing import Literal

from normscope.checks import short_repr
from normscope.errors import ConfigError

StatisticName = Literal["standardize", "rms"]
"""The values of the `statistic` argument of a norm."""


@dataclass(frozen=True)
class Statistic:
    """A way to normalize the values that share statistics.

    Args:
        name: the value of the `statistic` argument.
        centers: whether the mean is subtracted first; then the second moment is the variance, else the mean square.
        formula: what the norm computes, before the gain and the bias.
        running_buffers: the buffers of a norm that tracks running statistics: for the mean (if any) and the second
            moment.

    >>> Statistic.named("rms").centers
    False
    """

    name: StatisticName
    centers: bool
    formula: str
    running_buffers: tuple[str, ...]

    @classmethod
    def named(cls, name: "str | Statistic") -> "Statistic":
        """Look up a statistic by name; a `Statistic` passes through."""
        if isinstance(name, Statistic):
            return name
        if not isinstance(name, str) or name not in STATISTICS:
            raise ConfigError(f"statistic={short_repr(name)} is not known; choose one of {', '.join(STATISTICS)}")
        return STATISTICS[name]

    @classmethod
    def which(cls, *, centers: bool) -> "Statistic":
        """Return the statistic that subtracts the mean, or the one that does not."""
        return STANDARDIZE if centers else RMS

    def __str__(self) -> str:
        return self.name


STANDARDIZE = Statistic("standardize", True, "(x - mean) / sqrt(variance + eps)", ("running_mean", "running_var"))
RMS = Statistic("rms", False, "x / sqrt(mean(x^2) + eps)", ("running_square",))

STATISTICS: dict[str, Statistic] = {statistic.name: statistic for statistic in (STANDARDIZE, RMS)}
