"""What a norm divides by: the standard deviation, or the root mean square."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from normscope.checks import short_repr
from normscope.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

StatisticName = Literal["standardize", "rms"]
"""The values of the `statistic` argument of a norm."""


def _square(x: "Tensor") -> "Tensor":
    return x.square()


def _inverse_root(moment: "Tensor", eps: float) -> "Tensor":
    return (moment + eps).rsqrt()


@dataclass(frozen=True)
class Statistic:
    """A way to normalize the values that share statistics, by its formulas:

        center = mean(x), or 0        moment = mean(of_each(x - center))        y = (x - center) * factor(moment, eps)

    Args:
        name: the value of the `statistic` argument.
        centers: whether the mean is subtracted first.
        formula: what the norm computes, before the weight and the bias.
        running_buffers: the buffers of a norm that tracks running statistics: for the mean (if any) and the moment.
            Empty if the statistic cannot be tracked.
        of_each: function of each centered value whose mean is the moment; by default the square.
        factor: (moment, eps) -> what centered values are multiplied with; by default 1 / sqrt(moment + eps).
        has_kernels: whether torch's norms and the fused kernels compute it. If not, norms run the reference, which
            follows the formulas.

    >>> Statistic.named("rms").centers
    False
    """

    name: str
    centers: bool
    formula: str
    running_buffers: tuple[str, ...] = ()
    of_each: Callable[["Tensor"], "Tensor"] = _square
    factor: Callable[["Tensor", float], "Tensor"] = _inverse_root
    has_kernels: bool = False

    @classmethod
    def named(cls, name: "str | Statistic") -> "Statistic":
        """Look up a statistic by name; a `Statistic` passes through."""
        if isinstance(name, Statistic):
            return name
        if not isinstance(name, str) or name not in STATISTICS:
            raise ConfigError(f"statistic={short_repr(name)} is not known; choose one of {', '.join(STATISTICS)}")
        return STATISTICS[name]

    @classmethod
    def of_kernel(cls, *, centered: bool) -> "Statistic":
        """Return the statistic that a kernel computes."""
        return STANDARDIZE if centered else RMS

    def __str__(self) -> str:
        return self.name


STANDARDIZE = Statistic(
    "standardize",
    centers=True,
    formula="(x - mean) / sqrt(variance + eps)",
    running_buffers=("running_mean", "running_var"),
    has_kernels=True,
)
RMS = Statistic(
    "rms",
    centers=False,
    formula="x / sqrt(mean(x^2) + eps)",
    running_buffers=("running_square",),
    has_kernels=True,
)

STATISTICS: dict[str, Statistic] = {statistic.name: statistic for statistic in (STANDARDIZE, RMS)}
