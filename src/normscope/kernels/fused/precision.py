"""When float32 will do, and how far its sums may go before float64 takes over."""

from normscope.kernels.fused.compiler import compiled

PIECE = 128
"""Numbers that are summed in float32, in the many lanes of a vector, before the sum goes on in float64."""


@compiled
def is_plain(mean, square, count):
    """Whether results can be computed in float32 with factors of two parts, and lose less than torch's do.

    Not where statistics are over few numbers, whose parts in a gradient are as large as the gradient; where the mean
    is far from zero, and the numbers lose their digits against it; and where squares may leave float32's range.
    """
    return count >= 64 and 1e-30 < square < 1e30 and mean * mean <= 16 * square
