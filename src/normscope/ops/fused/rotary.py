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

from normscope.ops.fused.compiler import compiled, float32_at, float64_at, stack_buffer, vectorize
from normscope.ops.fused.parallel import run_parallel
from normscope.ops.fused.vector_loops import fill
from normscope.ops.rotary_dispatch import MAX_HEAD_DIM

_MAX_ROWS = 16  # rows whose scales are computed together, in a vector or two
_room_for_features = stack_buffer(2 * MAX_HEAD_DIM)
_room_for_rows = stack_buffer(3 * _MAX_ROWS)


@compiled
def _rotate_tokens(x, cos, sin, y, first, last, positions, heads, half, sign):
    vectorize()
    for i in range(first, last):
        position = i % positions * half
        for row in range(i * heads, (i + 1) * heads):
            a, b = 2 * row * half, (2 * row + 1) * half
            for j in range(half):
                p, q = np.float64(x[a + j]), np.float64(x[b + j])
                c, s = np.float64(cos[position + j]), np.float64(sin[position + j]) * sign
                y[a + j] = p * c - q * s
                y[b + j] = p * s + q * c


@compiled
def _rotary_part(part, parts, x, cos, sin, y, tokens, positions, heads, half, inverse):
    """y of the tokens that fall to one thread. To turn back is to turn by the opposite angle."""
    first, last = tokens * part // parts, tokens * (part + 1) // parts
    _rotate_tokens(
        float32_at(x), float32_at(cos), float32_at(sin), float32_at(y), first, last, positions, heads, half,
        -1.0 if inverse else 1.0,
    )  # fmt: skip


@compiled
def apply_rotary(threads, fork, number, team, x, cos, sin, y, tokens, positions, heads, half, inverse):
    """All tokens turned by the angles of their places, or back by them. Arrays are given by their addresses."""
    run_parallel(threads, fork, number, team, _rotary_part, (x, cos, sin, y, tokens, positions, heads, half, inverse))


@compiled
def _rows_per_pass(heads, half):
    """Rows that are taken together: as many as there is room for, and whole tokens where one fits."""
    rows = min(_MAX_ROWS, MAX_HEAD_DIM // half)
    return rows - rows % heads if heads < rows else rows


@compiled
def _measure(x, squares, rows, e):
    vectorize()
    for i in range(rows):
        square = 0.0
        for j in range(e):
            value = np.float64(x[i * e + j])
            square += value * value
        squares[i] = square


@compiled
def _finalize(squares, scales, rows, e, eps):
    vectorize()
    for i in range(rows):
        scales[i] = 1.0 / math.sqrt(squares[i] / e + eps)


@compiled
def _rms_norm_rotary_rows(x, weight, cos, sin, matrices, scales, y, first, last, positions, heads, half):
    """y of some rows, whose scales are known."""
    vectorize()
    row = first
    while row < last:
        token = row // heads
        position = token % positions * half
        for j in range(half):  # gain and turn together, a matrix for each pair, which the token's heads share
            c, s = np.float64(cos[position + j]), np.float64(sin[position + j])
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
def _forward_part(part, parts, x, weight, cos, sin, y, tokens, positions, heads, half, eps):
    """y of the tokens that fall to one thread."""
    workspace, e = _room_for_rows(), 2 * half
    matrices, squares, scales = (
        float64_at(_room_for_features()),
        float64_at(workspace),
        float64_at(workspace + 8 * _MAX_ROWS),
    )
    row, end = tokens * part // parts * heads, tokens * (part + 1) // parts * heads
    while row < end:
        last = min(row + _rows_per_pass(heads, half), end)
        _measure(float32_at(x + 4 * row * e), squares, last - row, e)
        _finalize(squares, scales, last - row, e, eps)
        _rms_norm_rotary_rows(
            float32_at(x), float32_at(weight), float32_at(cos), float32_at(sin), matrices, scales, float32_at(y),
            row, last, positions, heads, half,
        )  # fmt: skip
        row = last


@compiled
def rms_norm_rotary(threads, fork, number, team, x, weight, cos, sin, y, tokens, positions, heads, half, eps):
    """All rows over their root mean square, times the gain, and turned."""
    run_parallel(
        threads, fork, number, team, _forward_part, (x, weight, cos, sin, y, tokens, positions, heads, half, eps)
    )


@compiled
def _unrotate_and_sum(x, weight, cos, sin, g, unrotated, squares, dots, first, last, positions, heads, half):
    """The gradient of what was turned; and of each row the sums of x x and, with v = turned weight, of v x."""
    vectorize()
    for row in range(first, last):
        a, b, position = 2 * row * half, (2 * row + 1) * half, row // heads % positions * half
        u, v = 2 * (row - first) * half, (2 * (row - first) + 1) * half
        square, dot = 0.0, 0.0
        for j in range(half):
            p, q = np.float64(g[a + j]), np.float64(g[b + j])
            c, s = np.float64(cos[position + j]), np.float64(sin[position + j])
            one, other = p * c + q * s, q * c - p * s
            unrotated[u + j], unrotated[v + j] = one, other
            k, m = np.float64(x[a + j]), np.float64(x[b + j])
            square += k * k + m * m
            dot += one * weight[j] * k + other * weight[half + j] * m
        squares[row - first], dots[row - first] = square, dot


@compiled
def _finalize_backward(squares, scales, dots, rows, e, eps):
    vectorize()
    for i in range(rows):
        scale = 1.0 / math.sqrt(squares[i] / e + eps)
        scales[i] = scale
        dots[i] = dots[i] / e * scale * scale * scale


@compiled
def _gradient(x, weight, unrotated, scales, dots, dx, rows, e):
    """dx = scale v - x pull, where the pull has the cube of the scale in it."""
    vectorize()
    for i in range(rows):
        scale, dot = scales[i], dots[i]
        for j in range(e):
            dx[i * e + j] = unrotated[i * e + j] * weight[j] * scale - np.float64(x[i * e + j]) * dot


@compiled
def _add_weight_grad(x, unrotated, scales, dweight, rows, e):
    vectorize()
    for i in range(rows):
        scale = scales[i]
        for j in range(e):
            dweight[j] += unrotated[i * e + j] * (np.float64(x[i * e + j]) * scale)


@compiled
def _backward_block(x, weight, cos, sin, g, dx, dweight, first, end, positions, heads, half, eps, needs_grad):
    """dx of some rows, and what they add to the gradient of the gain.

    With v = (g turned back) weight:  dx = scale (v - x scale^2 mean(v x)).
    """
    workspace, e, w = _room_for_rows(), 2 * half, float32_at(weight)
    squares, scales = float64_at(workspace), float64_at(workspace + 8 * _MAX_ROWS)
    dots, unrotated = float64_at(workspace + 16 * _MAX_ROWS), float64_at(_room_for_features())
    if needs_grad:
        fill(float64_at(dweight), 0.0, e)
    row = first
    while row < end:
        last = min(row + _rows_per_pass(heads, half), end)
        xs, rows = float32_at(x + 4 * row * e), last - row
        _unrotate_and_sum(
            float32_at(x), w, float32_at(cos), float32_at(sin), float32_at(g), unrotated, squares, dots,
            row, last, positions, heads, half,
        )  # fmt: skip
        _finalize_backward(squares, scales, dots, rows, e, eps)
        _gradient(xs, w, unrotated, scales, dots, float32_at(dx + 4 * row * e), rows, e)
        if needs_grad:
            _add_weight_grad(xs, unrotated, scales, float64_at(dweight), rows, e)
        row = last


@compiled
def _backward_part(
    part, parts, x, weight, cos, sin, g, dx, sums, blocks, tokens, positions, heads, half, eps, needs_grad
):
    """The blocks of tokens that fall to one thread."""
    for b in range(blocks * part // parts, blocks * (part + 1) // parts):
        _backward_block(
            x, weight, cos, sin, g, dx, sums + 16 * b * half,
            tokens * b // blocks * heads, tokens * (b + 1) // blocks * heads, positions, heads, half, eps, needs_grad,
        )  # fmt: skip


@compiled
def _sum_blocks(sums, result, blocks, e):
    """The sum over all blocks, in their order; the first one's place holds it."""
    vectorize()
    for b in range(1, blocks):
        for j in range(e):
            sums[j] += sums[b * e + j]
    for j in range(e):
        result[j] = sums[j]


@compiled
def rms_norm_rotary_backward(
    threads, fork, number, team, x, weight, cos, sin, g, dx, dweight, sums, blocks, tokens, positions, heads, half, eps,
    needs_grad,
):  # fmt: skip
    """dx of all rows and, if it is learnt, dweight. At `sums` there is room for blocks * e numbers of float64."""
    run_parallel(
        threads, fork, number, team, _backward_part,
        (x, weight, cos, sin, g, dx, sums, blocks, tokens, positions, heads, half, eps, needs_grad),
    )  # fmt: skip
    if needs_grad:
        _sum_blocks(float64_at(sums), float32_at(dweight), blocks, 2 * half)
