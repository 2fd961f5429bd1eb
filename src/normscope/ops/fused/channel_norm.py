"""Norms of contiguous (n, c, ...) tensors: batch, instance, group and layer norms.

Memory is a sequence of planes, one per sample and channel, of `spatial` numbers each. A statistic is over a group of
planes: a channel of all samples (batch norm), one plane (instance norm), or some channels of a sample (group norm). A
group is processed as a whole, first its sums, then its results, while it is in the cache. Threads share the groups, and
a group is summed in a fixed order, so results do not depend on the number of threads.

The input and the mean of each group are saved for the backward pass. Results are computed in float32 or float64 as in
`row_norm.py`.
"""

import math

import numpy as np

from normscope.ops.fused.accumulation import CHUNK, is_float32_safe
from normscope.ops.fused.compiler import byte_at, compiled, float32_at, float64_at, fma, stack_buffer, vectorize
from normscope.ops.fused.parallel import run_parallel
from normscope.ops.fused.vector_loops import fill

_sums_buffer = stack_buffer(3)


@compiled
def _plane(group, index, channels, group_size, across_batch):
    """Return the index of a group's plane."""
    if across_batch:  # the same channels of every sample
        return index // group_size * channels + group * group_size + index % group_size
    return group * group_size + index


@compiled
def _mask_run_end(mask, first, last, has_mask):
    """Return the end of the run of equal mask values that starts at `first`."""
    if not has_mask:
        return last
    end = first + 1
    while end < last and byte_at(mask)[end] == byte_at(mask)[first]:
        end += 1
    return end


@compiled
def _is_valid(mask, position, has_mask):
    return not has_mask or byte_at(mask)[position] != 0


@compiled
def _add(x, pivot, count):
    """The sum of x - around, and of its square."""
    vectorize()
    total, square = 0.0, 0.0
    for j in range(count):
        value = np.float64(x[j]) - pivot
        total += value
        square += value * value
    return total, square


@compiled
def _scale(x, y, mean, factor, shift, count, fast):
    """y = (x - mean) factor + shift."""
    vectorize()
    if fast:
        high = np.float32(factor)
        low = np.float32(factor - high) if high - high == 0 else np.float32(0.0)  # 0 for an infinite gain
        off = np.float32(shift - mean * factor)
        for j in range(count):
            y[j] = fma(x[j], high, fma(x[j], low, off))
    else:
        for j in range(count):
            y[j] = (np.float64(x[j]) - mean) * factor + shift


@compiled
def _inverse_std(square, eps):
    vectorize()  # a separate function, so that the division is not moved into loops
    return 1.0 / math.sqrt(square + eps)


@compiled
def _measure(x, mask, group, planes_per_group, channels, spatial, group_size, across_batch, centered, has_mask):
    """Return the count, mean and second moment of a group's unmasked values.

    Sums are shifted by the first unmasked value, which is within sqrt(count) standard deviations of the mean, so that
    the difference of squares keeps enough digits in float64.
    """
    count, pivot, total, square = 0, 0.0, 0.0, 0.0
    for index in range(planes_per_group):
        plane = _plane(group, index, channels, group_size, across_batch)
        sample_mask = mask + plane // channels * spatial
        j = 0
        while j < spatial:
            end = _mask_run_end(sample_mask, j, spatial, has_mask)
            if _is_valid(sample_mask, j, has_mask):
                at = float32_at(x + 4 * (plane * spatial + j))
                if count == 0 and centered:
                    pivot = np.float64(at[0])
                sums = _add(at, pivot, end - j)
                total, square, count = total + sums[0], square + sums[1], count + end - j
            j = end
    if count == 0:
        return 0, 0.0, 1.0
    off = total / count if centered else 0.0
    square = square / count - off * off
    return count, pivot + off, max(square, 0.0) if square == square else square


@compiled
def _forward_part(
    part, parts, x, weight, bias, mask, y, means, squares, counts, groups, planes_per_group, channels, spatial,
    group_size, across_batch, eps, centered, has_mask, use_running_stats,
):  # fmt: skip
    for group in range(groups * part // parts, groups * (part + 1) // parts):
        if not use_running_stats:
            count, mean, square = _measure(
                x, mask, group, planes_per_group, channels, spatial, group_size, across_batch, centered, has_mask
            )
            float64_at(counts)[group], float64_at(means)[group], float64_at(squares)[group] = count, mean, square
        mean, square = float64_at(means)[group], float64_at(squares)[group]
        scale = _inverse_std(square, eps)
        fast = not use_running_stats and is_float32_safe(
            mean, square, planes_per_group * spatial
        )  # running means may be far from these values
        for index in range(planes_per_group):
            plane = _plane(group, index, channels, group_size, across_batch)
            channel, sample_mask = plane % channels, mask + plane // channels * spatial
            factor, shift = scale * float32_at(weight)[channel], np.float64(float32_at(bias)[channel])
            j = 0
            while j < spatial:
                end, at = _mask_run_end(sample_mask, j, spatial, has_mask), 4 * (plane * spatial + j)
                if _is_valid(sample_mask, j, has_mask):
                    _scale(float32_at(x + at), float32_at(y + at), mean, factor, shift, end - j, fast)
                else:
                    fill(float32_at(y + at), np.float32(0.0), end - j)
                j = end


@compiled
def forward(
    pool, x, weight, bias, mask, y, means, squares, counts, groups, planes_per_group, channels,
    spatial, group_size, across_batch, eps, centered, has_mask, use_running_stats,
):  # fmt: skip
    """Compute y and the mean, second moment and count of each group.

    With `use_running_stats`, means and second moments are inputs.

    Arrays are passed as addresses; `mask` has a byte per sample and position.
    """
    run_parallel(pool, _forward_part,
        (x, weight, bias, mask, y, means, squares, counts, groups, planes_per_group, channels, spatial, group_size,
        across_batch, eps, centered, has_mask, use_running_stats),
    )  # fmt: skip


@compiled
def _backward_sums(x, g, mean, sums, count, fast):
    """Add the sums of c c, g c and g, with c = x - mean."""
    vectorize()
    if fast:
        near = np.float32(mean)
        for first in range(0, count, CHUNK):
            square, dot, grad_sum = np.float32(0.0), np.float32(0.0), np.float32(0.0)
            for j in range(first, min(count, first + CHUNK)):
                c = x[j] - near
                square += c * c
                dot += g[j] * c
                grad_sum += g[j]
            sums[0] += square
            sums[1] += dot
            sums[2] += grad_sum
    else:
        all_squares, all_dots, all_grad_sums = 0.0, 0.0, 0.0
        for j in range(count):
            off, v = np.float64(x[j]) - mean, np.float64(g[j])
            all_squares += off * off
            all_dots += v * off
            all_grad_sums += v
        sums[0] += all_squares
        sums[1] += all_dots
        sums[2] += all_grad_sums


@compiled
def _gradient(x, g, dx, mean, factor, dot, grad_sum, count, fast):
    """Compute dx = g factor - grad_sum - (x - mean) dot."""
    vectorize()
    if fast:
        high = np.float32(factor)
        low = np.float32(factor - high) if high - high == 0 else np.float32(0.0)  # 0 for an infinite gain
        slope, off = np.float32(-dot), np.float32(mean * dot - grad_sum)
        for j in range(count):
            dx[j] = fma(g[j], high, fma(g[j], low, fma(x[j], slope, off)))
    else:
        for j in range(count):
            dx[j] = np.float64(g[j]) * factor - grad_sum - (np.float64(x[j]) - mean) * dot


@compiled
def _group_backward_sums(
    x, weight, mask, g, gains, biases, mean, group, planes_per_group, channels, spatial, group_size, across_batch,
    has_mask, fast,
):  # fmt: skip
    """Compute the sums of a group for dx, and those of each plane for the gradients of gain and bias."""
    count, square, dot, grad_sum, workspace = 0, 0.0, 0.0, 0.0, _sums_buffer()
    sums, off = float64_at(workspace), mean - np.float32(mean) if fast else 0.0
    for index in range(planes_per_group):
        plane = _plane(group, index, channels, group_size, across_batch)
        sample_mask, j = mask + plane // channels * spatial, 0
        sums[0], sums[1], sums[2] = 0.0, 0.0, 0.0
        while j < spatial:
            end, at = _mask_run_end(sample_mask, j, spatial, has_mask), 4 * (plane * spatial + j)
            if _is_valid(sample_mask, j, has_mask):
                _backward_sums(float32_at(x + at), float32_at(g + at), mean, sums, end - j, fast)
                count += end - j
            j = end
        # Fast sums use the mean rounded to float32; correct for the difference.
        square, plane_dot, plane_grad_sum = square + sums[0], sums[1] - off * sums[2], sums[2]
        float64_at(gains)[plane], float64_at(biases)[plane] = plane_dot, plane_grad_sum
        gain = float32_at(weight)[plane % channels]
        dot, grad_sum = dot + gain * plane_dot, grad_sum + gain * plane_grad_sum
    count = max(count, 1)
    return square / count - off * off, dot / count, grad_sum / count


@compiled
def _backward_part(
    part, parts, x, weight, mask, g, dx, means, squares, gains, biases, groups, planes_per_group, channels, spatial,
    group_size, across_batch, eps, centered, has_mask, use_running_stats,
):  # fmt: skip
    """With v = g weight: dx = scale (v - mean(v) - c scale^2 mean(v c)); without the means for running statistics."""
    for group in range(groups * part // parts, groups * (part + 1) // parts):
        mean, fast, square, dot, grad_sum = float64_at(means)[group], not use_running_stats, 0.0, 0.0, 0.0
        if fast:
            square, dot, grad_sum = _group_backward_sums(
                x, weight, mask, g, gains, biases, mean, group, planes_per_group, channels, spatial, group_size,
                across_batch, has_mask, True,
            )  # fmt: skip
        if not fast or not is_float32_safe(mean, square, planes_per_group * spatial):
            fast = False
            square, dot, grad_sum = _group_backward_sums(
                x, weight, mask, g, gains, biases, mean, group, planes_per_group, channels, spatial, group_size,
                across_batch, has_mask, False,
            )  # fmt: skip
        scale = _inverse_std(float64_at(squares)[group] if use_running_stats else square, eps)
        dot, grad_sum = scale * scale * scale * dot, scale * grad_sum if centered else 0.0
        for index in range(planes_per_group):
            plane = _plane(group, index, channels, group_size, across_batch)
            factor, sample_mask = scale * float32_at(weight)[plane % channels], mask + plane // channels * spatial
            float64_at(gains)[plane] *= scale
            j = 0
            while j < spatial:
                end, at = _mask_run_end(sample_mask, j, spatial, has_mask), 4 * (plane * spatial + j)
                if _is_valid(sample_mask, j, has_mask) and use_running_stats:
                    _scale(float32_at(g + at), float32_at(dx + at), 0.0, factor, 0.0, end - j, True)
                elif _is_valid(sample_mask, j, has_mask):
                    _gradient(
                        float32_at(x + at), float32_at(g + at), float32_at(dx + at), mean, factor, dot, grad_sum,
                        end - j, fast,
                    )  # fmt: skip
                else:
                    fill(float32_at(dx + at), np.float32(0.0), end - j)
                j = end


@compiled
def _add_samples(sums, result, planes, channels):
    for c in range(channels):
        total = 0.0
        for plane in range(c, planes, channels):
            total += float64_at(sums)[plane]
        float32_at(result)[c] = total


@compiled
def backward(
    pool, x, weight, mask, g, dx, dweight, dbias, means, squares, sums, groups, planes_per_group,
    channels, spatial, group_size, across_batch, eps, centered, has_mask, use_running_stats,
):  # fmt: skip
    """Compute dx, dweight and dbias. `sums` holds two float64 numbers per plane."""
    gains, biases = sums, sums + 8 * groups * planes_per_group
    run_parallel(pool, _backward_part,
        (x, weight, mask, g, dx, means, squares, gains, biases, groups, planes_per_group, channels, spatial, group_size,
         across_batch, eps, centered, has_mask, use_running_stats),
    )  # fmt: skip
    _add_samples(gains, dweight, groups * planes_per_group, channels)
    _add_samples(biases, dbias, groups * planes_per_group, channels)
