"""Norms of contiguous (n, c, ...) tensors: batch, instance, group and layer norms.

Memory is a sequence of planes, one per sample and channel, of `spatial` numbers each. A statistic is over a group of
planes: a channel of all samples (batch norm), one plane (instance norm), or some channels of a sample (group norm). A
group is processed as a whole, first its sums, then its results, while it is in the cache. Threads share the groups, and
a group is summed in a fixed order, so results do not depend on the number of threads.

The input and the mean of each group are saved for the backward pass. Results are computed in float32 or float64 as in
`row_norm.py`.
"""

import math
from collections import namedtuple

import numpy as np

from normscope.ops.fused.accumulation import CHUNK, is_float32_safe
from normscope.ops.fused.compiler import (
    byte_at,
    compiled,
    float32_at,
    float64_at,
    fma,
    stack_buffer,
    uncached,
    vectorize,
)
from normscope.ops.fused.parallel import run_parallel, share
from normscope.ops.fused.vector_loops import copy, fill, sum_blocks, sums_around

# Addresses and options, for both memory layouts. The mask has a byte per sample and position.
Forward = namedtuple("Forward", "x weight bias mask y means squares counts workspace")
Backward = namedtuple("Backward", "x weight mask dy dx dweight dbias means squares counts workspace")
Options = namedtuple(
    "Options", "batch channels spatial group_size across_batch blocks eps centered has_mask use_running_stats"
)
_sums_buffer = stack_buffer(3)


@compiled
def _groups(options):
    return options.channels // options.group_size * (1 if options.across_batch else options.batch)


@compiled
def _values_per_group(options):
    return options.group_size * options.spatial * (options.batch if options.across_batch else 1)


@uncached  # numba can load a generator from the cache, but not compile a caller with it
def _planes(group, options):
    """Yield the planes of a group: some channels of a sample, or the same ones of every sample."""
    for sample in range(options.batch if options.across_batch else 1):
        first = sample * options.channels + group * options.group_size
        for plane in range(first, first + options.group_size):  # noqa: UP028 # numba has no `yield from`
            yield plane


@compiled
def _sample_mask(plane, arrays, options):
    """Return the address of the mask of a plane's sample."""
    return arrays.mask + plane // options.channels * options.spatial


@compiled
def _run(mask, first, options):
    """Return the length of the run of equal mask values of a sample that starts at `first`, and if they are real."""
    if not options.has_mask:
        return options.spatial - first, True
    values, end = byte_at(mask), first + 1
    while end < options.spatial and values[end] == values[first]:
        end += 1
    return end - first, values[first] != 0


@compiled
def _scale(x, y, mean, factor, shift, count, fast):
    """y = (x - mean) factor + shift."""
    vectorize()
    if fast:
        high = np.float32(factor)
        low = np.float32(factor - high) if high - high == 0 else np.float32(0.0)  # 0 for an infinite weight
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
def _measure(group, arrays, options):
    """Return the count, mean and second moment of a group's unmasked values.

    Sums are shifted by the first unmasked value, which is within sqrt(count) standard deviations of the mean, so that
    the difference of squares keeps enough digits in float64.
    """
    count, pivot, total, square = 0, 0.0, 0.0, 0.0
    for plane in _planes(group, options):
        mask, j = _sample_mask(plane, arrays, options), 0
        while j < options.spatial:
            length, is_real = _run(mask, j, options)
            if is_real:
                xs = float32_at(arrays.x, plane * options.spatial + j)
                if count == 0 and options.centered:
                    pivot = np.float64(xs[0])
                sums = sums_around(xs, pivot, length)
                total, square, count = total + sums[0], square + sums[1], count + length
            j += length
    if count == 0:
        return 0, 0.0, 1.0
    off = total / count if options.centered else 0.0
    square = square / count - off * off
    return count, pivot + off, max(square, 0.0) if square == square else square


@compiled
def _forward_part(part, parts, arrays, options):
    means, squares, has_running = float64_at(arrays.means), float64_at(arrays.squares), options.use_running_stats
    for group in share(part, parts, _groups(options)):
        if not has_running:
            float64_at(arrays.counts)[group], means[group], squares[group] = _measure(group, arrays, options)
        mean, square = means[group], squares[group]
        scale = _inverse_std(square, options.eps)
        # Running means may be far from these values.
        fast = not has_running and is_float32_safe(mean, square, _values_per_group(options))
        for plane in _planes(group, options):
            channel = plane % options.channels
            factor, shift = scale * float32_at(arrays.weight)[channel], np.float64(float32_at(arrays.bias)[channel])
            mask, j = _sample_mask(plane, arrays, options), 0
            while j < options.spatial:
                (length, is_real), at = _run(mask, j, options), plane * options.spatial + j
                if is_real:
                    _scale(float32_at(arrays.x, at), float32_at(arrays.y, at), mean, factor, shift, length, fast)
                else:
                    fill(float32_at(arrays.y, at), np.float32(0.0), length)
                j += length


@compiled
def forward(pool, arrays, options):
    """Compute y and the mean, second moment and count of each group.

    Args:
        arrays: addresses, as in `Forward`; without a workspace.
        options: as in `Options`. With `use_running_stats`, means and second moments are inputs.
    """
    run_parallel(pool, _forward_part, (Forward(*arrays), Options(*options)))


@compiled
def _backward_sums(x, dy, mean, sums, count, fast):
    """Add the sums of c c, dy c and dy, with c = x - mean."""
    vectorize()
    if fast:
        near = np.float32(mean)
        for first in range(0, count, CHUNK):
            square, dot, grad_sum = np.float32(0.0), np.float32(0.0), np.float32(0.0)
            for j in range(first, min(count, first + CHUNK)):
                c = x[j] - near
                square += c * c
                dot += dy[j] * c
                grad_sum += dy[j]
            sums[0] += square
            sums[1] += dot
            sums[2] += grad_sum
    else:
        all_squares, all_dots, all_grad_sums = 0.0, 0.0, 0.0
        for j in range(count):
            off, v = np.float64(x[j]) - mean, np.float64(dy[j])
            all_squares += off * off
            all_dots += v * off
            all_grad_sums += v
        sums[0] += all_squares
        sums[1] += all_dots
        sums[2] += all_grad_sums


@compiled
def _gradient(x, dy, dx, mean, factor, dot, grad_sum, count, fast):
    """Compute dx = dy factor - grad_sum - (x - mean) dot."""
    vectorize()
    if fast:
        high = np.float32(factor)
        low = np.float32(factor - high) if high - high == 0 else np.float32(0.0)  # 0 for an infinite weight
        slope, off = np.float32(-dot), np.float32(mean * dot - grad_sum)
        for j in range(count):
            dx[j] = fma(dy[j], high, fma(dy[j], low, fma(x[j], slope, off)))
    else:
        for j in range(count):
            dx[j] = np.float64(dy[j]) * factor - grad_sum - (np.float64(x[j]) - mean) * dot


@compiled
def _sum_group(group, mean, arrays, options, fast):
    """Compute the sums of a group for dx, and those of each plane for the gradients of weight and bias."""
    count, square, dot, grad_sum, sums = 0, 0.0, 0.0, 0.0, float64_at(_sums_buffer())
    off = mean - np.float32(mean) if fast else 0.0
    for plane in _planes(group, options):
        sums[0], sums[1], sums[2] = 0.0, 0.0, 0.0
        mask, j = _sample_mask(plane, arrays, options), 0
        while j < options.spatial:
            (length, is_real), at = _run(mask, j, options), plane * options.spatial + j
            if is_real:
                _backward_sums(float32_at(arrays.x, at), float32_at(arrays.dy, at), mean, sums, length, fast)
                count += length
            j += length
        # Fast sums use the mean rounded to float32; correct for the difference.
        square, plane_dot, plane_grad_sum = square + sums[0], sums[1] - off * sums[2], sums[2]
        float64_at(arrays.workspace)[plane] = plane_dot
        float64_at(arrays.workspace, options.batch * options.channels)[plane] = plane_grad_sum
        weight = float32_at(arrays.weight)[plane % options.channels]
        dot, grad_sum = dot + weight * plane_dot, grad_sum + weight * plane_grad_sum
    count = max(count, 1)
    return square / count - off * off, dot / count, grad_sum / count


@compiled
def _backward_part(part, parts, arrays, options):
    """With v = dy weight: dx = scale (v - mean(v) - c scale^2 mean(v c)); without the means for running statistics."""
    has_running = options.use_running_stats
    for group in share(part, parts, _groups(options)):
        mean, fast, square, dot, grad_sum = float64_at(arrays.means)[group], not has_running, 0.0, 0.0, 0.0
        if fast:
            square, dot, grad_sum = _sum_group(group, mean, arrays, options, True)
        if not fast or not is_float32_safe(mean, square, _values_per_group(options)):
            fast = False
            square, dot, grad_sum = _sum_group(group, mean, arrays, options, False)
        scale = _inverse_std(float64_at(arrays.squares)[group] if has_running else square, options.eps)
        dot, grad_sum = scale * scale * scale * dot, scale * grad_sum if options.centered else 0.0
        for plane in _planes(group, options):
            factor = scale * float32_at(arrays.weight)[plane % options.channels]
            float64_at(arrays.workspace)[plane] *= scale
            mask, j = _sample_mask(plane, arrays, options), 0
            while j < options.spatial:
                (length, is_real), at = _run(mask, j, options), plane * options.spatial + j
                dys, dxs = float32_at(arrays.dy, at), float32_at(arrays.dx, at)
                if is_real and has_running:
                    _scale(dys, dxs, 0.0, factor, 0.0, length, True)
                elif is_real:
                    _gradient(float32_at(arrays.x, at), dys, dxs, mean, factor, dot, grad_sum, length, fast)
                else:
                    fill(dxs, np.float32(0.0), length)
                j += length


@compiled
def backward(pool, arrays, options):
    """Compute dx, dweight and dbias.

    Args:
        arrays: addresses, as in `Backward`; without counts. The workspace holds two float64 numbers per plane.
        options: as in `Options`.
    """
    given, chosen = Backward(*arrays), Options(*options)
    run_parallel(pool, _backward_part, (given, chosen))
    batch, channels = chosen.batch, chosen.channels
    for i, result in enumerate((given.dweight, given.dbias)):
        sums = float64_at(given.workspace, i * batch * channels)
        sum_blocks(sums, batch, channels)
        copy(sums, float32_at(result), channels)
