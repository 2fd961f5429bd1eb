"""Backward pass of LayerNorm, RMSNorm and other norms over contiguous rows; see `row_norm.py` for the forward pass.

With xhat = (x - mean) scale and v = dy weight: dx = scale (v - mean(v) - xhat mean(v xhat)). RMSNorm subtracts no mean,
so there xhat = x scale, and mean(v) is left out. The gradients of weight and bias are sums over all rows: four rows at
a time in float32, a block of rows in float64, and all blocks in order.

Other norms have their own backward pass: RMSNorm fused with the rotary embedding (`rotary.py`), and norms with
statistics per channel or group (`channel_norm.py`, `channels_last_norm.py`).

Few, long rows, such as those of LayerNorm over whole images, are too few for blocks and too long for the cache. Threads
first split the rows, to compute the sums of each, then the columns, for everything else: the gradients of weight and
bias are column sums, and each thread owns its columns.
"""

import math
from collections import namedtuple

import numpy as np

from normscope.ops.fused.accumulation import CHUNK, is_float32_safe, low_part
from normscope.ops.fused.compiler import byte_at, compiled, float32_at, float64_at, fma, stack_buffer, vectorize
from normscope.ops.fused.parallel import run_parallel, share
from normscope.ops.fused.row_norm import MAX_ROWS, mask_run_length, rows_per_pass
from normscope.ops.fused.vector_loops import add_to, copy, fill, sum_blocks

_workspace = stack_buffer(5 * MAX_ROWS)
_WIDTH = 1024  # columns of long rows that are processed together
_strip = stack_buffer(2 * _WIDTH)
_ZERO, _ONE = np.int64(0), np.int64(1)  # a literal argument would make numba compile another specialization

_Arrays = namedtuple("_Arrays", "x weight mask means dy residual_grad dx workspace")
_Options = namedtuple("_Options", "blocks rows d eps centered needs_weight_grad needs_bias_grad has_mask has_residual")


@compiled
def _statistics(means, workspace, rows):
    """Return pointers to the means of some rows, and to their squares, scales, dots and gradient sums."""
    squares, scales = float64_at(workspace), float64_at(workspace, rows)
    return means, squares, scales, float64_at(workspace, 2 * rows), float64_at(workspace, 3 * rows)


@compiled
def _sum(x, weight, dy, statistics, rows, d):
    """Sum c c, v c and v over each row, with c = x - mean and v = dy weight."""
    vectorize()
    means, squares, _, dots, grad_sums = statistics
    for i in range(rows):
        at, mean = i * d, np.float32(means[i])
        squares[i], dots[i], grad_sums[i] = 0.0, 0.0, 0.0
        for first in range(0, d, CHUNK):
            square, dot, grad_sum = np.float32(0.0), np.float32(0.0), np.float32(0.0)
            for j in range(first, min(d, first + CHUNK)):
                c = x[at + j] - mean
                v = dy[at + j] * weight[j]
                square += c * c
                dot += v * c
                grad_sum += v
            squares[i] += square
            dots[i] += dot
            grad_sums[i] += grad_sum


@compiled
def _sum_in_float64(x, weight, dy, mean, at, d):
    vectorize()
    square, dot, grad_sum = 0.0, 0.0, 0.0
    for j in range(d):
        c = np.float64(x[at + j]) - mean
        v = np.float64(dy[at + j]) * weight[j]
        square += c * c
        dot += v * c
        grad_sum += v
    return square / d, dot / d, grad_sum / d


@compiled
def _finalize(x, weight, dy, statistics, rows, d, eps, centered):
    means, squares, scales, dots, grad_sums = statistics
    for i in range(rows):
        # The sums use the mean rounded to float32; correct for the difference.
        error, grad_sum = means[i] - np.float32(means[i]), grad_sums[i] / d
        square, dot = squares[i] / d - error * error, dots[i] / d - error * grad_sum
        if not is_float32_safe(means[i], square, d):
            square, dot, grad_sum = _sum_in_float64(x, weight, dy, means[i], i * d, d)
        scale = 1.0 / math.sqrt(square + eps)
        squares[i], scales[i] = square, scale
        dots[i], grad_sums[i] = dot * scale * scale, grad_sum if centered else 0.0


@compiled
def _gradient(x, weight, dy, dx, statistics, rows, d, columns):
    """Compute dx = scale (dy weight - grad_sum - (x - mean) dot) for some columns of rows of d numbers."""
    vectorize()
    means, squares, scales, dots, grad_sums = statistics
    for i in range(rows):
        at, mean, scale, dot, grad_sum = i * d, means[i], scales[i], dots[i], grad_sums[i]
        if is_float32_safe(mean, squares[i], d):
            s = np.float32(scale)
            s_low, factor = np.float32(scale - s), np.float32(-scale * dot)
            shift = np.float32(scale * (mean * dot - grad_sum))
            for j in range(columns):
                high = s * weight[j]
                low = low_part(s, s_low, weight[j], high)
                dx[at + j] = fma(dy[at + j], high, fma(dy[at + j], low, fma(x[at + j], factor, shift)))
        else:
            for j in range(columns):
                dx[at + j] = scale * (
                    np.float64(dy[at + j]) * weight[j] - grad_sum - (np.float64(x[at + j]) - mean) * dot
                )


@compiled
def _add_weight_grad(x, dy, dweight, statistics, rows, d, columns):
    """Add dy xhat of each row: four fast rows at a time in float32, added to the sum in float64."""
    vectorize()
    means, squares, scales, _, _ = statistics
    i = 0
    while i < rows:
        fast = i + 4 <= rows
        for k in range(i, min(i + 4, rows)):
            fast = fast and is_float32_safe(means[k], squares[k], d)
        if fast:
            s0, s1 = np.float32(scales[i]), np.float32(scales[i + 1])
            s2, s3 = np.float32(scales[i + 2]), np.float32(scales[i + 3])
            shift0, shift1 = np.float32(-means[i] * scales[i]), np.float32(-means[i + 1] * scales[i + 1])
            shift2, shift3 = np.float32(-means[i + 2] * scales[i + 2]), np.float32(-means[i + 3] * scales[i + 3])
            row0, row1, row2, row3 = i * d, (i + 1) * d, (i + 2) * d, (i + 3) * d
            for j in range(columns):
                xhat0, xhat1 = fma(x[row0 + j], s0, shift0), fma(x[row1 + j], s1, shift1)
                xhat2, xhat3 = fma(x[row2 + j], s2, shift2), fma(x[row3 + j], s3, shift3)
                first_two = fma(dy[row0 + j], xhat0, dy[row1 + j] * xhat1)
                last_two = fma(dy[row2 + j], xhat2, dy[row3 + j] * xhat3)
                dweight[j] += first_two + last_two
            i += 4
        elif is_float32_safe(means[i], squares[i], d):
            at, s, shift = i * d, np.float32(scales[i]), np.float32(-means[i] * scales[i])
            for j in range(columns):
                dweight[j] += dy[at + j] * fma(x[at + j], s, shift)
            i += 1
        else:
            at, mean, scale = i * d, means[i], scales[i]
            for j in range(columns):
                dweight[j] += np.float64(dy[at + j]) * ((np.float64(x[at + j]) - mean) * scale)
            i += 1


@compiled
def _add_bias_grad(dy, dbias, rows, d, columns):
    vectorize()
    i = 0
    while i < rows:
        if i + 4 <= rows:
            row0, row1, row2, row3 = i * d, (i + 1) * d, (i + 2) * d, (i + 3) * d
            for j in range(columns):
                dbias[j] += (dy[row0 + j] + dy[row1 + j]) + (dy[row2 + j] + dy[row3 + j])
            i += 4
        else:
            for j in range(columns):
                dbias[j] += dy[i * d + j]
            i += 1


@compiled
def _is_masked(i, arrays, options):
    return options.has_mask and byte_at(arrays.mask)[i] == 0


@compiled
def _compute_statistics(i, rows, arrays, options, statistics):
    """Compute the statistics of some rows from the i-th on."""
    d, xs, dys = options.d, float32_at(arrays.x, i * options.d), float32_at(arrays.dy, i * options.d)
    _sum(xs, float32_at(arrays.weight), dys, statistics, rows, d)
    _finalize(xs, float32_at(arrays.weight), dys, statistics, rows, d, options.eps, options.centered)


@compiled
def _write_gradients(i, rows, first, columns, arrays, options, statistics, dweight, dbias):
    """Write dx of some rows from the i-th on, and add to dweight and dbias, for the columns from `first` on."""
    d, at = options.d, i * options.d + first
    xs, dys, dxs = float32_at(arrays.x, at), float32_at(arrays.dy, at), float32_at(arrays.dx, at)
    _gradient(xs, float32_at(arrays.weight, first), dys, dxs, statistics, rows, d, columns)
    if options.has_residual:
        add_to(dxs, float32_at(arrays.residual_grad, at), rows * columns)
    if options.needs_weight_grad:
        _add_weight_grad(xs, dys, dweight, statistics, rows, d, columns)
    if options.needs_bias_grad:
        _add_bias_grad(dys, dbias, rows, d, columns)


@compiled
def _blocks_part(part, parts, arrays, options):
    """Process the blocks of rows of one thread."""
    d, few, workspace = options.d, rows_per_pass(options.d), _workspace()
    zeros = float64_at(workspace, 4 * few)
    fill(zeros, 0.0, few)
    for block in share(part, parts, options.blocks):
        dweight = float64_at(arrays.workspace, 2 * block * d)
        dbias = float64_at(arrays.workspace, (2 * block + 1) * d)
        if options.needs_weight_grad or options.needs_bias_grad:
            fill(dweight, 0.0, 2 * d)
        rows = share(block, options.blocks, options.rows)
        i = rows.start
        while i < rows.stop:
            count = min(few, rows.stop - i)
            if options.has_mask:
                count = mask_run_length(arrays.mask, i, i + count)
            if _is_masked(i, arrays, options):
                fill(float32_at(arrays.dx, i * d), np.float32(0.0), count * d)
            else:
                means = float64_at(arrays.means, i) if options.centered else zeros
                statistics = _statistics(means, workspace, few)
                _compute_statistics(i, count, arrays, options, statistics)
                _write_gradients(i, count, _ZERO, d, arrays, options, statistics, dweight, dbias)
            i += count


@compiled
def backward(pool, arrays, results, options):
    """Compute dx, dweight and dbias. With a residual, the gradient that bypasses the norm is added to dx.

    Args:
        arrays: addresses, as in `_Arrays`. The workspace has room for 2 d float64 numbers of each block, if a gradient
            of weight or bias is needed.
        results: addresses of dweight and dbias, 0 for those that are not needed.
        options: as in `_Options`.
    """
    given, chosen = _Arrays(*arrays), _Options(*options)
    run_parallel(pool, _blocks_part, (given, chosen))
    if results[0] or results[1]:
        sum_blocks(float64_at(given.workspace), chosen.blocks, 2 * chosen.d)
    for i in range(2):
        if results[i]:
            copy(float64_at(given.workspace, i * chosen.d), float32_at(results[i]), chosen.d)


@compiled
def _row_statistics(i, arrays, options):
    """Return pointers to the statistics of a long row: four for each row, and a zero after those of the last."""
    means = float64_at(arrays.means, i) if options.centered else float64_at(arrays.workspace, 4 * options.rows)
    return _statistics(means, arrays.workspace + 32 * i, _ONE)


@compiled
def _rows_part(part, parts, arrays, options):
    """Compute the statistics of long rows."""
    for i in share(part, parts, options.rows):
        if not _is_masked(i, arrays, options):
            _compute_statistics(i, _ONE, arrays, options, _row_statistics(i, arrays, options))


@compiled
def _columns_part(part, parts, arrays, results, options):
    """Compute the gradients of the columns of one thread, one strip at a time."""
    d, sums = options.d, _strip()
    dweight, dbias = float64_at(sums), float64_at(sums, _WIDTH)
    for strip in share(part, parts, (d + _WIDTH - 1) // _WIDTH):
        first = strip * _WIDTH
        count = min(_WIDTH, d - first)
        fill(dweight, 0.0, 2 * _WIDTH)
        for i in range(options.rows):
            if _is_masked(i, arrays, options):
                fill(float32_at(arrays.dx, i * d + first), np.float32(0.0), count)
            else:
                statistics = _row_statistics(i, arrays, options)
                _write_gradients(i, _ONE, first, count, arrays, options, statistics, dweight, dbias)
        if results[0]:
            copy(dweight, float32_at(results[0], first), count)
        if results[1]:
            copy(dbias, float32_at(results[1], first), count)


@compiled
def long_rows_backward(pool, arrays, results, options):
    """Same as `backward`, for long rows. The workspace has room for 4 numbers of each row, and one more."""
    given, chosen = _Arrays(*arrays), _Options(*options)
    float64_at(given.workspace)[4 * chosen.rows] = 0.0
    run_parallel(pool, _rows_part, (given, chosen))
    run_parallel(pool, _columns_part, (given, results, chosen))
