"""Norms whose statistics are each over one row of contiguous memory: LayerNorm, RMSNorm, and others without a gain.

Rows are taken a few at a time, as many as the cache holds: first the sums of each, then their scales, then the results.
So a row is read from memory once. The input and each row's mean are kept for the backward pass, which takes the
variance again beside its own sums.

Two forms of the results, chosen row by row (see `precision.py`):
- plain: in float32, but with the factor of each number in two parts, high and low, so that little more than the
  rounding of the result is lost; less than in torch's layers.
- careful: in float64, where float32 would lose digits or leave its range.

Every row is computed alike, whatever the number of rows or threads; the gradients of gain and bias are summed in blocks
whose size depends on the number of rows alone. So the same input gives the same bits, always.
"""

import math

import numpy as np

from normscope.kernels.fused.compiler import byte_at, compiled, float32_at, float64_at, fma, in_vectors, room_for
from normscope.kernels.fused.precision import PIECE, is_plain
from normscope.kernels.fused.sharing import share

_AT_ONCE = 8  # rows that are taken together at most; also those whose gradients of the gain are summed in float32
_room = room_for(5 * _AT_ONCE)


@compiled
def _at_once(d):
    """So many rows that the cache nearest to the processor holds them twice over."""
    return min(max(1024 // d, 1), _AT_ONCE)


@compiled
def _measure(x, means, squares, rows, d, centred):
    """The mean of each row, and the mean square around it; around zero if it is not centred."""
    in_vectors()
    for i in range(rows):
        # Around the first value, which lies within sqrt(d) deviations of the mean: the difference of squares keeps its
        # digits, of which float64 has nine more than float32.
        around = np.float64(x[i * d]) if centred else 0.0
        total, square = 0.0, 0.0
        for j in range(d):
            value = np.float64(x[i * d + j]) - around
            total += value
            square += value * value
        means[i], squares[i] = total, square


@compiled
def _settle(x, means, squares, scales, rows, d, eps, centred):
    in_vectors()
    for i in range(rows):
        around = np.float64(x[i * d]) if centred else 0.0
        off, square = means[i] / d if centred else 0.0, squares[i]
        means[i] = around + off
        squares[i] = max(square / d - off * off, 0.0) if square == square else square
        scales[i] = 1.0 / math.sqrt(squares[i] + eps)


@compiled
def _standardise(x, weight, bias, y, means, squares, scales, rows, d):
    in_vectors()
    for i in range(rows):
        at, mean, scale = i * d, means[i], scales[i]
        if is_plain(mean, squares[i], d):
            s = np.float32(scale)
            s_low, off = np.float32(scale - s), np.float32(-mean * scale)
            for j in range(d):
                high = s * weight[j]
                low = fma(s_low, weight[j], fma(s, weight[j], -high))
                y[at + j] = fma(x[at + j], high, fma(x[at + j], low, fma(off, weight[j], bias[j])))
        else:
            for j in range(d):
                y[at + j] = (np.float64(x[at + j]) - mean) * scale * weight[j] + bias[j]


@compiled
def _fill(numbers, value, count):
    in_vectors()
    for j in range(count):
        numbers[j] = value


@compiled
def _alike(real, first, last):
    """How many rows from the first one on are, like it, real or padding."""
    count = 1
    while first + count < last and byte_at(real)[first + count] == byte_at(real)[first]:
        count += 1
    return count


@compiled
def _forward_part(part, parts, x, weight, bias, real, y, means, rows, d, eps, centred, masked):
    """y of the rows that fall to one thread."""
    i, last, few = rows * part // parts, rows * (part + 1) // parts, _at_once(d)
    room = _room()
    squares, scales, zeros = float64_at(room), float64_at(room + 8 * few), room + 16 * few
    while i < last:
        count, xs, ys = min(few, last - i), float32_at(x + 4 * i * d), float32_at(y + 4 * i * d)
        if masked:
            count = _alike(real, i, i + count)
        if masked and byte_at(real)[i] == 0:
            _fill(ys, np.float32(0.0), count * d)
        else:
            centres = float64_at(means + 8 * i if centred else zeros)
            _measure(xs, centres, squares, count, d, centred)
            _settle(xs, centres, squares, scales, count, d, eps, centred)
            _standardise(xs, float32_at(weight), float32_at(bias), ys, centres, squares, scales, count, d)
        i += count


@compiled
def forward(threads, fork, number, x, weight, bias, real, y, means, rows, d, eps, centred, masked):
    """y and, if centred, the mean of all rows. Arrays are given by their addresses."""
    share(
        threads, fork, number, _forward_part,
        (x, weight, bias, real, y, means, rows, d, eps, centred, masked),
    )  # fmt: skip


@compiled
def _pulls(x, weight, g, means, squares, pulls, pushes, rows, d):
    """Of c = x - mean and v = g weight: the sums of c c, v c and v of each row."""
    in_vectors()
    for i in range(rows):
        at, mean = i * d, np.float32(means[i])
        squares[i], pulls[i], pushes[i] = 0.0, 0.0, 0.0
        for first in range(0, d, PIECE):
            square, pull, push = np.float32(0.0), np.float32(0.0), np.float32(0.0)
            for j in range(first, min(d, first + PIECE)):
                c = x[at + j] - mean
                v = g[at + j] * weight[j]
                square += c * c
                pull += v * c
                push += v
            squares[i] += square
            pulls[i] += pull
            pushes[i] += push


@compiled
def _pulls_carefully(x, weight, g, mean, d):
    in_vectors()
    square, pull, push = 0.0, 0.0, 0.0
    for j in range(d):
        c = np.float64(x[j]) - mean
        v = np.float64(g[j]) * weight[j]
        square += c * c
        pull += v * c
        push += v
    return square / d, pull / d, push / d


@compiled
def _settle_backward(x, weight, g, means, squares, scales, pulls, pushes, rows, d, eps, centred):
    for i in range(rows):
        # The sums were taken around the mean's nearest float32; what that is off is made up for here.
        off, push = means[i] - np.float32(means[i]), pushes[i] / d
        square, pull = squares[i] / d - off * off, pulls[i] / d - off * push
        if not is_plain(means[i], square, d):
            at = 4 * i * d
            square, pull, push = _pulls_carefully(
                float32_at(x + at), float32_at(weight), float32_at(g + at), means[i], d
            )
        scale = 1.0 / math.sqrt(square + eps)
        squares[i], scales[i] = square, scale
        pulls[i], pushes[i] = pull * scale * scale, push if centred else 0.0


@compiled
def _gradient(x, weight, g, dx, means, squares, scales, pulls, pushes, rows, d):
    """dx = scale (g weight - push - (x - mean) pull)."""
    in_vectors()
    for i in range(rows):
        at, mean, scale, pull, push = i * d, means[i], scales[i], pulls[i], pushes[i]
        if is_plain(mean, squares[i], d):
            s = np.float32(scale)
            s_low, factor = np.float32(scale - s), np.float32(-scale * pull)
            off = np.float32(scale * (mean * pull - push))
            for j in range(d):
                high = s * weight[j]
                low = fma(s_low, weight[j], fma(s, weight[j], -high))
                dx[at + j] = fma(g[at + j], high, fma(g[at + j], low, fma(x[at + j], factor, off)))
        else:
            for j in range(d):
                dx[at + j] = scale * (np.float64(g[at + j]) * weight[j] - push - (np.float64(x[at + j]) - mean) * pull)


@compiled
def _learn_gain(x, g, group, dweight, means, squares, scales, rows, d):
    """Add g xhat of each row to the group's sum, which is in float32."""
    in_vectors()
    for i in range(rows):
        at, mean, scale = i * d, means[i], scales[i]
        if is_plain(mean, squares[i], d):
            s = np.float32(scale)
            s_low, off = np.float32(scale - s), np.float32(-mean * scale)
            for j in range(d):
                group[j] = fma(g[at + j], fma(x[at + j], s, fma(x[at + j], s_low, off)), group[j])
        else:
            for j in range(d):
                dweight[j] += np.float64(g[at + j]) * ((np.float64(x[at + j]) - mean) * scale)


@compiled
def _learn_bias(g, group, rows, d):
    in_vectors()
    for i in range(rows):
        for j in range(d):
            group[j] += g[i * d + j]


@compiled
def _move(group, block, d):
    """Add what a group has gathered to its block, and start it anew."""
    in_vectors()
    for j in range(d):
        block[j] += group[j]
        group[j] = 0.0


@compiled
def _backward_block(
    x, weight, real, means, g, dx, sums, first, last, d, eps, centred, learns_weight, learns_bias, masked
):
    """dx of some rows, and what they add to the gradients of gain and bias.

    With xhat = (x - mean) scale and v = g weight:  dx = scale (v - mean(v) - xhat mean(v xhat)), where the mean of v
    is left out if x was not centred.
    """
    few, w, room = _at_once(d), float32_at(weight), _room()
    squares, scales, pulls, pushes = (
        float64_at(room), float64_at(room + 8 * few), float64_at(room + 16 * few), float64_at(room + 24 * few)
    )  # fmt: skip
    zeros = room + 32 * few
    _fill(float64_at(zeros), 0.0, few)
    gain, bias, dweight, dbias = (
        float32_at(sums), float32_at(sums + 4 * d), float64_at(sums + 8 * d), float64_at(sums + 16 * d)
    )  # fmt: skip
    if learns_weight or learns_bias:
        _fill(dweight, 0.0, 2 * d)
        _fill(gain, np.float32(0.0), 2 * d)
    i, gathered = first, 0
    while i < last:
        at, count = 4 * i * d, min(few, last - i)
        xs, gs, dxs = float32_at(x + at), float32_at(g + at), float32_at(dx + at)
        if masked:
            count = _alike(real, i, i + count)
        if masked and byte_at(real)[i] == 0:
            _fill(dxs, np.float32(0.0), count * d)
        else:
            centres = float64_at(means + 8 * i if centred else zeros)
            _pulls(xs, w, gs, centres, squares, pulls, pushes, count, d)
            _settle_backward(x + at, weight, g + at, centres, squares, scales, pulls, pushes, count, d, eps, centred)
            _gradient(xs, w, gs, dxs, centres, squares, scales, pulls, pushes, count, d)
            if learns_weight:
                _learn_gain(xs, gs, gain, dweight, centres, squares, scales, count, d)
            if learns_bias:
                _learn_bias(gs, bias, count, d)
            gathered += count
        i += count
        if gathered >= _AT_ONCE or i == last:
            gathered = 0
            if learns_weight:
                _move(gain, dweight, d)
            if learns_bias:
                _move(bias, dbias, d)


@compiled
def _backward_part(
    part, parts, x, weight, real, means, g, dx, sums, blocks, rows, d, eps, centred, learns_weight, learns_bias,
    masked,
):  # fmt: skip
    """The blocks of rows that fall to one thread."""
    for b in range(blocks * part // parts, blocks * (part + 1) // parts):
        _backward_block(
            x, weight, real, means, g, dx, sums + 24 * b * d,
            rows * b // blocks, rows * (b + 1) // blocks, d, eps, centred, learns_weight, learns_bias, masked,
        )  # fmt: skip


@compiled
def _add_up(sums, total, result, blocks, d):
    """The sum over all blocks, in their order."""
    in_vectors()
    for j in range(d):
        total[j] = 0.0
    for b in range(blocks):
        for j in range(d):
            total[j] += sums[3 * b * d + j]
    for j in range(d):
        result[j] = total[j]


@compiled
def backward(
    threads, fork, number, x, weight, real, means, g, dx, dweight, dbias, sums, blocks, rows, d, eps, centred,
    learns_weight, learns_bias, masked,
):  # fmt: skip
    """dx of all rows, dweight and dbias. At `sums` there is room for (3 blocks + 1) d numbers of float64.

    Each block has three rows of d there: one that holds a group's sums in float32, and the block's for gain and bias.
    """
    share(
        threads, fork, number, _backward_part,
        (x, weight, real, means, g, dx, sums, blocks, rows, d, eps, centred, learns_weight, learns_bias, masked),
    )  # fmt: skip
    total = float64_at(sums + 24 * blocks * d)
    if learns_weight:
        _add_up(float64_at(sums + 8 * d), total, float32_at(dweight), blocks, d)
    if learns_bias:
        _add_up(float64_at(sums + 16 * d), total, float32_at(dbias), blocks, d)
