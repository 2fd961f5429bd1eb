"""When float32 arithmetic is accurate enough, and how long float32 sums may be."""

import numpy as np

from normscope.ops.fused.compiler import compiled, fma

CHUNK = 128
"""The number of values that are summed in float32 before the sum continues in float64."""


@compiled
def is_float32_safe(mean, square, count):
    """Return whether float32 with two-part (high, low) factors is at least as accurate as torch's layers.

    Not for statistics over few values, where each contributes much to the gradient; not if the mean is large compared
    to the spread, which cancels digits; and not if squares may leave the range of float32.
    """
    return count >= 64 and 1e-30 < square < 1e30 and mean * mean <= 16 * square


@compiled
def low_part(s, s_low, weight, high):
    """Return the rounding error of `high` as float32 of (s + s_low) * weight; 0 if it is infinite."""
    low = fma(s_low, weight, fma(s, weight, -high))
    return low if low == low else np.float32(0.0)
