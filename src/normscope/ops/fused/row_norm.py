"""Norms over contiguous rows: LayerNorm, RMSNorm, and other row norms.

A few rows that fit into the cache are processed at a time: first their sums, then their scales, then the results, so
each row is read from memory once. The input and the mean of each row are saved for the backward pass, which recomputes
the variance together with its own sums.

The precision is chosen per row (see `accumulation.py`):
- fast: float32, with the factor of each value split into a high and a low part, so that little more than the final
  rounding is lost; more accurate than torch's layers.
- float64, where float32 would lose digits or overflow.

Every row is computed the same way, whatever the number of rows or threads, so results are deterministic.
"""

import math

import numpy as np

from normscope.ops.fused.accumulation import is_float32_safe, low_part
from normscope.ops.fused.compiler import byte_at, compiled, float32_at, float64_at, fma, stack_buffer, vectorize
from normscope.ops.fused.parallel import run_parallel, share
from normscope.ops.fused.vector_loops import add, fill

MAX_ROWS = 8  # maximum number of rows processed together
_workspace = stack_buffer(3 * MAX_ROWS)


@compiled
def rows_per_pass(d):
    """Return the number of rows processed together: three copies must fit into the L1 cache."""
    return MAX_ROWS if d <= 192 else 4 if d <= 768 else 1


@compiled
def _measure(x, means, squares, rows, d, centered):
    """Sum each row and its squares, shifted by the first value if centered."""
    vectorize()
    for i in range(rows):
        # The first value is within sqrt(d) standard deviations of the mean, so the difference of squares keeps enough
        # digits in float64.
        pivot = np.float64(x[i * d]) if centered else 0.0
        total, square = 0.0, 0.0
        for j in range(d):
            value = np.float64(x[i * d + j]) - pivot
            total += value
            square += value * value
        means[i], squares[i] = total, square


@compiled
def _finalize(x, means, squares, scales, rows, d, eps, centered):
    vectorize()
    for i in range(rows):
        pivot = np.float64(x[i * d]) if centered else 0.0
        off, square = means[i] / d if centered else 0.0, squares[i]
        means[i] = pivot + off
        squares[i] = max(square / d - off * off, 0.0) if square == square else square
        scales[i] = 1.0 / math.sqrt(squares[i] + eps)


@compiled
def _standardize(x, weight, bias, y, means, squares, scales, rows, d, has_shift):
    """Compute y = (x - mean) scale weight + bias; `has_shift` is False if there is neither mean nor bias."""
    vectorize()
    for i in range(rows):
        at, mean, scale = i * d, means[i], scales[i]
        if is_float32_safe(mean, squares[i], d):
            s = np.float32(scale)
            s_low, off = np.float32(scale - s), np.float32(-mean * scale)
            if has_shift:
                for j in range(d):
                    y[at + j] = fma(fma(x[at + j], s, fma(x[at + j], s_low, off)), weight[j], bias[j])
            else:
                for j in range(d):
                    high = s * weight[j]
                    low = low_part(s, s_low, weight[j], high)
                    y[at + j] = fma(x[at + j], high, x[at + j] * low)
        else:
            for j in range(d):
                y[at + j] = (np.float64(x[at + j]) - mean) * scale * weight[j] + bias[j]


@compiled
def mask_run_length(mask, first, last):
    """Return the length of the run of equal mask values that starts at `first`."""
    count = 1
    while first + count < last and byte_at(mask)[first + count] == byte_at(mask)[first]:
        count += 1
    return count


@compiled
def _forward_part(
    part, parts, x, branch, total, weight, bias, mask, y, means, rows, d, eps, centered, has_mask, has_residual,
    has_shift,
):  # fmt: skip
    """Compute y for the rows of one thread."""
    mine, few, workspace = share(part, parts, rows), rows_per_pass(d), _workspace()
    squares, scales, zeros = float64_at(workspace), float64_at(workspace, few), float64_at(workspace, 2 * few)
    i, last = mine.start, mine.stop
    while i < last:
        at, count = i * d, min(few, last - i)
        xs, ys = float32_at(x, at), float32_at(y, at)
        if has_residual:
            add(xs, float32_at(branch, at), float32_at(total, at), count * d)
            xs = float32_at(total, at)
        if has_mask:
            count = mask_run_length(mask, i, i + count)
        if has_mask and byte_at(mask)[i] == 0:
            fill(ys, np.float32(0.0), count * d)
        else:
            centers = float64_at(means, i) if centered else zeros
            _measure(xs, centers, squares, count, d, centered)
            _finalize(xs, centers, squares, scales, count, d, eps, centered)
            _standardize(
                xs, float32_at(weight), float32_at(bias), ys, centers, squares, scales, count, d, centered or has_shift
            )
        i += count


@compiled
def forward(pool, arrays, options):
    """Compute y and, if centered, the row means, of x or of total = x + branch.

    Args:
        arrays: addresses of x, branch, total, weight, bias, mask, y and means.
        options: rows, d, eps, centered, has_mask, has_residual, has_shift.
    """
    run_parallel(pool, _forward_part, arrays + options)
