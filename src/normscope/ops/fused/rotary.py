"""Rotary positions, alone and with the rms norm of each head before them: one pass over memory, there and back.

Axes: a token has `heads` rows of e features, in two halves (a, b); pair j is (a[j], b[j]), which the token's place
turns by one angle. All the heads of a token share its angles.

Everything is computed in float64 and rounded once. Rows are short and stay in the nearest cache, so it is memory that
takes the time; and no float32 has a square that leaves float64, so there is one form for rows of any size.

Every row is computed alike, whatever the number of rows or threads; the gradient of the gain is summed in blocks whose
size depends on the number of tokens alone. So the same input gives the same bits, always.
"""

import math

import numpy as np

from normscope.ops.fused.compiler import compiled, float32_at, float64_at, in_vectors, room_for
from normscope.ops.fused.parallel import share
from normscope.ops.fused.vector_loops import fill
from normscope.ops.rotary_dispatch import LONGEST

_AT_ONCE = 16  # rows whose scales are computed together, in a vector or two
_room_for_features = room_for(2 * LONGEST)
_room_for_rows = room_for(3 * _AT_ONCE)


@compiled
def _turn_tokens(x, cos, sin, y, first, last, places, heads, half, sign):
    in_vectors()
    for i in range(first, last):
        place = i % places * half
        for row in range(i * heads, (i + 1) * heads):
            a, b = 2 * row * half, (2 * row + 1) * half
            for j in range(half):
                p, q = np.float64(x[a + j]), np.float64(x[b + j])
                c, s = np.float64(cos[place + j]), np.float64(sin[place + j]) * sign
                y[a + j] = p * c - q * s
                y[b + j] = p * s + q * c


@compiled
def _turn_part(part, parts, x, cos, sin, y, tokens, places, heads, half, back):
    """y of the tokens that fall to one thread. To turn back is to turn by the opposite angle."""
    first, last = tokens * part // parts, tokens * (part + 1) // parts
    _turn_tokens(
        float32_at(x), float32_at(cos), float32_at(sin), float32_at(y), first, last, places, heads, half,
        -1.0 if back else 1.0,
    )  # fmt: skip


@compiled
def apply_rotary(threads, fork, number, team, x, cos, sin, y, tokens, places, heads, half, back):
    """All tokens turned by the angles of their places, or back by them. Arrays are given by their addresses."""
    share(threads, fork, number, team, _turn_part, (x, cos, sin, y, tokens, places, heads, half, back))


@compiled
def _rows_at_once(heads, half):
    """Rows that are taken together: as many as there is room for, and whole tokens where one fits."""
    rows = min(_AT_ONCE, LONGEST // half)
    return rows - rows % heads if heads < rows else rows


@compiled
def _measure(x, squares, rows, e):
    in_vectors()
    for i in range(rows):
        square = 0.0
        for j in range(e):
            value = np.float64(x[i * e + j])
            square += value * value
        squares[i] = square


@compiled
def _settle(squares, scales, rows, e, eps):
    in_vectors()
    for i in range(rows):
        scales[i] = 1.0 / math.sqrt(squares[i] / e + eps)


@compiled
def _normalize_and_turn_rows(x, weight, cos, sin, matrices, scales, y, first, last, places, heads, half):
    """y of some rows, whose scales are known."""
    in_vectors()
    row = first
    while row < last:
        token = row // heads
        place = token % places * half
        for j in range(half):  # gain and turn together, a matrix for each pair, which the token's heads share
            c, s = np.float64(cos[place + j]), np.float64(sin[place + j])
            matrices[j] = c * weight[j]
            matrices[half + j] = s * weight[half + j]
            matrices[2 * half + j] = s * weight[j]
            matrices[3 * half + j] = c * weight[half + j]
        stop = min(last, (token + 1) * heads)
        while row < stop:
            a, b, scale = 2 * row * half, (2 * row + 1) * half, scales[row - first]
            for j in range(half):
                p, q = np.float64(x[a + j]), np.float64(x[b + j])
                y[a + j] = (p * matrices[j] - q * matrices[half + j]) * scale
                y[b + j] = (p * matrices[2 * half + j] + q * matrices[3 * half + j]) * scale
            row += 1


@compiled
def _forward_part(part, parts, x, weight, cos, sin, y, tokens, places, heads, half, eps):
    """y of the tokens that fall to one thread."""
    room, e = _room_for_rows(), 2 * half
    matrices, squares, scales = float64_at(_room_for_features()), float64_at(room), float64_at(room + 8 * _AT_ONCE)
    row, end = tokens * part // parts * heads, tokens * (part + 1) // parts * heads
    while row < end:
        last = min(row + _rows_at_once(heads, half), end)
        _measure(float32_at(x + 4 * row * e), squares, last - row, e)
        _settle(squares, scales, last - row, e, eps)
        _normalize_and_turn_rows(
            float32_at(x), float32_at(weight), float32_at(cos), float32_at(sin), matrices, scales, float32_at(y),
            row, last, places, heads, half,
        )  # fmt: skip
        row = last


@compiled
def rms_norm_rotary(threads, fork, number, team, x, weight, cos, sin, y, tokens, places, heads, half, eps):
    """All rows over their root mean square, times the gain, and turned."""
    share(threads, fork, number, team, _forward_part, (x, weight, cos, sin, y, tokens, places, heads, half, eps))


@compiled
def _turn_back_and_measure(x, weight, cos, sin, g, turned, squares, pulls, first, last, places, heads, half):
    """The gradient of what was turned; and of each row the sums of x x and, with v = turned weight, of v x."""
    in_vectors()
    for row in range(first, last):
        a, b, place = 2 * row * half, (2 * row + 1) * half, row // heads % places * half
        u, v = 2 * (row - first) * half, (2 * (row - first) + 1) * half
        square, pull = 0.0, 0.0
        for j in range(half):
            p, q = np.float64(g[a + j]), np.float64(g[b + j])
            c, s = np.float64(cos[place + j]), np.float64(sin[place + j])
            one, other = p * c + q * s, q * c - p * s
            turned[u + j], turned[v + j] = one, other
            k, m = np.float64(x[a + j]), np.float64(x[b + j])
            square += k * k + m * m
            pull += one * weight[j] * k + other * weight[half + j] * m
        squares[row - first], pulls[row - first] = square, pull


@compiled
def _settle_backward(squares, scales, pulls, rows, e, eps):
    in_vectors()
    for i in range(rows):
        scale = 1.0 / math.sqrt(squares[i] / e + eps)
        scales[i] = scale
        pulls[i] = pulls[i] / e * scale * scale * scale


@compiled
def _gradient(x, weight, turned, scales, pulls, dx, rows, e):
    """dx = scale v - x pull, where the pull has the cube of the scale in it."""
    in_vectors()
    for i in range(rows):
        scale, pull = scales[i], pulls[i]
        for j in range(e):
            dx[i * e + j] = turned[i * e + j] * weight[j] * scale - np.float64(x[i * e + j]) * pull


@compiled
def _learn_gain(x, turned, scales, dweight, rows, e):
    in_vectors()
    for i in range(rows):
        scale = scales[i]
        for j in range(e):
            dweight[j] += turned[i * e + j] * (np.float64(x[i * e + j]) * scale)


@compiled
def _backward_block(x, weight, cos, sin, g, dx, dweight, first, end, places, heads, half, eps, learns):
    """dx of some rows, and what they add to the gradient of the gain.

    With v = (g turned back) weight:  dx = scale (v - x scale^2 mean(v x)).
    """
    room, e, w = _room_for_rows(), 2 * half, float32_at(weight)
    squares, scales = float64_at(room), float64_at(room + 8 * _AT_ONCE)
    pulls, turned = float64_at(room + 16 * _AT_ONCE), float64_at(_room_for_features())
    if learns:
        fill(float64_at(dweight), 0.0, e)
    row = first
    while row < end:
        last = min(row + _rows_at_once(heads, half), end)
        xs, rows = float32_at(x + 4 * row * e), last - row
        _turn_back_and_measure(
            float32_at(x), w, float32_at(cos), float32_at(sin), float32_at(g), turned, squares, pulls,
            row, last, places, heads, half,
        )  # fmt: skip
        _settle_backward(squares, scales, pulls, rows, e, eps)
        _gradient(xs, w, turned, scales, pulls, float32_at(dx + 4 * row * e), rows, e)
        if learns:
            _learn_gain(xs, turned, scales, float64_at(dweight), rows, e)
        row = last


@compiled
def _backward_part(part, parts, x, weight, cos, sin, g, dx, sums, blocks, tokens, places, heads, half, eps, learns):
    """The blocks of tokens that fall to one thread."""
    for b in range(blocks * part // parts, blocks * (part + 1) // parts):
        _backward_block(
            x, weight, cos, sin, g, dx, sums + 16 * b * half,
            tokens * b // blocks * heads, tokens * (b + 1) // blocks * heads, places, heads, half, eps, learns,
        )  # fmt: skip


@compiled
def _add_up(sums, result, blocks, e):
    """The sum over all blocks, in their order; the first one's place holds it."""
    in_vectors()
    for b in range(1, blocks):
        for j in range(e):
            sums[j] += sums[b * e + j]
    for j in range(e):
        result[j] = sums[j]


@compiled
def rms_norm_rotary_backward(
    threads, fork, number, team, x, weight, cos, sin, g, dx, dweight, sums, blocks, tokens, places, heads, half, eps,
    learns,
):  # fmt: skip
    """dx of all rows and, if it is learnt, dweight. At `sums` there is room for blocks * e numbers of float64."""
    share(
        threads, fork, number, team, _backward_part,
        (x, weight, cos, sin, g, dx, sums, blocks, tokens, places, heads, half, eps, learns),
    )  # fmt: skip
    if learns:
        _add_up(float64_at(sums), float32_at(dweight), blocks, 2 * half)
