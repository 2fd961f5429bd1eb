"""Norms of channels-last tensors: batch, instance and group norms of (n, s, c).

Memory is `batch` samples of `spatial` rows, each with one number per channel. A statistic is over the rows of some
channels of a sample; for statistics over the whole batch, the batch is one sample. Rows are summed in blocks, whose
number depends on the number of rows alone, then the blocks are summed in order, and a second pass computes the results.
So results do not depend on the number of threads.

Sums and results are computed in float64. The input and the mean of each group are saved for the backward pass.
"""

import math

import numpy as np

from normscope.ops.fused.channel_norm import Backward, Forward, Options
from normscope.ops.fused.compiler import byte_at, compiled, float32_at, float64_at, vectorize
from normscope.ops.fused.parallel import run_parallel, share
from normscope.ops.fused.vector_loops import copy, fill, sum_blocks


@compiled
def _vectors(index, arrays, options):
    """Return three vectors of the workspace, of one number per channel, from the index-th on."""
    workspace, channels = arrays.workspace, options.channels
    first, second = float64_at(workspace, index * channels), float64_at(workspace, (index + 1) * channels)
    return first, second, float64_at(workspace, (index + 2) * channels)


@compiled
def _rows_of(task, arrays, options):
    """Return a block of rows: its sample, its position in memory, x, the mask and the number of rows."""
    sample, rows = task // options.blocks, share(task % options.blocks, options.blocks, options.spatial)
    row = sample * options.spatial + rows.start
    at = row * options.channels
    return sample, at, float32_at(arrays.x, at), byte_at(arrays.mask, row), rows.stop - rows.start


@compiled
def _first_row(x, mask, pivot, options):
    """Use the first unmasked row as the pivot, so that sums keep their digits (see `row_norm.py`)."""
    vectorize()
    first, channels = 0, options.channels
    while options.has_mask and first < options.spatial - 1 and mask[first] == 0:
        first += 1
    for c in range(channels):
        pivot[c] = np.float64(x[first * channels + c]) if options.centered else 0.0


@compiled
def _add_rows(x, mask, pivot, totals, squares, rows, channels, has_mask):
    """Sum x - pivot and its square over some rows, per channel; return the number of unmasked rows."""
    vectorize()
    for c in range(channels):
        totals[c], squares[c] = 0.0, 0.0
    count = 0
    for i in range(rows):
        if has_mask and mask[i] == 0:
            continue
        count += 1
        for c in range(channels):
            value = np.float64(x[i * channels + c]) - pivot[c]
            totals[c] += value
            squares[c] += value * value
    return count


@compiled
def _measure_part(part, parts, arrays, options):
    for task in share(part, parts, options.batch * options.blocks):
        sample, _, x, mask, rows = _rows_of(task, arrays, options)
        pivot = _vectors(3 * sample, arrays, options)[0]
        totals, squares, _ = _vectors(3 * options.batch + 2 * task, arrays, options)
        count = _add_rows(x, mask, pivot, totals, squares, rows, options.channels, options.has_mask)
        float64_at(arrays.counts)[task] = count


@compiled
def _finalize(pivot, totals, squares, group_means, group_squares, count, options):
    """Compute the mean and second moment of each group of channels from sums around the pivots."""
    group_size, centered = options.group_size, options.centered
    for group in range(options.channels // group_size):
        total, square, own = 0.0, 0.0, range(group * group_size, (group + 1) * group_size)
        number = max(count, 1.0) * group_size
        for c in own:
            total += totals[c] + count * pivot[c]
        mean = total / number if centered else 0.0
        if group_size == 1 and centered:  # directly: the total would lose digits
            mean = pivot[group] + totals[group] / number
        for c in own:
            off = pivot[c] - mean
            square += squares[c] + 2.0 * off * totals[c] + count * off * off if centered else squares[c]
        square = square / number
        if square == square:
            square = max(square, 0.0)
        group_means[group], group_squares[group] = (mean, square) if count > 0 else (0.0, 1.0)


@compiled
def _finalize_sample(n, group_means, group_squares, arrays, options):
    """Sum the blocks of a sample, and compute its count, means and second moments."""
    blocks, count = options.blocks, 0.0
    totals, squares, _ = _vectors(3 * options.batch + 2 * n * blocks, arrays, options)
    sum_blocks(totals, blocks, 2 * options.channels)
    for block in range(blocks):
        count += float64_at(arrays.counts)[n * blocks + block]
    float64_at(arrays.counts)[n] = count
    pivot = _vectors(3 * n, arrays, options)[0]
    _finalize(pivot, totals, squares, group_means, group_squares, count, options)


@compiled
def _expand_to_channels(group_means, group_squares, weight, bias, results, options):
    """Expand the statistics of groups to the mean, factor and shift of each channel."""
    means, factors, shifts = results
    for c in range(options.channels):
        group = c // options.group_size
        means[c] = group_means[group]
        factors[c] = weight[c] / math.sqrt(group_squares[group] + options.eps)
        shifts[c] = bias[c]


@compiled
def _scale_rows(x, mask, y, vectors, rows, channels, has_mask):
    vectorize()
    means, factors, shifts = vectors
    for i in range(rows):
        if has_mask and mask[i] == 0:
            for c in range(channels):
                y[i * channels + c] = 0.0
        else:
            for c in range(channels):
                y[i * channels + c] = (np.float64(x[i * channels + c]) - means[c]) * factors[c] + shifts[c]


@compiled
def _scale_part(part, parts, arrays, options):
    for task in share(part, parts, options.batch * options.blocks):
        sample, at, x, mask, rows = _rows_of(task, arrays, options)
        vectors = _vectors(3 * sample, arrays, options)
        _scale_rows(x, mask, float32_at(arrays.y, at), vectors, rows, options.channels, options.has_mask)


@compiled
def forward(pool, arrays, options):
    """Compute y and the mean, second moment and count of each group.

    Args:
        arrays: addresses, as in `Forward`. The workspace has room for three vectors of channels for each sample (the
            pivots, then the means; factors; shifts) and two for each block, the counts for one number for each block.
        options: as in `Options`. With `use_running_stats`, means and second moments are inputs.
    """
    given, chosen = Forward(*arrays), Options(*options)
    spatial, channels, groups = chosen.spatial, chosen.channels, chosen.channels // chosen.group_size
    if not chosen.use_running_stats:
        for n in range(chosen.batch):
            x, mask = float32_at(given.x, n * spatial * channels), byte_at(given.mask, n * spatial)
            _first_row(x, mask, _vectors(3 * n, given, chosen)[0], chosen)
        run_parallel(pool, _measure_part, (given, chosen))
    for n in range(chosen.batch):
        means, squares = float64_at(given.means, n * groups), float64_at(given.squares, n * groups)
        if not chosen.use_running_stats:
            _finalize_sample(n, means, squares, given, chosen)
        weight, bias, results = float32_at(given.weight), float32_at(given.bias), _vectors(3 * n, given, chosen)
        _expand_to_channels(means, squares, weight, bias, results, chosen)
    run_parallel(pool, _scale_part, (given, chosen))


@compiled
def _backward_sums_rows(x, mask, dy, means, sums, rows, channels, has_mask):
    """Sum c c, dy c and dy over some rows, per channel, with c = x - mean."""
    vectorize()
    squares, dots, grad_sums = sums
    for c in range(channels):
        squares[c], dots[c], grad_sums[c] = 0.0, 0.0, 0.0
    for i in range(rows):
        if has_mask and mask[i] == 0:
            continue
        for c in range(channels):
            v, off = np.float64(dy[i * channels + c]), np.float64(x[i * channels + c]) - means[c]
            squares[c] += off * off
            dots[c] += v * off
            grad_sums[c] += v


@compiled
def _backward_sums_part(part, parts, arrays, options):
    for task in share(part, parts, options.batch * options.blocks):
        sample, at, x, mask, rows = _rows_of(task, arrays, options)
        dy, means = float32_at(arrays.dy, at), _vectors(sample, arrays, options)[0]
        sums = _vectors(options.batch + 3 * task, arrays, options)
        _backward_sums_rows(x, mask, dy, means, sums, rows, options.channels, options.has_mask)


@compiled
def _finalize_backward(weight, sums, group_squares, dweight, dbias, count, options):
    """Replace the sums with the three factors of dx per channel, and add to dweight and dbias."""
    (squares, dots, grad_sums), group_size = sums, options.group_size
    for group in range(options.channels // group_size):
        square, dot, grad_sum, own = 0.0, 0.0, 0.0, range(group * group_size, (group + 1) * group_size)
        number = max(count, 1.0) * group_size
        for c in own:
            square += squares[c]
            dot += weight[c] * dots[c]
            grad_sum += weight[c] * grad_sums[c]
        square = group_squares[group] if options.use_running_stats else square / number
        scale = 1.0 / math.sqrt(square + options.eps)
        dot, grad_sum = dot / number * scale * scale * scale, grad_sum / number * scale
        for c in own:
            dweight[c] += dots[c] * scale
            dbias[c] += grad_sums[c]
            squares[c] = weight[c] * scale
            dots[c] = dot
            grad_sums[c] = grad_sum if options.centered else 0.0


@compiled
def _gradient_rows(x, mask, dy, dx, means, vectors, rows, options):
    vectorize()
    (factors, dots, grad_sums), channels = vectors, options.channels
    for i in range(rows):
        if options.has_mask and mask[i] == 0:
            for c in range(channels):
                dx[i * channels + c] = 0.0
        elif options.use_running_stats:
            for c in range(channels):
                dx[i * channels + c] = np.float64(dy[i * channels + c]) * factors[c]
        else:
            for c in range(channels):
                off = np.float64(x[i * channels + c]) - means[c]
                dx[i * channels + c] = np.float64(dy[i * channels + c]) * factors[c] - grad_sums[c] - off * dots[c]


@compiled
def _gradient_part(part, parts, arrays, options):
    for task in share(part, parts, options.batch * options.blocks):
        sample, at, x, mask, rows = _rows_of(task, arrays, options)
        dy, dx, means = float32_at(arrays.dy, at), float32_at(arrays.dx, at), _vectors(sample, arrays, options)[0]
        factors = _vectors(options.batch + 3 * sample * options.blocks, arrays, options)
        _gradient_rows(x, mask, dy, dx, means, factors, rows, options)


@compiled
def backward(pool, arrays, options):
    """Compute dx, dweight and dbias.

    Args:
        arrays: addresses, as in `Backward`. The workspace has room for the means of each sample, three vectors of
            channels for each block, and two more. The counts are the numbers of unmasked rows of each sample.
        options: as in `Options`.
    """
    given, chosen = Backward(*arrays), Options(*options)
    batch, channels, groups = chosen.batch, chosen.channels, chosen.channels // chosen.group_size
    for n in range(batch):
        means = _vectors(n, given, chosen)[0]
        for c in range(channels):
            means[c] = float64_at(given.means)[n * groups + c // chosen.group_size]
    run_parallel(pool, _backward_sums_part, (given, chosen))
    dweight, dbias, _ = _vectors(batch + 3 * batch * chosen.blocks, given, chosen)
    fill(dweight, 0.0, 2 * channels)
    for n in range(batch):
        sums = _vectors(batch + 3 * n * chosen.blocks, given, chosen)
        sum_blocks(sums[0], chosen.blocks, 3 * channels)
        squares, count = float64_at(given.squares, n * groups), float64_at(given.counts)[n]
        _finalize_backward(float32_at(given.weight), sums, squares, dweight, dbias, count, chosen)
    copy(dweight, float32_at(given.dweight), channels)
    copy(dbias, float32_at(given.dbias), channels)
    run_parallel(pool, _gradient_part, (given, chosen))
