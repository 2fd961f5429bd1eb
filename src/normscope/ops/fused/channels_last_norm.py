"""Norms of channels that lie side by side: batch, instance and group norms of (n, s, c), or of images channels-last.

Memory is `outer` samples of `rows` rows, each with one number for every channel. A statistic is over the rows of some
channels of a sample; where statistics are shared by all samples, the samples are one. Rows are summed in blocks, whose
number depends on that of the rows alone; then the blocks are put together in their order, and the rows are taken once
more for the results. So the bits do not depend on the number of threads.

Sums and results are in float64 registers. For the backward pass the input and each group's mean are kept.
"""

import math

import numpy as np

from normscope.ops.fused.compiler import byte_at, compiled, float32_at, float64_at, in_vectors
from normscope.ops.fused.parallel import share


@compiled
def _add_rows(x, real, around, totals, squares, rows, channels, masked):
    """The sums of x - around and of its square over some rows, for each channel; and how many rows are real."""
    in_vectors()
    for c in range(channels):
        totals[c], squares[c] = 0.0, 0.0
    count = 0
    for i in range(rows):
        if masked and real[i] == 0:
            continue
        count += 1
        for c in range(channels):
            value = np.float64(x[i * channels + c]) - around[c]
            totals[c] += value
            squares[c] += value * value
    return count


@compiled
def _scale_rows(x, real, y, means, factors, shifts, rows, channels, masked):
    in_vectors()
    for i in range(rows):
        if masked and real[i] == 0:
            for c in range(channels):
                y[i * channels + c] = 0.0
        else:
            for c in range(channels):
                y[i * channels + c] = (np.float64(x[i * channels + c]) - means[c]) * factors[c] + shifts[c]


@compiled
def _first_rows(x, real, around, rows, channels, centred, masked):
    """The numbers of the first real row, around which sums keep their digits (see `rows.py`)."""
    in_vectors()
    first = 0
    while masked and first < rows - 1 and real[first] == 0:
        first += 1
    for c in range(channels):
        around[c] = np.float64(x[first * channels + c]) if centred else 0.0


@compiled
def _measure_part(part, parts, x, real, around, sums, counts, outer, blocks, rows, channels, masked):
    for task in range(outer * blocks * part // parts, outer * blocks * (part + 1) // parts):
        sample, block = task // blocks, task % blocks
        first, last = rows * block // blocks, rows * (block + 1) // blocks
        place, own = sample * rows + first, sums + 16 * task * channels
        float64_at(counts)[task] = _add_rows(
            float32_at(x + 4 * place * channels), byte_at(real + place), float64_at(around + 8 * sample * channels),
            float64_at(own), float64_at(own + 8 * channels), last - first, channels, masked,
        )  # fmt: skip


@compiled
def _gather(sums, kinds, blocks, channels):
    """Add the sums of all blocks to those of the first, in their order."""
    in_vectors()
    for block in range(1, blocks):
        for c in range(kinds * channels):
            sums[c] += sums[block * kinds * channels + c]


@compiled
def _settle(around, totals, squares, mean_of, square_of, count, channels, together, centred):
    """From sums around a value of each channel to the mean and mean square of each group of channels."""
    for group in range(channels // together):
        total, square, own = 0.0, 0.0, range(group * together, (group + 1) * together)
        number = max(count, 1.0) * together
        for c in own:
            total += totals[c] + count * around[c]
        mean = total / number if centred else 0.0
        if together == 1 and centred:  # without the detour over the total, which would cost digits
            mean = around[group] + totals[group] / number
        for c in own:
            off = around[c] - mean
            square += squares[c] + 2.0 * off * totals[c] + count * off * off if centred else squares[c]
        square = square / number
        if square == square:
            square = max(square, 0.0)
        mean_of[group], square_of[group] = (mean, square) if count > 0 else (0.0, 1.0)


@compiled
def _spread(mean_of, square_of, weight, bias, means, factors, shifts, channels, together, eps):
    """The mean, factor and shift of each channel, from those of the groups."""
    for c in range(channels):
        group = c // together
        means[c] = mean_of[group]
        factors[c] = weight[c] / math.sqrt(square_of[group] + eps)
        shifts[c] = bias[c]


@compiled
def _scale_part(part, parts, x, real, y, means, factors, shifts, outer, blocks, rows, channels, masked):
    for task in range(outer * blocks * part // parts, outer * blocks * (part + 1) // parts):
        sample, block = task // blocks, task % blocks
        first, last = rows * block // blocks, rows * (block + 1) // blocks
        place, own = sample * rows + first, 8 * sample * channels
        _scale_rows(
            float32_at(x + 4 * place * channels), byte_at(real + place), float32_at(y + 4 * place * channels),
            float64_at(means + own), float64_at(factors + own), float64_at(shifts + own), last - first, channels,
            masked,
        )  # fmt: skip


@compiled
def forward(
    threads, fork, number, team, x, weight, bias, real, y, mean_of, square_of, counts, room, outer, blocks, rows,
    channels, together, eps, centred, masked, given,
):  # fmt: skip
    """y, and the mean, mean square and count of each group; with `given`, by means and squares that are there already.

    Arrays are given by their addresses; `real` has a byte for each row. At `room` there is room for (3 + 2 blocks)
    numbers of float64 for each sample and channel, at `counts` for a count of each block.
    """
    size, groups = 8 * outer * channels, channels // together
    means, factors, shifts, sums = room, room + size, room + 2 * size, room + 3 * size
    if not given:
        for n in range(outer):
            _first_rows(
                float32_at(x + 4 * n * rows * channels), byte_at(real + n * rows), float64_at(means + 8 * n * channels),
                rows, channels, centred, masked,
            )  # fmt: skip
        share(
            threads, fork, number, team, _measure_part,
            (x, real, means, sums, counts, outer, blocks, rows, channels, masked),
        )  # fmt: skip
    for n in range(outer):
        own, at = sums + 16 * n * blocks * channels, 8 * n * channels
        if not given:
            _gather(float64_at(own), 2, blocks, channels)
            count = 0.0
            for block in range(blocks):
                count += float64_at(counts)[n * blocks + block]
            float64_at(counts)[n] = count
            _settle(
                float64_at(means + at), float64_at(own), float64_at(own + 8 * channels),
                float64_at(mean_of + 8 * n * groups), float64_at(square_of + 8 * n * groups), count, channels, together,
                centred,
            )  # fmt: skip
        _spread(
            float64_at(mean_of + 8 * n * groups), float64_at(square_of + 8 * n * groups), float32_at(weight),
            float32_at(bias), float64_at(means + at), float64_at(factors + at), float64_at(shifts + at), channels,
            together, eps,
        )  # fmt: skip
    share(
        threads, fork, number, team, _scale_part,
        (x, real, y, means, factors, shifts, outer, blocks, rows, channels, masked),
    )  # fmt: skip


@compiled
def _pull_rows(x, real, g, means, squares, pulls, pushes, rows, channels, masked):
    """Of c = x - mean: the sums of c c, g c and g over some rows, for each channel."""
    in_vectors()
    for c in range(channels):
        squares[c], pulls[c], pushes[c] = 0.0, 0.0, 0.0
    for i in range(rows):
        if masked and real[i] == 0:
            continue
        for c in range(channels):
            v, off = np.float64(g[i * channels + c]), np.float64(x[i * channels + c]) - means[c]
            squares[c] += off * off
            pulls[c] += v * off
            pushes[c] += v


@compiled
def _pull_part(part, parts, x, real, g, means, sums, outer, blocks, rows, channels, masked):
    for task in range(outer * blocks * part // parts, outer * blocks * (part + 1) // parts):
        sample, block = task // blocks, task % blocks
        first, last = rows * block // blocks, rows * (block + 1) // blocks
        place, own = sample * rows + first, sums + 24 * task * channels
        _pull_rows(
            float32_at(x + 4 * place * channels), byte_at(real + place), float32_at(g + 4 * place * channels),
            float64_at(means + 8 * sample * channels), float64_at(own), float64_at(own + 8 * channels),
            float64_at(own + 16 * channels), last - first, channels, masked,
        )  # fmt: skip


@compiled
def _settle_backward(
    weight, squares, pulls, pushes, square_of, dweight, dbias, count, channels, together, eps, centred, given
):
    """From sums to the three factors of dx for each channel, which take their place; and to dweight and dbias."""
    for group in range(channels // together):
        square, pull, push, own = 0.0, 0.0, 0.0, range(group * together, (group + 1) * together)
        number = max(count, 1.0) * together
        for c in own:
            square += squares[c]
            pull += weight[c] * pulls[c]
            push += weight[c] * pushes[c]
        scale = 1.0 / math.sqrt((square_of[group] if given else square / number) + eps)
        pull, push = pull / number * scale * scale * scale, push / number * scale
        for c in own:
            dweight[c] += pulls[c] * scale
            dbias[c] += pushes[c]
            squares[c] = weight[c] * scale
            pulls[c] = pull
            pushes[c] = push if centred else 0.0


@compiled
def _gradient_rows(x, real, g, dx, means, factors, pulls, pushes, rows, channels, masked, given):
    in_vectors()
    for i in range(rows):
        if masked and real[i] == 0:
            for c in range(channels):
                dx[i * channels + c] = 0.0
        elif given:
            for c in range(channels):
                dx[i * channels + c] = np.float64(g[i * channels + c]) * factors[c]
        else:
            for c in range(channels):
                off = np.float64(x[i * channels + c]) - means[c]
                dx[i * channels + c] = np.float64(g[i * channels + c]) * factors[c] - pushes[c] - off * pulls[c]


@compiled
def _gradient_part(part, parts, x, real, g, dx, means, sums, outer, blocks, rows, channels, masked, given):
    for task in range(outer * blocks * part // parts, outer * blocks * (part + 1) // parts):
        sample, block = task // blocks, task % blocks
        first, last = rows * block // blocks, rows * (block + 1) // blocks
        place, own = sample * rows + first, sums + 24 * sample * blocks * channels
        _gradient_rows(
            float32_at(x + 4 * place * channels), byte_at(real + place), float32_at(g + 4 * place * channels),
            float32_at(dx + 4 * place * channels), float64_at(means + 8 * sample * channels), float64_at(own),
            float64_at(own + 8 * channels), float64_at(own + 16 * channels), last - first, channels, masked, given,
        )  # fmt: skip


@compiled
def _lower(numbers, result, count):
    in_vectors()
    for j in range(count):
        result[j] = numbers[j]


@compiled
def backward(
    threads, fork, number, team, x, weight, real, g, dx, dweight, dbias, mean_of, square_of, counts, room, outer,
    blocks, rows, channels, together, eps, centred, masked, given,
):  # fmt: skip
    """dx, dweight and dbias. At `room` there is room for (1 + 3 blocks) float64 numbers for each sample and channel,
    and for two more of each channel; `counts` has the number of real rows of each sample."""
    size, groups = 8 * outer * channels, channels // together
    means, sums = room, room + size
    gain, bias = sums + 3 * blocks * size, sums + 3 * blocks * size + 8 * channels
    for n in range(outer):
        for c in range(channels):
            float64_at(means)[n * channels + c] = float64_at(mean_of)[n * groups + c // together]
    for c in range(channels):
        float64_at(gain)[c], float64_at(bias)[c] = 0.0, 0.0
    share(
        threads, fork, number, team, _pull_part, (x, real, g, means, sums, outer, blocks, rows, channels, masked)
    )  # fmt: skip
    for n in range(outer):
        own = sums + 24 * n * blocks * channels
        _gather(float64_at(own), 3, blocks, channels)
        _settle_backward(
            float32_at(weight), float64_at(own), float64_at(own + 8 * channels), float64_at(own + 16 * channels),
            float64_at(square_of + 8 * n * groups), float64_at(gain), float64_at(bias), float64_at(counts)[n],
            channels, together, eps, centred, given,
        )  # fmt: skip
    _lower(float64_at(gain), float32_at(dweight), channels)
    _lower(float64_at(bias), float32_at(dbias), channels)
    share(
        threads, fork, number, team, _gradient_part,
        (x, real, g, dx, means, sums, outer, blocks, rows, channels, masked, given),
    )  # fmt: skip
