"""Rotary embedding, alone and fused with an RMS norm of each head, in one pass over memory.

Axes: a token has `heads` rows of e features in two halves (a, b). Pair j is (a[j], b[j]), rotated by an angle that
depends on the token's position and j. All heads of a token share the angles.

Everything is computed in float64 and rounded once: rows are short and memory-bound, and squares of float32 values
cannot overflow float64.

Every row is computed the same way, and the gradient of the weight is summed in blocks whose number depends on the
number of tokens alone, so results do not depend on the number of threads.
"""

import math

import numpy as np

from normscope.ops.fused.compiler import compiled, float32_at, float64_at, stack_buffer, vectorize
from normscope.ops.fused.parallel import run_parallel, share
from normscope.ops.fused.vector_loops import copy, fill, sum_blocks
from normscope.ops.registry import MAX_HEAD_DIM

_MAX_ROWS = 16  # rows whose scales are computed together
_room_for_features = stack_buffer(2 * MAX_HEAD_DIM)
_room_for_rows = stack_buffer(3 * _MAX_ROWS)


@compiled
def _rotate_tokens(x, cos, sin, y, tokens, positions, heads, half, sign):
    vectorize()
    for i in tokens:
        position = i % positions * half
        for row in range(i * heads, (i + 1) * heads):
            a, b = 2 * row * half, (2 * row + 1) * half
            for j in range(half):
                p, q = np.float64(x[a + j]), np.float64(x[b + j])
                c, s = np.float64(cos[position + j]), np.float64(sin[position + j]) * sign
                y[a + j] = p * c - q * s
                y[b + j] = p * s + q * c


@compiled
def _rotary_part(part, parts, arrays, sizes, inverse):
    x, cos, sin, y = arrays
    (tokens, positions, heads, half), sign = sizes, -1.0 if inverse else 1.0
    xs, cosines, sines, ys = float32_at(x), float32_at(cos), float32_at(sin), float32_at(y)
    _rotate_tokens(xs, cosines, sines, ys, share(part, parts, tokens), positions, heads, half, sign)


@compiled
def apply_rotary(pool, arrays, sizes, inverse):
    """Rotate all tokens by the angles of their positions, or by the opposite angles.

    Args:
        arrays: addresses of x, cos, sin and y.
        sizes: tokens, positions, heads and pairs of features.
    """
    run_parallel(pool, _rotary_part, (arrays, sizes, inverse))


@compiled
def _rows_per_pass(heads, half):
    """Return the number of rows processed together: whole tokens, if one fits."""
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
def _rms_norm_rotary_rows(x, weight, cos, sin, matrices, scales, y, first, last, sizes):
    """Compute y for some rows with known scales."""
    vectorize()
    (_, positions, heads, half), row = sizes, first
    while row < last:
        token = row // heads
        position = token % positions * half
        for j in range(half):  # weight and rotation as one matrix per pair, shared by the token's heads
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
def _forward_part(part, parts, arrays, sizes, eps):
    """Compute y for the tokens of one thread."""
    x, weight, cos, sin, y = arrays
    tokens, _, heads, half = sizes
    mine, workspace = share(part, parts, tokens), _room_for_rows()
    w, cosines, sines, matrices = float32_at(weight), float32_at(cos), float32_at(sin), float64_at(_room_for_features())
    squares, scales, e = float64_at(workspace), float64_at(workspace, _MAX_ROWS), 2 * half
    row, end = mine.start * heads, mine.stop * heads
    while row < end:
        last = min(row + _rows_per_pass(heads, half), end)
        _measure(float32_at(x, row * e), squares, last - row, e)
        _finalize(squares, scales, last - row, e, eps)
        _rms_norm_rotary_rows(float32_at(x), w, cosines, sines, matrices, scales, float32_at(y), row, last, sizes)
        row = last


@compiled
def rms_norm_rotary(pool, arrays, sizes, eps):
    """Apply the RMS norm with its weight, then the rotation. The arrays are x, weight, cos, sin and y."""
    run_parallel(pool, _forward_part, (arrays, sizes, eps))


@compiled
def _unrotate_and_sum(x, weight, cos, sin, dy, unrotated, squares, dots, first, last, sizes):
    """Undo the rotation of dy; sum x x and v x over each row, with v = unrotated weight."""
    vectorize()
    _, positions, heads, half = sizes
    for row in range(first, last):
        a, b, position = 2 * row * half, (2 * row + 1) * half, row // heads % positions * half
        u, v = 2 * (row - first) * half, (2 * (row - first) + 1) * half
        square, dot = 0.0, 0.0
        for j in range(half):
            p, q = np.float64(dy[a + j]), np.float64(dy[b + j])
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
    """Compute dx = scale v - x dot, where dot includes the cube of the scale."""
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
def _backward_part(part, parts, arrays, sizes, blocks, eps, needs_grad):
    """Compute dx of the blocks of tokens of one thread, and each block's contribution to the gradient of the weight.

    With v = (unrotated dy) weight: dx = scale (v - x scale^2 mean(v x)).
    """
    x, weight, cos, sin, dy, dx, sums = arrays
    tokens, _, heads, half = sizes
    workspace, e, unrotated = _room_for_rows(), 2 * half, float64_at(_room_for_features())
    w, cosines, sines, dys = float32_at(weight), float32_at(cos), float32_at(sin), float32_at(dy)
    squares, scales = float64_at(workspace), float64_at(workspace, _MAX_ROWS)
    dots = float64_at(workspace, 2 * _MAX_ROWS)
    for block in share(part, parts, blocks):
        mine, dweight = share(block, blocks, tokens), float64_at(sums, block * e)
        if needs_grad:
            fill(dweight, 0.0, e)
        row, end = mine.start * heads, mine.stop * heads
        while row < end:
            last = min(row + _rows_per_pass(heads, half), end)
            xs, rows = float32_at(x, row * e), last - row
            _unrotate_and_sum(float32_at(x), w, cosines, sines, dys, unrotated, squares, dots, row, last, sizes)
            _finalize_backward(squares, scales, dots, rows, e, eps)
            _gradient(xs, w, unrotated, scales, dots, float32_at(dx, row * e), rows, e)
            if needs_grad:
                _add_weight_grad(xs, unrotated, scales, dweight, rows, e)
            row = last


@compiled
def rms_norm_rotary_backward(pool, arrays, dweight, sizes, blocks, eps):
    """Compute dx and, if its address is given, dweight.

    Args:
        arrays: addresses of x, weight, cos, sin, dy, dx and, for dweight, of one row of float64 sums for each block.
        sizes: as in `apply_rotary`.
        blocks: the number of blocks of tokens.
    """
    run_parallel(pool, _backward_part, (arrays, sizes, blocks, eps, dweight != 0))
    if dweight:
        e, sums = 2 * sizes[3], float64_at(arrays[6])
        sum_blocks(sums, blocks, e)
        copy(sums, float32_at(dweight), e)
