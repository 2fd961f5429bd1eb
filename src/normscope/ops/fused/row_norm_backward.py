"""Backward pass of the row norms; see `row_norm.py`.

With xhat = (x - mean) scale and v = g weight: dx = scale (v - mean(v) - xhat mean(v xhat)), without mean(v) if x is not
centered. The gradients of gain and bias are sums over all rows: four rows at a time in float32, a block of rows in
float64, and all blocks in order.
"""

import math

import numpy as np

from normscope.ops.fused.accumulation import CHUNK, is_float32_safe, low_part
from normscope.ops.fused.compiler import byte_at, compiled, float32_at, float64_at, fma, stack_buffer, vectorize
from normscope.ops.fused.parallel import run_parallel
from normscope.ops.fused.row_norm import MAX_ROWS, mask_run_length, rows_per_pass
from normscope.ops.fused.vector_loops import add_to, fill

_workspace = stack_buffer(5 * MAX_ROWS)


@compiled
def backward_sums(x, weight, g, means, squares, dots, grad_sums, rows, d):
    """Sum c c, v c and v over each row, with c = x - mean and v = g weight."""
    vectorize()
    for i in range(rows):
        at, mean = i * d, np.float32(means[i])
        squares[i], dots[i], grad_sums[i] = 0.0, 0.0, 0.0
        for first in range(0, d, CHUNK):
            square, dot, grad_sum = np.float32(0.0), np.float32(0.0), np.float32(0.0)
            for j in range(first, min(d, first + CHUNK)):
                c = x[at + j] - mean
                v = g[at + j] * weight[j]
                square += c * c
                dot += v * c
                grad_sum += v
            squares[i] += square
            dots[i] += dot
            grad_sums[i] += grad_sum


@compiled
def _backward_sums_float64(x, weight, g, mean, d):
    vectorize()
    square, dot, grad_sum = 0.0, 0.0, 0.0
    for j in range(d):
        c = np.float64(x[j]) - mean
        v = np.float64(g[j]) * weight[j]
        square += c * c
        dot += v * c
        grad_sum += v
    return square / d, dot / d, grad_sum / d


@compiled
def finalize_backward_sums(x, weight, g, means, squares, scales, dots, grad_sums, rows, d, eps, centered):
    for i in range(rows):
        # The sums use the mean rounded to float32; correct for the difference.
        off, grad_sum = means[i] - np.float32(means[i]), grad_sums[i] / d
        square, dot = squares[i] / d - off * off, dots[i] / d - off * grad_sum
        if not is_float32_safe(means[i], square, d):
            at = 4 * i * d
            square, dot, grad_sum = _backward_sums_float64(
                float32_at(x + at), float32_at(weight), float32_at(g + at), means[i], d
            )
        scale = 1.0 / math.sqrt(square + eps)
        squares[i], scales[i] = square, scale
        dots[i], grad_sums[i] = dot * scale * scale, grad_sum if centered else 0.0


@compiled
def _gradient(x, weight, g, dx, means, squares, scales, dots, grad_sums, rows, d):
    """Compute dx = scale (g weight - grad_sum - (x - mean) dot)."""
    vectorize()
    for i in range(rows):
        at, mean, scale, dot, grad_sum = i * d, means[i], scales[i], dots[i], grad_sums[i]
        if is_float32_safe(mean, squares[i], d):
            s = np.float32(scale)
            s_low, factor = np.float32(scale - s), np.float32(-scale * dot)
            off = np.float32(scale * (mean * dot - grad_sum))
            for j in range(d):
                high = s * weight[j]
                low = low_part(s, s_low, weight[j], high)
                dx[at + j] = fma(g[at + j], high, fma(g[at + j], low, fma(x[at + j], factor, off)))
        else:
            for j in range(d):
                dx[at + j] = scale * (
                    np.float64(g[at + j]) * weight[j] - grad_sum - (np.float64(x[at + j]) - mean) * dot
                )


@compiled
def _add_weight_grad(x, g, dweight, means, squares, scales, rows, d):
    """Add g xhat of each row: four fast rows at a time in float32, added to the sum in float64."""
    vectorize()
    i = 0
    while i < rows:
        fast = i + 4 <= rows
        for k in range(i, min(i + 4, rows)):
            fast = fast and is_float32_safe(means[k], squares[k], d)
        if fast:
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
        elif is_float32_safe(means[i], squares[i], d):
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
def _add_bias_grad(g, dbias, rows, d):
    vectorize()
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
    x, weight, mask, means, g, residual_grad, dx, sums, first, last, d, eps, centered, needs_weight_grad,
    needs_bias_grad, has_mask, has_residual,
):  # fmt: skip
    """Compute dx of some rows, and their contribution to the gradients of gain and bias."""
    few, w, workspace = rows_per_pass(d), float32_at(weight), _workspace()
    squares, scales, dots, grad_sums = (
        float64_at(workspace), float64_at(workspace + 8 * few), float64_at(workspace + 16 * few),
        float64_at(workspace + 24 * few)
    )  # fmt: skip
    zeros = workspace + 32 * few
    fill(float64_at(zeros), 0.0, few)
    dweight, dbias = float64_at(sums), float64_at(sums + 8 * d)
    if needs_weight_grad or needs_bias_grad:
        fill(dweight, 0.0, 2 * d)
    i = first
    while i < last:
        at, count = 4 * i * d, min(few, last - i)
        xs, gs, dxs = float32_at(x + at), float32_at(g + at), float32_at(dx + at)
        if has_mask:
            count = mask_run_length(mask, i, i + count)
        if has_mask and byte_at(mask)[i] == 0:
            fill(dxs, np.float32(0.0), count * d)
        else:
            centers = float64_at(means + 8 * i if centered else zeros)
            backward_sums(xs, w, gs, centers, squares, dots, grad_sums, count, d)
            finalize_backward_sums(
                x + at, weight, g + at, centers, squares, scales, dots, grad_sums, count, d, eps, centered
            )
            _gradient(xs, w, gs, dxs, centers, squares, scales, dots, grad_sums, count, d)
            if has_residual:
                add_to(dxs, float32_at(residual_grad + at), count * d)
            if needs_weight_grad:
                _add_weight_grad(xs, gs, dweight, centers, squares, scales, count, d)
            if needs_bias_grad:
                _add_bias_grad(gs, dbias, count, d)
        i += count


@compiled
def _backward_part(
    part, parts, x, weight, mask, means, g, residual_grad, dx, sums, blocks, rows, d, eps, centered, needs_weight_grad,
    needs_bias_grad, has_mask, has_residual,
):  # fmt: skip
    """Process the blocks of rows of one thread."""
    for b in range(blocks * part // parts, blocks * (part + 1) // parts):
        _backward_block(
            x, weight, mask, means, g, residual_grad, dx, sums + 16 * b * d, rows * b // blocks,
            rows * (b + 1) // blocks, d, eps, centered, needs_weight_grad, needs_bias_grad, has_mask, has_residual,
        )  # fmt: skip


@compiled
def _sum_blocks(sums, total, result, blocks, d):
    """Sum over all blocks, in order."""
    vectorize()
    for j in range(d):
        total[j] = 0.0
    for b in range(blocks):
        for j in range(d):
            total[j] += sums[2 * b * d + j]
    for j in range(d):
        result[j] = total[j]


@compiled
def backward(pool, arrays, results, options):
    """Compute dx, dweight and dbias. With a residual, the gradient that bypasses the norm is added to dx.

    Args:
        arrays: addresses of x, weight, mask, means, g, residual_grad, dx and sums. The latter holds (2 blocks + 1) d
            float64 numbers: the sums of each block for gain and bias, and the total.
        results: addresses of dweight and dbias, 0 for those that are not needed.
        options: blocks, rows, d, eps, centered, needs_weight_grad, needs_bias_grad, has_mask, has_residual.
    """
    run_parallel(pool, _backward_part, arrays + options)
    sums, blocks, d = arrays[7], options[0], options[2]
    total = float64_at(sums + 16 * blocks * d)
    for i in range(2):
        if results[i]:
            _sum_blocks(float64_at(sums + 8 * i * d), total, float32_at(results[i]), blocks, d)
