"""Backward pass of norms over few, long rows, such as LayerNorm over whole images.

The rows are too few for blocks and too long for the cache. Threads first split the rows, to compute the sums of each,
then the columns, for everything else: the gradients of gain and bias are column sums, and each thread owns its columns.
"""

import numpy as np

from normscope.ops.fused.accumulation import is_float32_safe, low_part
from normscope.ops.fused.compiler import byte_at, compiled, float32_at, float64_at, fma, vectorize
from normscope.ops.fused.parallel import run_parallel
from normscope.ops.fused.row_norm_backward import backward_sums, finalize_backward_sums
from normscope.ops.fused.vector_loops import add_to, fill

_WIDTH = 1024  # columns processed together
WORKSPACE_PER_ROW = 4  # float64 numbers per row


@compiled
def _sum_part(part, parts, x, weight, mask, means, g, workspace, rows, d, eps, centered, has_mask):
    for i in range(rows * part // parts, rows * (part + 1) // parts):
        if has_mask and byte_at(mask)[i] == 0:
            continue
        at, own, zero = 4 * i * d, workspace + 32 * i, workspace + 32 * rows
        center = float64_at(means + 8 * i if centered else zero)
        square, scale, dot, grad_sum = float64_at(own), float64_at(own + 8), float64_at(own + 16), float64_at(own + 24)
        backward_sums(float32_at(x + at), float32_at(weight), float32_at(g + at), center, square, dot, grad_sum, 1, d)
        finalize_backward_sums(x + at, weight, g + at, center, square, scale, dot, grad_sum, 1, d, eps, centered)


@compiled
def _gradient(x, weight, g, dx, mean, scale, dot, grad_sum, count, fast):
    vectorize()
    if fast:
        s = np.float32(scale)
        s_low, slope = np.float32(scale - s), np.float32(-scale * dot)
        off = np.float32(scale * (mean * dot - grad_sum))
        for j in range(count):
            high = s * weight[j]
            low = low_part(s, s_low, weight[j], high)
            dx[j] = fma(g[j], high, fma(g[j], low, fma(x[j], slope, off)))
    else:
        for j in range(count):
            dx[j] = scale * (np.float64(g[j]) * weight[j] - grad_sum - (np.float64(x[j]) - mean) * dot)


@compiled
def _add_affine_grads(x, g, dweight, dbias, mean, scale, count, fast):
    vectorize()
    if fast:
        s, off = np.float32(scale), np.float32(-mean * scale)
        for j in range(count):
            dweight[j] += g[j] * fma(x[j], s, off)
            dbias[j] += g[j]
    else:
        for j in range(count):
            dweight[j] += np.float64(g[j]) * ((np.float64(x[j]) - mean) * scale)
            dbias[j] += g[j]


@compiled
def _cast_to_float32(sums, result, count):
    vectorize()
    for j in range(count):
        result[j] = sums[j]


@compiled
def _column_part(
    part, parts, x, weight, mask, means, g, residual_grad, dx, dweight, dbias, workspace, sums, rows, d, centered,
    needs_weight_grad, needs_bias_grad, has_mask, has_residual,
):  # fmt: skip
    mine = sums + 16 * _WIDTH * part
    gain, bias, strips = float64_at(mine), float64_at(mine + 8 * _WIDTH), (d + _WIDTH - 1) // _WIDTH
    for strip in range(strips * part // parts, strips * (part + 1) // parts):
        first = strip * _WIDTH
        count, w = min(_WIDTH, d - first), float32_at(weight + 4 * first)
        fill(gain, 0.0, 2 * _WIDTH)
        for i in range(rows):
            at, own = 4 * (i * d + first), workspace + 32 * i
            xs, gs, dxs = float32_at(x + at), float32_at(g + at), float32_at(dx + at)
            if has_mask and byte_at(mask)[i] == 0:
                fill(dxs, np.float32(0.0), count)
                continue
            mean, row = float64_at(means)[i] if centered else 0.0, float64_at(own)
            fast = is_float32_safe(mean, row[0], d)
            _gradient(xs, w, gs, dxs, mean, row[1], row[2], row[3], count, fast)
            if has_residual:
                add_to(dxs, float32_at(residual_grad + at), count)
            if needs_weight_grad or needs_bias_grad:
                _add_affine_grads(xs, gs, gain, bias, mean, row[1], count, fast)
        if needs_weight_grad:
            _cast_to_float32(gain, float32_at(dweight + 4 * first), count)
        if needs_bias_grad:
            _cast_to_float32(bias, float32_at(dbias + 4 * first), count)


@compiled
def backward(
    pool, x, weight, mask, means, g, residual_grad, dx, dweight, dbias, workspace, sums, rows, d,
    eps, centered, needs_weight_grad, needs_bias_grad, has_mask, has_residual,
):  # fmt: skip
    """Same as `row_norm_backward.backward`, with a `workspace` and `sums` of the sizes of `workspace_sizes`."""
    float64_at(workspace)[WORKSPACE_PER_ROW * rows] = 0.0
    run_parallel(pool, _sum_part, (x, weight, mask, means, g, workspace, rows, d, eps, centered, has_mask)
    )  # fmt: skip
    run_parallel(pool, _column_part,
        (x, weight, mask, means, g, residual_grad, dx, dweight, dbias, workspace, sums, rows, d, centered,
        needs_weight_grad, needs_bias_grad, has_mask, has_residual),
    )  # fmt: skip


def workspace_sizes(threads: int, rows: int) -> tuple[int, int]:
    """Return the number of float64 values of `workspace` and of `sums`."""
    return WORKSPACE_PER_ROW * rows + 1, 2 * _WIDTH * threads
