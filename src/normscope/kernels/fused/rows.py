"""Norms whose statistics are each over one row of contiguous memory: LayerNorm, RMSNorm, and others without a gain.

A row is read from memory once; its later passes find it in the cache. Sums and results are in float64 registers, as in
the readable form, so that what is stored is that form's result rounded once. Only the input is kept for the backward
pass, which takes the row's statistics again.

Every row is computed alike, whatever the number of rows or threads; the gradients of gain and bias are summed in blocks
whose size depends on the number of rows alone. So the same input gives the same bits, always.
"""

import math

import numpy as np
from numba import carray, prange

from normscope.kernels.fused.compiler import bool_at, compiled, compiled_twice, float32_at


@compiled
def _statistics(x, d, centred):  # type: ignore[no-untyped-def]
    """The mean, and the mean square around it; around zero if it is not to be centred.

    Both in one pass, around the first value: it lies within sqrt(d) deviations of the mean, so that the difference of
    squares keeps its digits (float64 has nine more than float32).
    """
    around = np.float64(x[0]) if centred else 0.0
    total, square = 0.0, 0.0
    for j in range(d):
        value = np.float64(x[j]) - around
        total += value
        square += value * value
    off = total / d if centred else 0.0
    return around + off, max(square / d - off * off, 0.0) if square == square else square


@compiled
def _standardise(x, weight, bias, y, mean, scale, d):  # type: ignore[no-untyped-def]
    for j in range(d):
        y[j] = (np.float64(x[j]) - mean) * scale * weight[j] + bias[j]


@compiled
def _forward_rows(x, weight, bias, real, y, first, last, d, eps, centred, masked):  # type: ignore[no-untyped-def]
    for i in range(first, last):
        if masked and not real[i]:
            y[i] = 0.0
            continue
        mean, square = _statistics(x[i], d, centred)
        _standardise(x[i], weight, bias, y[i], mean, 1.0 / math.sqrt(square + eps), d)


def _forward(x, weight, bias, real, y, rows, d, eps, centred, has_weight, has_bias, masked, block):  # type: ignore[no-untyped-def]
    """y of all rows. Arrays are given by their addresses."""
    xs, ys, reals = carray(float32_at(x), (rows, d)), carray(float32_at(y), (rows, d)), carray(bool_at(real), (rows,))
    weights, biases = np.ones(d), np.zeros(d)
    if has_weight:
        weights[:] = carray(float32_at(weight), (d,))
    if has_bias:
        biases[:] = carray(float32_at(bias), (d,))
    for b in prange((rows + block - 1) // block):
        _forward_rows(
            xs, weights, biases, reals, ys, b * block, min(rows, (b + 1) * block), d, eps, centred, masked
        )  # fmt: skip


@compiled
def _sums(x, weight, g, mean, d):  # type: ignore[no-untyped-def]
    pull, push = 0.0, 0.0
    for j in range(d):
        v = np.float64(g[j]) * weight[j]
        pull += v * (np.float64(x[j]) - mean)
        push += v
    return pull / d, push / d


@compiled
def _gradient(x, weight, g, dx, mean, scale, pull, push, d):  # type: ignore[no-untyped-def]
    for j in range(d):
        dx[j] = scale * (np.float64(g[j]) * weight[j] - push - (np.float64(x[j]) - mean) * scale * pull)


@compiled
def _gradient_and_gain(x, weight, g, dx, dweight, mean, scale, pull, push, d):  # type: ignore[no-untyped-def]
    for j in range(d):
        v, xhat = np.float64(g[j]), (np.float64(x[j]) - mean) * scale
        dweight[j] += v * xhat
        dx[j] = scale * (v * weight[j] - push - xhat * pull)


@compiled
def _add_row(g, dbias, d):  # type: ignore[no-untyped-def]
    for j in range(d):
        dbias[j] += np.float64(g[j])


@compiled
def _backward_rows(  # type: ignore[no-untyped-def]
    x, weight, real, g, dx, dweight, dbias, first, last, d, eps, centred, learns_weight, learns_bias, masked
):
    """dx of some rows, and what they add to the gradients of gain and bias.

    With xhat = (x - mean) scale and v = g weight:  dx = scale (v - mean(v) - xhat mean(v xhat)), where the mean of v
    is left out if x was not centred.
    """
    for i in range(first, last):
        if masked and not real[i]:
            dx[i] = 0.0
            continue
        mean, square = _statistics(x[i], d, centred)
        scale = 1.0 / math.sqrt(square + eps)
        pull, push = _sums(x[i], weight, g[i], mean, d)
        pull, push = pull * scale, push if centred else 0.0
        if learns_weight:
            _gradient_and_gain(x[i], weight, g[i], dx[i], dweight, mean, scale, pull, push, d)
        else:
            _gradient(x[i], weight, g[i], dx[i], mean, scale, pull, push, d)
        if learns_bias:
            _add_row(g[i], dbias, d)


@compiled
def _add_up(blocks, total, d):  # type: ignore[no-untyped-def]
    """The sum over all blocks, in their order."""
    for j in range(d):
        value = 0.0
        for b in range(blocks.shape[0]):
            value += blocks[b, j]
        total[j] = value


def _backward(  # type: ignore[no-untyped-def]
    x, weight, real, g, dx, dweight, dbias, rows, d, eps, centred, has_weight, learns_weight, learns_bias, masked, block
):
    """dx of all rows, dweight and dbias."""
    xs, gs, dxs = carray(float32_at(x), (rows, d)), carray(float32_at(g), (rows, d)), carray(float32_at(dx), (rows, d))
    reals, weights = carray(bool_at(real), (rows,)), np.ones(d)
    if has_weight:
        weights[:] = carray(float32_at(weight), (d,))
    count = (rows + block - 1) // block
    sums = np.zeros((2, count, d if learns_weight or learns_bias else 0))
    for b in prange(count):
        _backward_rows(
            xs, weights, reals, gs, dxs, sums[0, b], sums[1, b],
            b * block, min(rows, (b + 1) * block), d, eps, centred, learns_weight, learns_bias, masked,
        )  # fmt: skip
    if learns_weight:
        _add_up(sums[0], carray(float32_at(dweight), (d,)), d)
    if learns_bias:
        _add_up(sums[1], carray(float32_at(dbias), (d,)), d)


forward, forward_by_many = compiled_twice(_forward)
backward, backward_by_many = compiled_twice(_backward)
