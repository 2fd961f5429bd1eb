"""What one new token asks of a few rows: products with weights in three formats, norms, turns and attention.

Memory is the limit: every weight is read once, and each row meets it in the cache. A row's numbers come from the same
functions in the same order whatever the number of rows or threads, so a text has the same bits alone and beside others.

The formats of a weight (rows of w, one for each output):
- float32;
- bfloat16, two in each uint32: the first half of the row in the low bits, the second half in the high ones; of an odd
  row the first half is longer by one, and the last high bits mean nothing;
- int8, times a scale for each row.
"""

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from normscope.kernels.fused.compiler import compiled, float32_at, in_vectors, int8_at, uint32_at
from normscope.kernels.fused.mathematics import exp

FLOAT32, BFLOAT16, INT8 = 0, 1, 2
_ZERO = np.float32(0.0)
_LOW, _HIGH = np.uint32(16), np.uint32(0xFFFF0000)


@intrinsic
def _as_float32(_: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), generate


@compiled
def _dot_float32(x, w, d):
    in_vectors()
    total = _ZERO
    for j in range(d):
        total += x[j] * w[j]
    return total


@compiled
def _dot_bfloat16(low, high, w, half):
    in_vectors()
    total = _ZERO
    for j in range(half):
        both = w[j]
        total += low[j] * _as_float32(np.uint32(both << _LOW)) + high[j] * _as_float32(np.uint32(both & _HIGH))
    return total


@compiled
def _dot_packed(x, w, d):
    """The halves of a row; and the number in the middle of an odd one, which has no partner."""
    half = d // 2
    y = _dot_bfloat16(float32_at(x), float32_at(x + 4 * (d - half)), uint32_at(w), half)
    return y + float32_at(x)[half] * _as_float32(np.uint32(uint32_at(w)[half] << _LOW)) if d % 2 else y


@compiled
def _dot_int8(x, w, d):
    in_vectors()
    total = _ZERO
    for j in range(d):
        total += x[j] * np.float32(w[j])
    return total


@compiled
def _dot(kind, x, w, scale, i, d):
    """The product of the row at x with row i of a weight."""
    if kind == FLOAT32:
        return _dot_float32(float32_at(x), float32_at(w + 4 * i * d), d)
    if kind == BFLOAT16:
        return _dot_packed(x, w + 4 * i * ((d + 1) // 2), d)
    return _dot_int8(float32_at(x), int8_at(w + i * d), d) * float32_at(scale)[i]


@compiled
def project(kind, x, w, scale, bias, i, d):
    """Output i of a linear layer: the product, and the bias if there is one."""
    y = _dot(kind, x, w, scale, i, d)
    return y + float32_at(bias)[i] if bias else y


@compiled
def _sums(x, d, around):
    in_vectors()
    total, square = 0.0, 0.0
    for j in range(d):
        value = np.float64(x[j]) - around
        total += value
        square += value * value
    return total, square


@compiled
def _copied(x, y, d):
    in_vectors()
    for j in range(d):
        y[j] = x[j]


@compiled
def _scaled(y, mean, scale, d):
    in_vectors()
    for j in range(d):
        y[j] = np.float32((np.float64(y[j]) - mean) * scale)


@compiled
def _gained(y, weight, d):
    in_vectors()
    for j in range(d):
        y[j] *= weight[j]


@compiled
def _shifted(y, bias, d):
    in_vectors()
    for j in range(d):
        y[j] += bias[j]


@compiled
def normalize(x, weight, bias, y, d, eps, centred):
    """y = the norm of x over its d numbers; in float64, for a token has few of them. x and y may be the same."""
    around = np.float64(float32_at(x)[0]) if centred else 0.0
    total, square = _sums(float32_at(x), d, around)
    off = total / d if centred else 0.0
    variance = square / d - off * off
    variance = 0.0 if variance < 0 else variance  # NaN is not below zero, and stays
    if x != y:
        _copied(float32_at(x), float32_at(y), d)
    _scaled(float32_at(y), around + off, 1.0 / math.sqrt(variance + eps), d)
    if weight:
        _gained(float32_at(y), float32_at(weight), d)
    if bias:
        _shifted(float32_at(y), float32_at(bias), d)


@compiled
def turn(x, cos, sin, half):
    """(a, b) -> (a cos - b sin, a sin + b cos), a and b the halves of a head, in place."""
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
def _weigh(scores, largest, count):
    """The exponentials of the scores, and their sum."""
    in_vectors()
    total = _ZERO
    for t in range(count):
        scores[t] = exp(scores[t] - largest)
        total += scores[t]
    return total


@compiled
def _add_times(y, x, factor, d):
    in_vectors()
    for j in range(d):
        y[j] += factor * x[j]


@compiled
def attend(query, keys, values, y, scores, count, e):
    """What one head makes of `count` keys and values, (count, e): their mean, weighed by softmax(q.k / sqrt(e))."""
    weights, result, scale = float32_at(scores), float32_at(y), np.float32(1.0 / math.sqrt(e))
    for t in range(count):
        weights[t] = _dot_float32(float32_at(query), float32_at(keys + 4 * t * e), e) * scale
    total = _weigh(weights, _largest(weights, count), count)
    for j in range(e):
        result[j] = _ZERO
    for t in range(count):
        _add_times(result, float32_at(values + 4 * t * e), weights[t] / total, e)
