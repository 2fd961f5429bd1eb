"""Statistics that a record stores: of tensors, units, attention, residual additions and norms."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TensorStats:
    """Statistics of a tensor over all calls and batches. Non-finite values are counted but otherwise excluded.

    Args:
        count: number of finite values.
        mean, rms, variance: of the finite values.
        min, max: extremes; 0 if there are no values.
        kurtosis: 3 for a normal distribution, more with outliers.
        zeros, non_finite: fraction of zeros, and of NaN and Inf.
    """

    count: int
    mean: float
    rms: float
    variance: float
    min: float
    max: float
    kurtosis: float
    zeros: float
    non_finite: float

    @property
    def abs_max(self) -> float:
        """Largest absolute value."""
        return max(abs(self.min), abs(self.max))


@dataclass(frozen=True)
class UnitStats:
    """Statistics per unit of an activation, or per input feature of a linear layer.

    Args:
        count: number of units.
        samples: values seen per unit.
        dead: units that were always zero.
        saturated: units that were always saturated; None if the function does not saturate.
        median_rms: median over the units of their rms.
        outliers: the largest units as (index, rms, abs max), largest first.
        input_module: if the activation is used in several places, the module that feeds it in the place these
            statistics are from, the one with the most inactive units; otherwise None.
    """

    count: int
    samples: int
    dead: int
    saturated: int | None
    median_rms: float
    outliers: tuple[tuple[int, float, float], ...]
    input_module: str | None = None


@dataclass(frozen=True)
class AttentionStats:
    """How concentrated attention is, over a sample of the queries.

    Args:
        heads: number of heads.
        keys: largest number of keys visible to a query.
        entropy: for each head, the mean of entropy / ln(visible keys): 1 is uniform, 0 is a single key.
        peaked: for each head, the fraction of queries that put more than 99% of their weight on one key.
        score_std: standard deviation of the scores before softmax, if they could be observed.
        future_weight: the largest weight on a later key; None if unknown.
    """

    heads: int
    keys: int
    entropy: tuple[float, ...]
    peaked: tuple[float, ...]
    score_std: float | None
    future_weight: float | None


@dataclass(frozen=True)
class ResidualJoin:
    """The addition of a branch to the residual stream.

    Args:
        stream, branch, total: rms of the stream, of the branch, and of the sum.
        stream_source, branch_source: the modules that produced the two, if known.
        post_norm: the norm that reads the sum and whose output is the stream from there on; None without one.
    """

    stream: float
    branch: float
    total: float
    stream_source: str | None
    branch_source: str | None
    post_norm: str | None = None


@dataclass(frozen=True)
class NormStats:
    """Statistics of a normalization layer.

    Args:
        eps: the eps under the root; None if unknown.
        input_variance: the variance (without centering, the mean square) that eps is added to: the median over the
            groups of the reduction, as far as it could be measured, otherwise of the whole input.
        reduced_axes: input axes along which changing one position affects the output at others, found by experiment;
            None if not tried.
        removes_bias: whether adding a constant to each channel leaves the output unchanged, found by experiment.
        reduction_size: number of values per mean, median over the calls; None if unknown.
        drift: how far the running statistics are from those of the recorded batches, for the median channel: the mean
            in standard deviations, the variance as a ratio (1 or more); None without running statistics.
        batches_tracked: number of batches in the running statistics; None without them.
        padding_fraction: fraction of positions at the ends of sequences of unequal length whose features are all equal.
        weight_mean, weight_std: of its weight; None without one.
        finite_for_zeros: whether an all-zero input gives a finite output in its dtype, found by experiment: eps does
            not round to zero.
        momentum: weight of a new batch in the running statistics; None without them, or for a plain average.
    """

    eps: float | None
    input_variance: float
    reduced_axes: tuple[int, ...] | None
    removes_bias: bool | None
    reduction_size: int | None
    drift: tuple[float, float] | None
    batches_tracked: int | None
    padding_fraction: float
    weight_mean: float | None
    weight_std: float | None
    finite_for_zeros: bool | None = None
    momentum: float | None = None
