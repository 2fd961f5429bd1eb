"""Norms whose statistics are each over one row of contiguous memory: LayerNorm, RMSNorm, and others without a gain.

Rows are taken a few at a time, as many as the cache holds: first the sums of each, then their scales, then the results.
So a row is read from memory once. The input and each row's mean are kept for the backward pass, which takes the
variance again beside its own sums.

Two forms of the results, chosen row by row (see `precision.py`):
- plain: in float32, but with the factor of each number in two parts, high and low, so that little more than the
  rounding of the result is lost; less than in torch's layers.
- careful: in float64, where float32 would lose digits or leave its range.

Every row is computed alike, whatever the number of rows or threads. So the same input gives the same bits, always.
"""

import math

import numpy as np

from normscope.ops.fused.accumulation import is_float32_safe, low_part
from normscope.ops.fused.compiler import byte_at, compiled, float32_at, float64_at, fma, stack_buffer, vectorize
from normscope.ops.fused.parallel import run_parallel
from normscope.ops.fused.vector_loops import add, fill

MAX_ROWS = 8  # rows that are taken together at most
_workspace = stack_buffer(3 * MAX_ROWS)


@compiled
def rows_per_pass(d):
    """How many rows are taken together: not more than the cache nearest to the processor holds three times."""
    return MAX_ROWS if d <= 192 else 4 if d <= 768 else 1


@compiled
def _measure(x, means, squares, rows, d, centered):
    """The mean of each row, and the mean square around it; around zero if it is not centred."""
    vectorize()
    for i in range(rows):
        # Around the first value, which lies within sqrt(d) deviations of the mean: the difference of squares keeps its
        # digits, of which float64 has nine more than float32.
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
    """y = (x - mean) scale weight + bias; nothing is shifted where there is neither a mean nor a bias."""
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
    """How many rows from the first one on are, like it, real or padding."""
    count = 1
    while first + count < last and byte_at(mask)[first + count] == byte_at(mask)[first]:
        count += 1
    return count


@compiled
def _forward_part(
    part, parts, x, branch, total, weight, bias, mask, y, means, rows, d, eps, centered, has_mask, has_residual,
    has_shift,
):  # fmt: skip
    """y of the rows that fall to one thread."""
    i, last, few = rows * part // parts, rows * (part + 1) // parts, rows_per_pass(d)
    workspace = _workspace()
    squares, scales, zeros = float64_at(workspace), float64_at(workspace + 8 * few), workspace + 16 * few
    while i < last:
        count, xs, ys = min(few, last - i), float32_at(x + 4 * i * d), float32_at(y + 4 * i * d)
        if has_residual:
            add(xs, float32_at(branch + 4 * i * d), float32_at(total + 4 * i * d), count * d)
            xs = float32_at(total + 4 * i * d)
        if has_mask:
            count = mask_run_length(mask, i, i + count)
        if has_mask and byte_at(mask)[i] == 0:
            fill(ys, np.float32(0.0), count * d)
        else:
            centers = float64_at(means + 8 * i if centered else zeros)
            _measure(xs, centers, squares, count, d, centered)
            _finalize(xs, centers, squares, scales, count, d, eps, centered)
            _standardize(
                xs, float32_at(weight), float32_at(bias), ys, centers, squares, scales, count, d, centered or has_shift
            )
        i += count


@compiled
def forward(
    threads, fork, number, team, x, branch, total, weight, bias, mask, y, means, rows, d, eps, centered, has_mask,
    has_residual, has_shift,
):  # fmt: skip
    """y and, if centred, the mean of all rows; if a branch is added, of x + branch, which is the total.

    Arrays are given by their addresses.
    """
    run_parallel(
        threads, fork, number, team, _forward_part,
        (x, branch, total, weight, bias, mask, y, means, rows, d, eps, centered, has_mask, has_residual, has_shift),
    )  # fmt: skip
