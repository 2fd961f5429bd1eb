"""The backward pass of norms over few and long rows, such as a LayerNorm of whole images.

Rows are too few to be shared out in blocks, and too long for the cache. So threads first share the rows, for each row's
sums; then the columns, for all the rest: the gradients of gain and bias are sums down a column, and each thread has its
columns to itself.
"""

import numpy as np

from normscope.ops.fused.accumulation import is_plain, low_part
from normscope.ops.fused.compiler import byte_at, compiled, float32_at, float64_at, fma, in_vectors
from normscope.ops.fused.parallel import share
from normscope.ops.fused.row_norm_backward import settle, sum_up
from normscope.ops.fused.vector_loops import add_to, fill

LONG = 8192
_WIDTH = 1024  # columns that are taken together
ROOM = 4  # numbers of float64 for each row


@compiled
def _sum_part(part, parts, x, weight, real, means, g, room, rows, d, eps, centred, masked):
    for i in range(rows * part // parts, rows * (part + 1) // parts):
        if masked and byte_at(real)[i] == 0:
            continue
        at, own, zero = 4 * i * d, room + 32 * i, room + 32 * rows
        centre = float64_at(means + 8 * i if centred else zero)
        square, scale, pull, push = float64_at(own), float64_at(own + 8), float64_at(own + 16), float64_at(own + 24)
        sum_up(float32_at(x + at), float32_at(weight), float32_at(g + at), centre, square, pull, push, 1, d)
        settle(x + at, weight, g + at, centre, square, scale, pull, push, 1, d, eps, centred)


@compiled
def _gradient(x, weight, g, dx, mean, scale, pull, push, count, plain):
    in_vectors()
    if plain:
        s = np.float32(scale)
        s_low, slope = np.float32(scale - s), np.float32(-scale * pull)
        off = np.float32(scale * (mean * pull - push))
        for j in range(count):
            high = s * weight[j]
            low = low_part(s, s_low, weight[j], high)
            dx[j] = fma(g[j], high, fma(g[j], low, fma(x[j], slope, off)))
    else:
        for j in range(count):
            dx[j] = scale * (np.float64(g[j]) * weight[j] - push - (np.float64(x[j]) - mean) * pull)


@compiled
def _learn(x, g, dweight, dbias, mean, scale, count, plain):
    in_vectors()
    if plain:
        s, off = np.float32(scale), np.float32(-mean * scale)
        for j in range(count):
            dweight[j] += g[j] * fma(x[j], s, off)
            dbias[j] += g[j]
    else:
        for j in range(count):
            dweight[j] += np.float64(g[j]) * ((np.float64(x[j]) - mean) * scale)
            dbias[j] += g[j]


@compiled
def _lower(sums, result, count):
    in_vectors()
    for j in range(count):
        result[j] = sums[j]


@compiled
def _column_part(
    part, parts, x, weight, real, means, g, past, dx, dweight, dbias, room, sums, rows, d, centred, learns_weight,
    learns_bias, masked, added,
):  # fmt: skip
    mine = sums + 16 * _WIDTH * part
    gain, bias, strips = float64_at(mine), float64_at(mine + 8 * _WIDTH), (d + _WIDTH - 1) // _WIDTH
    for strip in range(strips * part // parts, strips * (part + 1) // parts):
        first = strip * _WIDTH
        count, w = min(_WIDTH, d - first), float32_at(weight + 4 * first)
        fill(gain, 0.0, 2 * _WIDTH)
        for i in range(rows):
            at, own = 4 * (i * d + first), room + 32 * i
            xs, gs, dxs = float32_at(x + at), float32_at(g + at), float32_at(dx + at)
            if masked and byte_at(real)[i] == 0:
                fill(dxs, np.float32(0.0), count)
                continue
            mean, row = float64_at(means)[i] if centred else 0.0, float64_at(own)
            plain = is_plain(mean, row[0], d)
            _gradient(xs, w, gs, dxs, mean, row[1], row[2], row[3], count, plain)
            if added:
                add_to(dxs, float32_at(past + at), count)
            if learns_weight or learns_bias:
                _learn(xs, gs, gain, bias, mean, row[1], count, plain)
        if learns_weight:
            _lower(gain, float32_at(dweight + 4 * first), count)
        if learns_bias:
            _lower(bias, float32_at(dbias + 4 * first), count)


@compiled
def backward(
    threads, fork, number, team, x, weight, real, means, g, past, dx, dweight, dbias, room, sums, rows, d, eps, centred,
    learns_weight, learns_bias, masked, added,
):  # fmt: skip
    """As `rows_backward.backward`, with ROOM numbers of float64 for each row and one more, and 2 strips a thread."""
    float64_at(room)[ROOM * rows] = 0.0
    share(
        threads, fork, number, team, _sum_part, (x, weight, real, means, g, room, rows, d, eps, centred, masked)
    )  # fmt: skip
    share(
        threads, fork, number, team, _column_part,
        (x, weight, real, means, g, past, dx, dweight, dbias, room, sums, rows, d, centred, learns_weight, learns_bias,
         masked, added),
    )  # fmt: skip


def room_needed(threads: int, rows: int) -> tuple[int, int]:
    """How many numbers of float64 the backward pass needs at `room` and at `sums`."""
    return ROOM * rows + 1, 2 * _WIDTH * threads
