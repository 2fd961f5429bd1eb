"""Norms of channels-last tensors: batch, instance and group norms of (n, s, c).

Memory is `batch` samples of `rows` rows, each with one number per channel. A statistic is over the rows of some
channels of a sample; for statistics over the whole batch, the batch is one sample. Rows are summed in blocks, whose
number depends on the number of rows alone, then the blocks are summed in order, and a second pass computes the results.
So results do not depend on the number of threads.

Sums and results are computed in float64. The input and the mean of each group are saved for the backward pass.
"""

import math

import numpy as np

from normscope.ops.fused.compiler import byte_at, compiled, float32_at, float64_at, vectorize
from normscope.ops.fused.parallel import run_parallel


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
def _scale_rows(x, mask, y, means, factors, shifts, rows, channels, has_mask):
    vectorize()
    for i in range(rows):
        if has_mask and mask[i] == 0:
            for c in range(channels):
                y[i * channels + c] = 0.0
        else:
            for c in range(channels):
                y[i * channels + c] = (np.float64(x[i * channels + c]) - means[c]) * factors[c] + shifts[c]


@compiled
def _first_rows(x, mask, pivot, rows, channels, centered, has_mask):
    """Use the first unmasked row as the pivot, so that sums keep their digits (see `row_norm.py`)."""
    vectorize()
    first = 0
    while has_mask and first < rows - 1 and mask[first] == 0:
        first += 1
    for c in range(channels):
        pivot[c] = np.float64(x[first * channels + c]) if centered else 0.0


@compiled
def _measure_part(part, parts, x, mask, pivot, sums, counts, batch, blocks, rows, channels, has_mask):
    for task in range(batch * blocks * part // parts, batch * blocks * (part + 1) // parts):
        sample, block = task // blocks, task % blocks
        first, last = rows * block // blocks, rows * (block + 1) // blocks
        position, own = sample * rows + first, sums + 16 * task * channels
        float64_at(counts)[task] = _add_rows(
            float32_at(x + 4 * position * channels), byte_at(mask + position),
            float64_at(pivot + 8 * sample * channels), float64_at(own), float64_at(own + 8 * channels), last - first,
            channels, has_mask,
        )  # fmt: skip


@compiled
def _sum_blocks(sums, kinds, blocks, channels):
    """Add the sums of all blocks to those of the first, in order."""
    vectorize()
    for block in range(1, blocks):
        for c in range(kinds * channels):
            sums[c] += sums[block * kinds * channels + c]


@compiled
def _finalize(pivot, totals, squares, group_means, group_squares, count, channels, group_size, centered):
    """Compute the mean and second moment of each group of channels from sums around the pivots."""
    for group in range(channels // group_size):
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
def _expand_to_channels(group_means, group_squares, weight, bias, means, factors, shifts, channels, group_size, eps):
    """Expand the statistics of groups to the mean, factor and shift of each channel."""
    for c in range(channels):
        group = c // group_size
        means[c] = group_means[group]
        factors[c] = weight[c] / math.sqrt(group_squares[group] + eps)
        shifts[c] = bias[c]


@compiled
def _scale_part(part, parts, x, mask, y, means, factors, shifts, batch, blocks, rows, channels, has_mask):
    for task in range(batch * blocks * part // parts, batch * blocks * (part + 1) // parts):
        sample, block = task // blocks, task % blocks
        first, last = rows * block // blocks, rows * (block + 1) // blocks
        position, own = sample * rows + first, 8 * sample * channels
        _scale_rows(
            float32_at(x + 4 * position * channels), byte_at(mask + position), float32_at(y + 4 * position * channels),
            float64_at(means + own), float64_at(factors + own), float64_at(shifts + own), last - first, channels,
            has_mask,
        )  # fmt: skip


@compiled
def forward(
    pool, x, weight, bias, mask, y, group_means, group_squares, counts, workspace, batch, blocks,
    rows, channels, group_size, eps, centered, has_mask, use_running_stats,
):  # fmt: skip
    """Compute y and the mean, second moment and count of each group.

    With `use_running_stats`, means and second moments are inputs.

    Arrays are passed as addresses; `mask` has a byte per row. `workspace` holds (3 + 2 blocks)
    numbers of float64 for each sample and channel, at `counts` for a count of each block.
    """
    size, groups = 8 * batch * channels, channels // group_size
    means, factors, shifts, sums = workspace, workspace + size, workspace + 2 * size, workspace + 3 * size
    if not use_running_stats:
        for n in range(batch):
            _first_rows(
                float32_at(x + 4 * n * rows * channels), byte_at(mask + n * rows), float64_at(means + 8 * n * channels),
                rows, channels, centered, has_mask,
            )  # fmt: skip
        run_parallel(pool, _measure_part,
            (x, mask, means, sums, counts, batch, blocks, rows, channels, has_mask),
        )  # fmt: skip
    for n in range(batch):
        own, at = sums + 16 * n * blocks * channels, 8 * n * channels
        if not use_running_stats:
            _sum_blocks(float64_at(own), 2, blocks, channels)
            count = 0.0
            for block in range(blocks):
                count += float64_at(counts)[n * blocks + block]
            float64_at(counts)[n] = count
            _finalize(
                float64_at(means + at), float64_at(own), float64_at(own + 8 * channels),
                float64_at(group_means + 8 * n * groups), float64_at(group_squares + 8 * n * groups), count, channels,
                group_size, centered,
            )  # fmt: skip
        _expand_to_channels(
            float64_at(group_means + 8 * n * groups), float64_at(group_squares + 8 * n * groups), float32_at(weight),
            float32_at(bias), float64_at(means + at), float64_at(factors + at), float64_at(shifts + at), channels,
            group_size, eps,
        )  # fmt: skip
    run_parallel(pool, _scale_part,
        (x, mask, y, means, factors, shifts, batch, blocks, rows, channels, has_mask),
    )  # fmt: skip


@compiled
def _backward_sums_rows(x, mask, g, means, squares, dots, grad_sums, rows, channels, has_mask):
    """Sum c c, g c and g over some rows, per channel, with c = x - mean."""
    vectorize()
    for c in range(channels):
        squares[c], dots[c], grad_sums[c] = 0.0, 0.0, 0.0
    for i in range(rows):
        if has_mask and mask[i] == 0:
            continue
        for c in range(channels):
            v, off = np.float64(g[i * channels + c]), np.float64(x[i * channels + c]) - means[c]
            squares[c] += off * off
            dots[c] += v * off
            grad_sums[c] += v


@compiled
def _backward_sums_part(part, parts, x, mask, g, means, sums, batch, blocks, rows, channels, has_mask):
    for task in range(batch * blocks * part // parts, batch * blocks * (part + 1) // parts):
        sample, block = task // blocks, task % blocks
        first, last = rows * block // blocks, rows * (block + 1) // blocks
        position, own = sample * rows + first, sums + 24 * task * channels
        _backward_sums_rows(
            float32_at(x + 4 * position * channels), byte_at(mask + position), float32_at(g + 4 * position * channels),
            float64_at(means + 8 * sample * channels), float64_at(own), float64_at(own + 8 * channels),
            float64_at(own + 16 * channels), last - first, channels, has_mask,
        )  # fmt: skip


@compiled
def _finalize_backward(
    weight, squares, dots, grad_sums, group_squares, dweight, dbias, count, channels, group_size, eps, centered,
    use_running_stats,
):  # fmt: skip
    """Replace the sums with the three factors of dx per channel, and add to dweight and dbias."""
    for group in range(channels // group_size):
        square, dot, grad_sum, own = 0.0, 0.0, 0.0, range(group * group_size, (group + 1) * group_size)
        number = max(count, 1.0) * group_size
        for c in own:
            square += squares[c]
            dot += weight[c] * dots[c]
            grad_sum += weight[c] * grad_sums[c]
        scale = 1.0 / math.sqrt((group_squares[group] if use_running_stats else square / number) + eps)
        dot, grad_sum = dot / number * scale * scale * scale, grad_sum / number * scale
        for c in own:
            dweight[c] += dots[c] * scale
            dbias[c] += grad_sums[c]
            squares[c] = weight[c] * scale
            dots[c] = dot
            grad_sums[c] = grad_sum if centered else 0.0


@compiled
def _gradient_rows(x, mask, g, dx, means, factors, dots, grad_sums, rows, channels, has_mask, use_running_stats):
    vectorize()
    for i in range(rows):
        if has_mask and mask[i] == 0:
            for c in range(channels):
                dx[i * channels + c] = 0.0
        elif use_running_stats:
            for c in range(channels):
                dx[i * channels + c] = np.float64(g[i * channels + c]) * factors[c]
        else:
            for c in range(channels):
                off = np.float64(x[i * channels + c]) - means[c]
                dx[i * channels + c] = np.float64(g[i * channels + c]) * factors[c] - grad_sums[c] - off * dots[c]


@compiled
def _gradient_part(
    part, parts, x, mask, g, dx, means, sums, batch, blocks, rows, channels, has_mask, use_running_stats
):
    for task in range(batch * blocks * part // parts, batch * blocks * (part + 1) // parts):
        sample, block = task // blocks, task % blocks
        first, last = rows * block // blocks, rows * (block + 1) // blocks
        position, own = sample * rows + first, sums + 24 * sample * blocks * channels
        _gradient_rows(
            float32_at(x + 4 * position * channels), byte_at(mask + position), float32_at(g + 4 * position * channels),
            float32_at(dx + 4 * position * channels), float64_at(means + 8 * sample * channels), float64_at(own),
            float64_at(own + 8 * channels), float64_at(own + 16 * channels), last - first, channels, has_mask,
            use_running_stats,
        )  # fmt: skip


@compiled
def _cast_to_float32(numbers, result, count):
    vectorize()
    for j in range(count):
        result[j] = numbers[j]


@compiled
def backward(
    pool, x, weight, mask, g, dx, dweight, dbias, group_means, group_squares, counts, workspace,
    batch, blocks, rows, channels, group_size, eps, centered, has_mask, use_running_stats,
):  # fmt: skip
    """Compute dx, dweight and dbias.

    `workspace` holds (1 + 3 blocks) float64 numbers per sample and channel, and two more per channel; `counts` is the
    number of unmasked rows of each sample.
    """
    size, groups = 8 * batch * channels, channels // group_size
    means, sums = workspace, workspace + size
    gain, bias = sums + 3 * blocks * size, sums + 3 * blocks * size + 8 * channels
    for n in range(batch):
        for c in range(channels):
            float64_at(means)[n * channels + c] = float64_at(group_means)[n * groups + c // group_size]
    for c in range(channels):
        float64_at(gain)[c], float64_at(bias)[c] = 0.0, 0.0
    run_parallel(pool, _backward_sums_part, (x, mask, g, means, sums, batch, blocks, rows, channels,
        has_mask)
    )  # fmt: skip
    for n in range(batch):
        own = sums + 24 * n * blocks * channels
        _sum_blocks(float64_at(own), 3, blocks, channels)
        _finalize_backward(
            float32_at(weight), float64_at(own), float64_at(own + 8 * channels), float64_at(own + 16 * channels),
            float64_at(group_squares + 8 * n * groups), float64_at(gain), float64_at(bias), float64_at(counts)[n],
            channels, group_size, eps, centered, use_running_stats,
        )  # fmt: skip
    _cast_to_float32(float64_at(gain), float32_at(dweight), channels)
    _cast_to_float32(float64_at(bias), float32_at(dbias), channels)
    run_parallel(pool, _gradient_part,
        (x, mask, g, dx, means, sums, batch, blocks, rows, channels, has_mask, use_running_stats),
    )  # fmt: skip
