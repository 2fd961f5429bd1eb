"""The backward pass of the norms over rows; see `rows.py`.

With xhat = (x - mean) scale and v = g weight:  dx = scale (v - mean(v) - xhat mean(v xhat)), where the mean of v is
left out if x was not centred. The gradients of gain and bias are sums over all rows: of a few rows in float32, of a
block of rows in float64, and of all blocks in their order.
"""

import math

import numpy as np

from normscope.kernels.fused.compiler import byte_at, compiled, float32_at, float64_at, fma, in_vectors, room_for
from normscope.kernels.fused.precision import PIECE, is_plain
from normscope.kernels.fused.rows import AT_ONCE, alike, at_once
from normscope.kernels.fused.sharing import share
from normscope.kernels.fused.vectors import add_to, fill

_room = room_for(5 * AT_ONCE)


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
    x, weight, real, means, g, past, dx, sums, first, last, d, eps, centred, learns_weight, learns_bias, masked, added
):
    """dx of some rows, and what they add to the gradients of gain and bias."""
    few, w, room = at_once(d), float32_at(weight), _room()
    squares, scales, pulls, pushes = (
        float64_at(room), float64_at(room + 8 * few), float64_at(room + 16 * few), float64_at(room + 24 * few)
    )  # fmt: skip
    zeros = room + 32 * few
    fill(float64_at(zeros), 0.0, few)
    gain, bias, dweight, dbias = (
        float32_at(sums), float32_at(sums + 4 * d), float64_at(sums + 8 * d), float64_at(sums + 16 * d)
    )  # fmt: skip
    if learns_weight or learns_bias:
        fill(dweight, 0.0, 2 * d)
        fill(gain, np.float32(0.0), 2 * d)
    i, gathered = first, 0
    while i < last:
        at, count = 4 * i * d, min(few, last - i)
        xs, gs, dxs = float32_at(x + at), float32_at(g + at), float32_at(dx + at)
        if masked:
            count = alike(real, i, i + count)
        if masked and byte_at(real)[i] == 0:
            fill(dxs, np.float32(0.0), count * d)
        else:
            centres = float64_at(means + 8 * i if centred else zeros)
            _pulls(xs, w, gs, centres, squares, pulls, pushes, count, d)
            _settle_backward(x + at, weight, g + at, centres, squares, scales, pulls, pushes, count, d, eps, centred)
            _gradient(xs, w, gs, dxs, centres, squares, scales, pulls, pushes, count, d)
            if added:
                add_to(dxs, float32_at(past + at), count * d)
            if learns_weight:
                _learn_gain(xs, gs, gain, dweight, centres, squares, scales, count, d)
            if learns_bias:
                _learn_bias(gs, bias, count, d)
            gathered += count
        i += count
        if gathered >= AT_ONCE or i == last:
            gathered = 0
            if learns_weight:
                _move(gain, dweight, d)
            if learns_bias:
                _move(bias, dbias, d)


@compiled
def _backward_part(
    part, parts, x, weight, real, means, g, past, dx, sums, blocks, rows, d, eps, centred, learns_weight, learns_bias,
    masked, added,
):  # fmt: skip
    """The blocks of rows that fall to one thread."""
    for b in range(blocks * part // parts, blocks * (part + 1) // parts):
        _backward_block(
            x, weight, real, means, g, past, dx, sums + 24 * b * d, rows * b // blocks, rows * (b + 1) // blocks,
            d, eps, centred, learns_weight, learns_bias, masked, added,
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
    threads, fork, number, x, weight, real, means, g, past, dx, dweight, dbias, sums, blocks, rows, d, eps, centred,
    learns_weight, learns_bias, masked, added,
):  # fmt: skip
    """dx of all rows, dweight and dbias. If a branch was added, the gradient of what flows past the norm goes into dx.

    At `sums` there is room for (3 blocks + 1) d numbers of float64. Each block has three rows of d there: one that
    holds a group's sums in float32, and the block's for gain and bias.
    """
    share(
        threads, fork, number, _backward_part,
        (x, weight, real, means, g, past, dx, sums, blocks, rows, d, eps, centred, learns_weight, learns_bias, masked,
         added),
    )  # fmt: skip
    total = float64_at(sums + 24 * blocks * d)
    if learns_weight:
        _add_up(float64_at(sums + 8 * d), total, float32_at(dweight), blocks, d)
    if learns_bias:
        _add_up(float64_at(sums + 16 * d), total, float32_at(dbias), blocks, d)
