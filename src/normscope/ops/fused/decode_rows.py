"""Kernels for decoding one token per row: products with weights in three formats, norms, rotary and attention.

Decoding is memory-bound: every weight is read once and applied to all rows while it is in the cache. Each row is
computed by the same functions in the same order, whatever the number of rows or threads, so the result for a sequence
does not depend on the rest of the batch.

Weight formats (one row of w per output):
- float32;
- bfloat16, packed in pairs in uint32: the first half of the row in the low bits, the second half in the high bits. For
  odd lengths the first half is longer by one, and the last high bits are unused;
- int8, with a scale per row.
"""

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from normscope.ops.fused.compiler import compiled, float32_at, instruction, int8_at, uint32_at, vectorize
from normscope.ops.fused.math_functions import exp
from normscope.ops.fused.vector_loops import add_to, copy, sums_around

FLOAT32, BFLOAT16, INT8 = 0, 1, 2
_ZERO = np.float32(0.0)
_HALF, _UPPER = np.uint32(16), np.uint32(0xFFFF0000)


@instruction(types.float32, types.uint32)
def _as_float32(builder: Any, bits: Any) -> Any:
    return builder.bitcast(bits, ir.FloatType())


@compiled
def _unpacked(x, w0, w1, w2, w3, d):
    """Compute the products with four rows of float32 or int8."""
    vectorize()
    y0 = y1 = y2 = y3 = _ZERO
    for j in range(d):
        y0 += x[j] * np.float32(w0[j])
        y1 += x[j] * np.float32(w1[j])
        y2 += x[j] * np.float32(w2[j])
        y3 += x[j] * np.float32(w3[j])
    return y0, y1, y2, y3


@compiled
def _low(both):
    return _as_float32(np.uint32(both << _HALF))


@compiled
def _high(both):
    return _as_float32(np.uint32(both & _UPPER))


@compiled
def _halves(low, high, w0, w1, w2, w3, half):
    vectorize()
    y0 = y1 = y2 = y3 = _ZERO
    for j in range(half):
        y0 += low[j] * _low(w0[j]) + high[j] * _high(w0[j])
        y1 += low[j] * _low(w1[j]) + high[j] * _high(w1[j])
        y2 += low[j] * _low(w2[j]) + high[j] * _high(w2[j])
        y3 += low[j] * _low(w3[j]) + high[j] * _high(w3[j])
    return y0, y1, y2, y3


@compiled
def _bfloat16(x, w0, w1, w2, w3, d):
    """Compute the products of both halves, and of the unpaired middle value if d is odd."""
    half = d // 2
    y0, y1, y2, y3 = _halves(float32_at(x), float32_at(x, d - half), w0, w1, w2, w3, half)
    if d % 2 == 0:
        return y0, y1, y2, y3
    middle = float32_at(x)[half]
    return (
        y0 + middle * _low(w0[half]), y1 + middle * _low(w1[half]),
        y2 + middle * _low(w2[half]), y3 + middle * _low(w3[half]),
    )  # fmt: skip


@compiled
def four_products(weight_format, x, w, scale, i, step, d):
    """Multiply the row at x with the rows i, i + step, i + 2 step and i + 3 step of a weight.

    Four distant rows are four streams for the hardware prefetcher; four adjacent rows would share a page, of which it
    follows one stream. A single int8 row is read at half the speed.
    """
    a, b, c, e = i, i + step, i + 2 * step, i + 3 * step
    if weight_format == BFLOAT16:
        n = (d + 1) // 2
        return _bfloat16(x, uint32_at(w, a * n), uint32_at(w, b * n), uint32_at(w, c * n), uint32_at(w, e * n), d)
    xs = float32_at(x)
    if weight_format == FLOAT32:
        return _unpacked(xs, float32_at(w, a * d), float32_at(w, b * d), float32_at(w, c * d), float32_at(w, e * d), d)
    scales = float32_at(scale)
    y0, y1, y2, y3 = _unpacked(xs, int8_at(w, a * d), int8_at(w, b * d), int8_at(w, c * d), int8_at(w, e * d), d)
    return y0 * scales[a], y1 * scales[b], y2 * scales[c], y3 * scales[e]


@compiled
def _scale(y, mean, scale, d):
    vectorize()
    for j in range(d):
        y[j] = np.float32((np.float64(y[j]) - mean) * scale)


@compiled
def _multiply_by_weight(y, weight, d):
    vectorize()
    for j in range(d):
        y[j] *= weight[j]


@compiled
def normalize(x, weight, bias, y, d, eps, centered):
    """Normalize the d numbers at x into y, in float64. x and y may be the same address."""
    pivot = np.float64(float32_at(x)[0]) if centered else 0.0
    total, square = sums_around(float32_at(x), pivot, d)
    off = total / d if centered else 0.0
    variance = square / d - off * off
    variance = 0.0 if variance < 0 else variance  # NaN < 0 is False: NaN propagates
    if x != y:
        copy(float32_at(x), float32_at(y), d)
    _scale(float32_at(y), pivot + off, 1.0 / math.sqrt(variance + eps), d)
    if weight:
        _multiply_by_weight(float32_at(y), float32_at(weight), d)
    if bias:
        add_to(float32_at(y), float32_at(bias), d)


@compiled
def apply_rotary(x, cos, sin, half):
    """Rotate a head in place: (a, b) -> (a cos - b sin, a sin + b cos), where a and b are its halves."""
    heads, cosines, sines = float32_at(x), float32_at(cos), float32_at(sin)
    for j in range(half):
        a, b = heads[j], heads[half + j]
        heads[j] = a * cosines[j] - b * sines[j]
        heads[half + j] = a * sines[j] + b * cosines[j]


@compiled
def _largest(scores, count):
    largest = scores[0]
    for t in range(1, count):
        largest = max(largest, scores[t])
    return largest


@compiled
def _softmax_weights(scores, largest, count):
    """Replace the scores with exponentials; return their sum."""
    vectorize()
    total = _ZERO
    for t in range(count):
        scores[t] = exp(scores[t] - largest)
        total += scores[t]
    return total


@compiled
def _scores(query, keys, scores, scale, count, e):
    vectorize()
    for t in range(count):
        total = _ZERO
        for j in range(e):
            total += query[j] * keys[t * e + j]
        scores[t] = total * scale


@compiled
def _mean(values, weights, y, total, count, e):
    vectorize()
    for j in range(e):
        y[j] = _ZERO
    for t in range(count):
        weight = weights[t] / total
        for j in range(e):
            y[j] += weight * values[t * e + j]


@compiled
def attend(query, keys, values, y, scores, count, e, scale):
    """Compute attention of one query over `count` keys and values, (count, e), with scaled scores."""
    weights = float32_at(scores)
    _scores(float32_at(query), float32_at(keys), weights, scale, count, e)
    total = _softmax_weights(weights, _largest(weights, count), count)
    _mean(float32_at(values), weights, float32_at(y), total, count, e)
