"""When float32 will do, and how far its sums may go before float64 takes over."""

import numpy as np

from normscope.ops.fused.compiler import compiled, fma

CHUNK = 128
"""Numbers that are summed in float32, in the many lanes of a vector, before the sum goes on in float64."""


@compiled
def is_float32_safe(mean, square, count):
    """Whether results can be computed in float32 with factors of two parts, and lose less than torch's do.

    Not where statistics are over few numbers, whose parts in a gradient are as large as the gradient; where the mean
    is far from zero, and the numbers lose their digits against it; and where squares may leave float32's range.
    """
    return count >= 64 and 1e-30 < square < 1e30 and mean * mean <= 16 * square


@compiled
def low_part(s, s_low, weight, high):
    """What (s + s_low) weight has beyond `high`, its nearest float32; nothing where that is infinite."""
    low = fma(s_low, weight, fma(s, weight, -high))
    return low if low == low else np.float32(0.0)
