"""The backward pass of the norms over rows; see `rows.py`.

With xhat = (x - mean) scale and v = g weight:  dx = scale (v - mean(v) - xhat mean(v xhat)), where the mean of v is
left out if x was not centred. The gradients of gain and bias are sums over all rows: of four rows in float32, of a
block of rows in float64, and of all blocks in their order.
"""

import math

import numpy as np

from normscope.ops.fused.accumulation import PIECE, is_plain, low_part
from normscope.ops.fused.compiler import byte_at, compiled, float32_at, float64_at, fma, in_vectors, room_for
from normscope.ops.fused.parallel import share
from normscope.ops.fused.row_norm import AT_ONCE, alike, at_once
from normscope.ops.fused.vector_loops import add_to, fill

_room = room_for(5 * AT_ONCE)


@compiled
def sum_up(x, weight, g, means, squares, pulls, pushes, rows, d):
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
def settle(x, weight, g, means, squares, scales, pulls, pushes, rows, d, eps, centred):
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
                low = low_part(s, s_low, weight[j], high)
                dx[at + j] = fma(g[at + j], high, fma(g[at + j], low, fma(x[at + j], factor, off)))
        else:
            for j in range(d):
                dx[at + j] = scale * (np.float64(g[at + j]) * weight[j] - push - (np.float64(x[at + j]) - mean) * pull)


@compiled
def _learn_gain(x, g, dweight, means, squares, scales, rows, d):
    """Add g xhat of each row: of four plain rows at a time in float32, which is then added to the sum in float64."""
    in_vectors()
    i = 0
    while i < rows:
        plain = i + 4 <= rows
        for k in range(i, min(i + 4, rows)):
            plain = plain and is_plain(means[k], squares[k], d)
        if plain:
            s0, s1, s2, s3 = (
                np.float32(scales[i]), np.float32(scales[i + 1]), np.float32(scales[i + 2]), np.float32(scales[i + 3])
            )  # fmt: skip
            o0, o1 = np.float32(-means[i] * scales[i]), np.float32(-means[i + 1] * scales[i + 1])
            o2, o3 = np.float32(-means[i + 2] * scales[i + 2]), np.float32(-means[i + 3] * scales[i + 3])
            a, b, c, e = i * d, (i + 1) * d, (i + 2) * d, (i + 3) * d
            for j in range(d):
                two = fma(g[a + j], fma(x[a + j], s0, o0), g[b + j] * fma(x[b + j], s1, o1))
                more = fma(g[c + j], fma(x[c + j], s2, o2), g[e + j] * fma(x[e + j], s3, o3))
                dweight[j] += two + more
            i += 4
        elif is_plain(means[i], squares[i], d):
            at, s, off = i * d, np.float32(scales[i]), np.float32(-means[i] * scales[i])
            for j in range(d):
                dweight[j] += g[at + j] * fma(x[at + j], s, off)
            i += 1
        else:
            at, mean, scale = i * d, means[i], scales[i]
            for j in range(d):
                dweight[j] += np.float64(g[at + j]) * ((np.float64(x[at + j]) - mean) * scale)
            i += 1


@compiled
def _learn_bias(g, dbias, rows, d):
    in_vectors()
    i = 0
    while i < rows:
        if i + 4 <= rows:
            a, b, c, e = i * d, (i + 1) * d, (i + 2) * d, (i + 3) * d
            for j in range(d):
                dbias[j] += (g[a + j] + g[b + j]) + (g[c + j] + g[e + j])
            i += 4
        else:
            for j in range(d):
                dbias[j] += g[i * d + j]
            i += 1


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
    dweight, dbias = float64_at(sums), float64_at(sums + 8 * d)
    if learns_weight or learns_bias:
        fill(dweight, 0.0, 2 * d)
    i = first
    while i < last:
        at, count = 4 * i * d, min(few, last - i)
        xs, gs, dxs = float32_at(x + at), float32_at(g + at), float32_at(dx + at)
        if masked:
            count = alike(real, i, i + count)
        if masked and byte_at(real)[i] == 0:
            fill(dxs, np.float32(0.0), count * d)
        else:
            centres = float64_at(means + 8 * i if centred else zeros)
            sum_up(xs, w, gs, centres, squares, pulls, pushes, count, d)
            settle(x + at, weight, g + at, centres, squares, scales, pulls, pushes, count, d, eps, centred)
            _gradient(xs, w, gs, dxs, centres, squares, scales, pulls, pushes, count, d)
            if added:
                add_to(dxs, float32_at(past + at), count * d)
            if learns_weight:
                _learn_gain(xs, gs, dweight, centres, squares, scales, count, d)
            if learns_bias:
                _learn_bias(gs, dbias, count, d)
        i += count


@compiled
def _backward_part(
    part, parts, x, weight, real, means, g, past, dx, sums, blocks, rows, d, eps, centred, learns_weight, learns_bias,
    masked, added,
):  # fmt: skip
    """The blocks of rows that fall to one thread."""
    for b in range(blocks * part // parts, blocks * (part + 1) // parts):
        _backward_block(
            x, weight, real, means, g, past, dx, sums + 16 * b * d, rows * b // blocks, rows * (b + 1) // blocks,
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
            total[j] += sums[2 * b * d + j]
    for j in range(d):
        result[j] = total[j]


@compiled
def backward(
    threads, fork, number, team, x, weight, real, means, g, past, dx, dweight, dbias, sums, blocks, rows, d, eps,
    centred, learns_weight, learns_bias, masked, added,
):  # fmt: skip
    """dx of all rows, dweight and dbias. If a branch was added, the gradient of what flows past the norm goes into dx.

    At `sums` there is room for (2 blocks + 1) d numbers of float64: the sums of each block for gain and bias, and those
    of all.
    """
    share(
        threads, fork, number, team, _backward_part,
        (x, weight, real, means, g, past, dx, sums, blocks, rows, d, eps, centred, learns_weight, learns_bias, masked,
         added),
    )  # fmt: skip
    total = float64_at(sums + 16 * blocks * d)
    if learns_weight:
        _add_up(float64_at(sums), total, float32_at(dweight), blocks, d)
    if learns_bias:
        _add_up(float64_at(sums + 8 * d), total, float32_at(dbias), blocks, d)
