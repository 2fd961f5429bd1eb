"""The figures that a record is made of: of numbers, of units, of attention, of joins, of norms."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TensorStats:
    """The figures of some numbers, over all calls and batches. Those that are not finite are counted and left out.

    Args:
        count: how many finite numbers there were.
        mean, rms, variance: theirs.
        least, greatest: the extremes; 0 if there were no numbers.
        kurtosis: 3 for a normal distribution, more where a few numbers stick out.
        zeros, unreal: the share that is zero; the share that is infinite or not a number.
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
        """The largest size."""
        return max(abs(self.min), abs(self.max))


@dataclass(frozen=True)
class UnitStats:
    """The units of an activation, or the features that a linear layer reads: one for each place of an axis.

    Args:
        count: how many there are.
        seen: how many values of each.
        dead: how many were zero all the time.
        saturated: how many were at the flat ends of their function all the time; None if it has none.
        median_rms: the middle one of their sizes.
        outliers: the largest ones: their number, their rms and their largest size, the largest first.
        after: where the activation stands at several places, the one that feeds it at the place these are from, which
            is the one with the most units that do nothing; else None.
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
    """How sharply tokens looked at others, over a sample of the queries.

    Args:
        heads: how many.
        keys: the most keys that a query could see.
        entropy: of each head, the mean of entropy / ln(keys that are seen): 1 looks everywhere alike, 0 at one token.
        sharpest: the share of queries that give more than 99% to one key, of each head.
        spread: the standard deviation of the scores that softmax was given, where they could be seen.
        future: the largest weight that a query gave to a later key; None where that cannot be told.
    """

    heads: int
    keys: int
    entropy: tuple[float, ...]
    peaked: tuple[float, ...]
    score_std: float | None
    future_weight: float | None


@dataclass(frozen=True)
class ResidualJoin:
    """A place where a branch is added to the stream that goes round it.

    Args:
        stream, branch, total: the rms of what was there, of what was added, of the sum.
        from_stream, from_branch: the modules that made the two, if known.
        normalized: the norm that the sum goes into, and whose output is the stream from there on; None for none.
    """

    stream: float
    branch: float
    total: float
    stream_source: str | None
    branch_source: str | None
    post_norm: str | None = None


@dataclass(frozen=True)
class NormStats:
    """What is particular to a normalization layer.

    Args:
        eps: what it adds under the root; None if it is not known.
        input_variance: the variance (or, if it does not centre, the mean square) that eps is added to: the median
            over the groups that share a statistic, as far as it could be measured; else of the whole input.
        shares: the axes of the input along which a change at one place moves the output at others, found by trying;
            None where it was not tried.
        removes_bias: whether a constant added to each channel leaves the output as it was, found by trying.
        values: how many numbers share one statistic, in the middle one of the calls; None if not known.
        drift: how far the running statistics are from those of the batches that were seen, in the middle one of its
            channels: in standard deviations for the mean, as a ratio (1 or more) for the variance; None if it keeps
            none.
        tracked: how many batches its running statistics have seen; None if it keeps none.
        padding: the share of places whose features are all alike at the end of texts of unequal length.
        gain_mean, gain_spread: of its weight; None if it has none.
        bears_silence: whether zeros come out finite, in the type of its input, found by trying: eps has not rounded
            away.
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
