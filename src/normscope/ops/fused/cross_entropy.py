"""Cross-entropy of rows of logits, with the gradient computed while the row is in the cache.

With m the largest logit of a row: loss = log(sum_j exp(z_j - m)) - (z_target - m), and the gradient of z_j is
(exp(z_j - m) / sum - [j is the target]) / count. A soft cap c replaces z with c tanh(z / c).

Exponentials are summed in float32 over short chunks, then in float64, as are the rows. Each row is computed the same
way, and rows are summed in order, so results do not depend on the number of threads.
"""

import math

import numpy as np

from normscope.ops.fused.compiler import compiled, float32_at, float64_at, fma, int64_at, vectorize
from normscope.ops.fused.math_functions import exp_negative, maximum, tanh
from normscope.ops.fused.parallel import run_parallel, share
from normscope.ops.fused.vector_loops import fill

_CHUNK = 512  # values summed in float32
_ONE = np.float32(1.0)


@compiled
def _capped_tanh(z, t, cap, d):
    """Compute t = tanh(z / cap)."""
    vectorize()
    for j in range(d):
        t[j] = tanh(z[j] / cap)


@compiled
def _largest(z, d):
    vectorize()
    largest = np.float32(-np.inf)
    for j in range(d):
        largest = maximum(largest, z[j])
    return largest


@compiled
def _exponentials(z, largest, e, d):
    """Compute e = exp(z - largest); return the sum."""
    vectorize()
    total = 0.0
    for first in range(0, d, _CHUNK):
        chunk = np.float32(0.0)
        for j in range(first, min(d, first + _CHUNK)):
            e[j] = exp_negative(largest - z[j])
            chunk += e[j]
        total += np.float64(chunk)
    return total


@compiled
def _capped_exponentials(t, largest, cap, d):
    """Return the sum of exp(cap (t - largest)), without overwriting t."""
    vectorize()
    total = 0.0
    for first in range(0, d, _CHUNK):
        chunk = np.float32(0.0)
        for j in range(first, min(d, first + _CHUNK)):
            chunk += exp_negative(cap * (largest - t[j]))
        total += np.float64(chunk)
    return total


@compiled
def _scale(e, factor, d):
    vectorize()
    for j in range(d):
        e[j] *= factor


@compiled
def _capped_gradient(t, largest, cap, factor, d):
    """Replace t with exp(cap (t - largest)) times the factor and the derivative of tanh."""
    vectorize()
    for j in range(d):
        t[j] = exp_negative(cap * (largest - t[j])) * factor * fma(-t[j], t[j], _ONE)


@compiled
def _row(z, row, target, count, d, needs_grad):
    """Return the loss of a row; write its gradient to `row` if needed."""
    values, gradient = float32_at(z), float32_at(row)
    largest = _largest(values, d)
    target_score = np.float64(values[target]) - largest
    total = _exponentials(values, largest, gradient, d)
    if needs_grad:
        at_target = gradient[target] / total
        _scale(gradient, np.float32(1.0 / (total * count)), d)
        gradient[target] = (at_target - 1.0) / count
    return math.log(total) - target_score


@compiled
def _capped_row(z, row, target, count, d, cap, needs_grad):
    t = float32_at(row)
    _capped_tanh(float32_at(z), t, np.float32(cap), d)
    largest, at_target = _largest(t, d), np.float64(t[target])
    target_score = cap * (at_target - largest)
    total = _capped_exponentials(t, largest, np.float32(cap), d)
    if needs_grad:
        _capped_gradient(t, largest, np.float32(cap), np.float32(1.0 / (total * count)), d)
        t[target] = (math.exp(target_score) / total - 1.0) * (1.0 - at_target * at_target) / count
    return math.log(total) - target_score


@compiled
def _part(part, parts, arrays, count, options):
    """Process the rows of one thread. Without a gradient, each thread has one row of workspace."""
    logits, targets, gradient, losses, _, _ = arrays
    rows, d, ignored, cap, needs_grad = options
    for i in share(part, parts, rows):
        z, row, target = logits + 4 * i * d, gradient + 4 * d * (i if needs_grad else part), int64_at(targets)[i]
        if target == ignored:
            float64_at(losses)[i] = 0.0
            if needs_grad:
                fill(float32_at(row), np.float32(0.0), d)
        elif cap > 0.0:
            float64_at(losses)[i] = _capped_row(z, row, target, count, d, cap, needs_grad)
        else:
            float64_at(losses)[i] = _row(z, row, target, count, d, needs_grad)


@compiled
def _count_targets(targets, rows, d, ignored):
    """Return the number of targets that are not ignored, and the row of an invalid target (or -1)."""
    count, invalid = 0, -1
    for i in range(rows):
        if targets[i] != ignored:
            count += 1
            if targets[i] < 0 or targets[i] >= d:
                invalid = i
    return count, invalid


@compiled
def _mean(losses, rows, count):
    total = 0.0
    for i in range(rows):
        total += losses[i]
    return total / count


@compiled
def forward(pool, arrays, options):
    """Compute the mean loss and, if needed, the gradient of all logits.

    Args:
        arrays: addresses of logits, targets, gradient (as large as the logits, or without a gradient a row a thread),
            losses (a float64 a row), loss and invalid: the row of a target out of range, or -1. If there is one,
            nothing is computed.
        options: rows, d, the target of rows that are ignored, cap (0 for none), needs_grad.
    """
    _, targets, _, losses, loss, invalid = arrays
    rows, d, ignored, _, _ = options
    count, int64_at(invalid)[0] = _count_targets(int64_at(targets), rows, d, ignored)
    if int64_at(invalid)[0] < 0:
        run_parallel(pool, _part, (arrays, count, options))
        float32_at(loss)[0] = _mean(float64_at(losses), rows, count)
