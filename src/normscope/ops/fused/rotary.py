"""Rotary embedding, alone and fused with an RMS norm of each head, in one pass over memory.

Axes: a token has `heads` rows of e features in two halves (a, b). Pair j is (a[j], b[j]), rotated by an angle that
depends on the token's position and j. All heads of a token share the angles.

Everything is computed in float64 and rounded once: rows are short and memory-bound, and squares of float32 values
cannot overflow float64.

Every row is computed the same way, and the gradient of the gain is summed in blocks whose number depends on the number
of tokens alone, so results do not depend on the number of threads.
"""

import math

import numpy as np

from normscope.ops.fused.compiler import compiled, float32_at, float64_at, stack_buffer, vectorize
from normscope.ops.fused.parallel import run_parallel
from normscope.ops.fused.vector_loops import fill
from normscope.ops.registry import MAX_HEAD_DIM

_MAX_ROWS = 16  # rows whose scales are computed together
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
    """Compute y for the tokens of one thread. The inverse rotates by the opposite angle."""
    first, last = tokens * part // parts, tokens * (part + 1) // parts
    _rotate_tokens(
        float32_at(x), float32_at(cos), float32_at(sin), float32_at(y), first, last, positions, heads, half,
        -1.0 if inverse else 1.0,
    )  # fmt: skip


@compiled
def apply_rotary(pool, x, cos, sin, y, tokens, positions, heads, half, inverse):
    """Rotate all tokens by the angles of their positions, or by the inverse. Arrays are passed as addresses."""
    run_parallel(pool, _rotary_part, (x, cos, sin, y, tokens, positions, heads, half, inverse))


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
def _rms_norm_rotary_rows(x, weight, cos, sin, matrices, scales, y, first, last, positions, heads, half):
    """Compute y for some rows with known scales."""
    vectorize()
    row = first
    while row < last:
        token = row // heads
        position = token % positions * half
        for j in range(half):  # gain and rotation as one matrix per pair, shared by the token's heads
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
    """Compute y for the tokens of one thread."""
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
def rms_norm_rotary(pool, x, weight, cos, sin, y, tokens, positions, heads, half, eps):
    """Apply the RMS norm with its gain, then the rotation, to all rows."""
    run_parallel(pool, _forward_part, (x, weight, cos, sin, y, tokens, positions, heads, half, eps))


@compiled
def _unrotate_and_sum(x, weight, cos, sin, g, unrotated, squares, dots, first, last, positions, heads, half):
    """Undo the rotation of g; sum x x and v x over each row, with v = unrotated weight."""
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
def _backward_block(x, weight, cos, sin, g, dx, dweight, first, end, positions, heads, half, eps, needs_grad):
    """Compute dx of some rows, and their contribution to the gradient of the gain.

    With v = (unrotated g) weight: dx = scale (v - x scale^2 mean(v x)).
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
    """Process the blocks of tokens of one thread."""
    for b in range(blocks * part // parts, blocks * (part + 1) // parts):
        _backward_block(
            x, weight, cos, sin, g, dx, sums + 16 * b * half,
            tokens * b // blocks * heads, tokens * (b + 1) // blocks * heads, positions, heads, half, eps, needs_grad,
        )  # fmt: skip


@compiled
def _sum_blocks(sums, result, blocks, e):
    """Sum over all blocks, in order, into the first one."""
    vectorize()
    for b in range(1, blocks):
        for j in range(e):
            sums[j] += sums[b * e + j]
    for j in range(e):
        result[j] = sums[j]


@compiled
def rms_norm_rotary_backward(
    pool, x, weight, cos, sin, g, dx, dweight, sums, blocks, tokens, positions, heads, half, eps,
    needs_grad,
):  # fmt: skip
    """Compute dx and, if needed, dweight. `sums` holds blocks * e float64 numbers."""
    run_parallel(pool, _backward_part,
        (x, weight, cos, sin, g, dx, sums, blocks, tokens, positions, heads, half, eps, needs_grad),
    )  # fmt: skip
    if needs_grad:
        _sum_blocks(float64_at(sums), float32_at(dweight), blocks, 2 * half)
