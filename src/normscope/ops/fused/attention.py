"""Attention kernels for short sequences, forward and backward: one head at a time, within the cache.

Axes: s tokens; heads of e features, of which `group` share the keys and values of one KV head. Queries are processed in
panels of PANEL columns, so that the softmax of each query runs in a vector lane and needs no reduction across lanes.
Scores have shape (key, query).

- A query attends to the keys from `back` before it to `ahead` after it. Tiles outside this range are skipped; within
  partially visible tiles, masked scores are -inf.
- Rows that do not fill whole tiles are first copied into zero-padded buffers, so there is one code path for all sizes.
- The backward pass recomputes the probabilities from q and k. Saving the row sums would save little time, which is
  spent on the matrix product, and would cost digits for large scores. With probabilities p and dp = dy v:
  ds = scale p (dp - sum(p dp)), then dq = ds k, dk = ds q, dv = p dy.

A KV head is processed by one thread in a fixed order, so results do not depend on the number of threads, and the result
of a query does not depend on masked keys.
"""

import math
from collections import namedtuple

import numpy as np

from normscope.ops.fused.compiler import compiled, float32_at, vectorize
from normscope.ops.fused.math_functions import exp_negative
from normscope.ops.fused.matmul_tiles import PANEL, ROWS, invert_panel, plus_times, scale_panel, times, transpose
from normscope.ops.fused.parallel import run_parallel, share
from normscope.ops.fused.vector_loops import fill

_SUM_LENGTH = 128  # length of sequential sums; longer sums are sums of these
_ZERO, _ONE, _NEGATIVE_INFINITY = np.float32(0.0), np.float32(1.0), np.float32(-np.inf)

_Forward = namedtuple("_Forward", "q k v y workspace")
_Backward = namedtuple("_Backward", "q k v dy dq dk dv workspace")
_Sizes = namedtuple("_Sizes", "items s kv_heads group e back ahead")
_Buffers = namedtuple(
    "_Buffers", "keys values key_sums value_sums scores score_grads queries queries_t grads grads_t sums"
)


@compiled
def _round_up(count, unit):
    """Round count up to a multiple of unit."""
    return (count + unit - 1) // unit * unit


@compiled
def workspace_size(s, e):
    """Return the number of float32 values of workspace per thread, as `_buffers` lays them out."""
    whole, width = _round_up(s, ROWS), _round_up(e, PANEL)
    return 4 * whole * width + 2 * whole * PANEL + 4 * PANEL * width + 2 * PANEL


@compiled
def _buffers(workspace, part, size):
    """Return the addresses of a thread's buffers. The forward pass does not use those of gradients."""
    whole, width = _round_up(size.s, ROWS), _round_up(size.e, PANEL)
    rows, column, panel = 4 * whole * width, 4 * whole * PANEL, 4 * PANEL * width
    keys = workspace + 4 * part * workspace_size(size.s, size.e)
    scores = keys + 4 * rows
    queries = scores + 2 * column
    return _Buffers(
        keys, keys + rows, keys + 2 * rows, keys + 3 * rows, scores, scores + column, queries, queries + panel,
        queries + 2 * panel, queries + 3 * panel, queries + 4 * panel,
    )  # fmt: skip


@compiled
def _copy_rows(x, stride, y, y_stride, factors, rows, e):
    """Copy rows of e numbers from x (row stride `stride`) to y, optionally scaled by a factor per row."""
    panels = e // PANEL * PANEL
    for i in range(rows):
        factor = float32_at(factors)[i] if factors else _ONE
        for j in range(0, panels, PANEL):
            scale_panel(x + 4 * (i * stride + j), y + 4 * (i * y_stride + j), factor)
        for j in range(panels, e):
            float32_at(y)[i * y_stride + j] = float32_at(x)[i * stride + j] * factor


@compiled
def _padded_rows(x, stride, workspace, rows, e, whole, width):
    """Return the address and row stride of rows padded to whole tiles (whole, width), copied only if needed."""
    if rows == whole and e == width:
        return x, stride
    fill(float32_at(workspace), _ZERO, whole * width)
    _copy_rows(x, stride, workspace, width, 0, rows, e)
    return workspace, width


@compiled
def _mask_scores(scores, first, last, start, s, back, ahead):
    """Set the scores of masked keys, and of keys beyond the last, to -inf."""
    vectorize()
    for t in range(first, last):
        since = np.float32(t - ahead - start if t < s else PANEL)  # float32, so that all vectors have one type
        until = np.float32(t + back - start)
        for j in range(PANEL):
            is_hidden = (np.float32(j) < since) | (np.float32(j) > until)
            scores[t * PANEL + j] = _NEGATIVE_INFINITY if is_hidden else scores[t * PANEL + j]


@compiled
def _max(a, b):
    return a if a > b else b


@compiled
def _largest(scores, largest, first, last):
    """Compute the maximum score of each query. A NaN may be skipped: it propagates through the sum."""
    vectorize()
    for j in range(PANEL):
        largest[j] = _NEGATIVE_INFINITY
    for t in range(first, last, 4):
        for j in range(PANEL):
            a, b = t * PANEL + j, (t + 2) * PANEL + j
            four = _max(_max(scores[a], scores[a + PANEL]), _max(scores[b], scores[b + PANEL]))
            largest[j] = _max(largest[j], four)


@compiled
def _exponentials(scores, largest, totals, scale, first, last):
    """Replace scores with exp(scale (score - largest)), and compute their sums."""
    vectorize()
    for j in range(PANEL):
        totals[j] = _ZERO
    for t in range(first, last, 4):
        for j in range(PANEL):
            at, most = t * PANEL + j, largest[j]
            a, b = exp_negative(scale * (most - scores[at])), exp_negative(scale * (most - scores[at + PANEL]))
            at2, at3 = at + 2 * PANEL, at + 3 * PANEL
            c, d = exp_negative(scale * (most - scores[at2])), exp_negative(scale * (most - scores[at3]))
            scores[at], scores[at + PANEL], scores[at2], scores[at3] = a, b, c, d
            totals[j] += (a + b) + (c + d)


@compiled
def _scores(queries_t, keys, stride, scores, first, last, e):
    """Compute scores (key, query) of a panel of queries, given transposed."""
    for t in range(first, last, ROWS):
        times(keys + 4 * t * stride, stride, 1, queries_t, PANEL, scores + 4 * t * PANEL, PANEL, e)


@compiled
def _softmax_weights(scores, sums, start, first, last, scale, size):
    """Replace the scores of a panel with exponentials, and compute the inverse of their sums."""
    found, largest, totals = float32_at(scores), float32_at(sums), float32_at(sums, PANEL)
    s, back, ahead = size.s, size.back, size.ahead
    # The keys that every query of the panel attends to
    since, until = max(first, start + PANEL - 1 - back), min(last, min(start + ahead + 1, s))
    _mask_scores(found, first, min(since, last), start, s, back, ahead)
    _mask_scores(found, max(first, until), last, start, s, back, ahead)
    _largest(found, largest, first, last)
    _exponentials(found, largest, totals, scale, first, last)
    invert_panel(sums + 4 * PANEL)


@compiled
def _attention_weights(q, keys, stride, start, scale, buffers, size):
    """Compute the weights of a panel of queries, up to the inverse of their sums.

    Returns the number of queries, the first and the last key that they attend to, and their padded rows and stride.
    """
    rows, row, width = min(PANEL, size.s - start), size.kv_heads * size.group * size.e, _round_up(size.e, PANEL)
    first = max(0, start - size.back) // ROWS * ROWS
    last = _round_up(min(size.s, start + PANEL + size.ahead), ROWS)
    queries, step = _padded_rows(q, row, buffers.queries, rows, size.e, PANEL, width)
    transpose(queries, step, buffers.queries_t, PANEL, width)
    _scores(buffers.queries_t, keys, stride, buffers.scores, first, last, size.e)
    _softmax_weights(buffers.scores, buffers.sums, start, first, last, scale, size)
    return rows, first, last, queries, step


@compiled
def _sum_over_keys(weights, x, stride, y, y_stride, start, rows, size):
    """Compute y (query, e) = sum over visible keys of weights (key, query) * x (key, e)."""
    for r in range(0, rows, ROWS):
        first, last = max(0, start + r - size.back), min(size.s, start + r + ROWS + size.ahead)
        for j in range(0, _round_up(size.e, PANEL), PANEL):
            since, until = first, min(last, _round_up(first + 1, _SUM_LENGTH))
            a, b, c = weights + 4 * r, x + 4 * j, y + 4 * (r * y_stride + j)
            times(a + 4 * since * PANEL, 1, PANEL, b + 4 * since * stride, stride, c, y_stride, until - since)
            while until < last:
                since, until = until, min(last, until + _SUM_LENGTH)
                plus_times(a + 4 * since * PANEL, 1, PANEL, b + 4 * since * stride, stride, c, y_stride, until - since)


@compiled
def _padded_keys(kv_offset, arrays, buffers, size):
    """Return the padded keys and values of a KV head, and their row stride."""
    row, whole, width = size.kv_heads * size.e, _round_up(size.s, ROWS), _round_up(size.e, PANEL)
    keys, stride = _padded_rows(arrays.k + kv_offset, row, buffers.keys, size.s, size.e, whole, width)
    values, _ = _padded_rows(arrays.v + kv_offset, row, buffers.values, size.s, size.e, whole, width)
    return keys, values, stride


@compiled
def _forward_part(part, parts, arrays, size):
    """Compute y for the KV heads of one thread."""
    s, kv_heads, group, e = size.s, size.kv_heads, size.group, size.e
    heads, scale, buffers = kv_heads * group, np.float32(1.0 / math.sqrt(e)), _buffers(arrays.workspace, part, size)
    for item in share(part, parts, size.items):
        batch, kv = item // kv_heads, item % kv_heads
        keys, values, stride = _padded_keys(4 * (batch * s * kv_heads + kv) * e, arrays, buffers, size)
        for head in range(kv * group, (kv + 1) * group):
            for start in range(0, s, PANEL):
                at = 4 * ((batch * s + start) * heads + head) * e
                q, y = arrays.q + at, arrays.y + at
                rows, _, _, queries, step = _attention_weights(q, keys, stride, start, scale, buffers, size)
                result = y if queries == q else queries
                _sum_over_keys(buffers.scores, values, stride, result, step, start, rows, size)
                _copy_rows(result, step, y, heads * e, buffers.sums + 4 * PANEL, rows, e)


@compiled
def forward(pool, arrays, sizes):
    """Compute y (b, s, heads, e) of q (the same), k and v (b, s, kv_heads, e).

    Args:
        arrays: addresses, as in `_Forward`. The workspace has `workspace_size` float32 numbers for each thread.
        sizes: as in `_Sizes`: the number of KV heads of the batch, ..., and the lookback and lookahead in tokens.
    """
    run_parallel(pool, _forward_part, (_Forward(*arrays), _Sizes(*sizes)))


@compiled
def _softmax_backward(weights, score_grads, sums, scale, first, last):
    """Replace weights with probabilities, and score_grads with the gradients of the scores."""
    vectorize()
    for j in range(PANEL):
        sums[j] = _ZERO
    for t in range(first, last, 4):
        for j in range(PANEL):
            at, share_of = t * PANEL + j, sums[PANEL + j]
            a, b = weights[at] * share_of, weights[at + PANEL] * share_of
            c, d = weights[at + 2 * PANEL] * share_of, weights[at + 3 * PANEL] * share_of
            weights[at], weights[at + PANEL], weights[at + 2 * PANEL], weights[at + 3 * PANEL] = a, b, c, d
            sums[j] += (a * score_grads[at] + b * score_grads[at + PANEL]) + (
                c * score_grads[at + 2 * PANEL] + d * score_grads[at + 3 * PANEL]
            )
    for t in range(first, last):
        for j in range(PANEL):
            at = t * PANEL + j
            score_grads[at] = scale * weights[at] * (score_grads[at] - sums[j])


@compiled
def _sum_over_queries(weights, x, stride, y, start, rows, first, last, size):
    """Add to y (key, e) the sum over the panel's queries of weights (key, query) * x (query, e)."""
    width = _round_up(size.e, PANEL)
    for t in range(first, last, ROWS):
        since, until = max(0, t - size.ahead - start), min(rows, t + ROWS + size.back - start)
        for j in range(0, width, PANEL):
            a, b, c = weights + 4 * (t * PANEL + since), x + 4 * (since * stride + j), y + 4 * (t * width + j)
            plus_times(a, PANEL, 1, b, stride, c, width, until - since)


@compiled
def _backward_part(part, parts, arrays, size):
    """Compute dq, dk and dv for the KV heads of one thread."""
    s, kv_heads, group, e, width = size.s, size.kv_heads, size.group, size.e, _round_up(size.e, PANEL)
    heads, scale, buffers = kv_heads * group, np.float32(1.0 / math.sqrt(e)), _buffers(arrays.workspace, part, size)
    scores, score_grads, sums = buffers.scores, buffers.score_grads, buffers.sums
    for item in share(part, parts, size.items):
        batch, kv = item // kv_heads, item % kv_heads
        kv_offset = 4 * (batch * s * kv_heads + kv) * e
        keys, values, stride = _padded_keys(kv_offset, arrays, buffers, size)
        fill(float32_at(buffers.key_sums), _ZERO, 2 * _round_up(s, ROWS) * width)
        for head in range(kv * group, (kv + 1) * group):
            for start in range(0, s, PANEL):
                at = 4 * ((batch * s + start) * heads + head) * e
                q, dq = arrays.q + at, arrays.dq + at
                rows, first, last, queries, step = _attention_weights(q, keys, stride, start, scale, buffers, size)
                grads, _ = _padded_rows(arrays.dy + at, heads * e, buffers.grads, rows, e, PANEL, width)
                transpose(grads, step, buffers.grads_t, PANEL, width)
                _scores(buffers.grads_t, values, stride, score_grads, first, last, e)
                _softmax_backward(float32_at(scores), float32_at(score_grads), float32_at(sums), scale, first, last)
                _sum_over_queries(scores, grads, step, buffers.value_sums, start, rows, first, last, size)
                _sum_over_queries(score_grads, queries, step, buffers.key_sums, start, rows, first, last, size)
                result = dq if queries == q else queries
                _sum_over_keys(score_grads, keys, stride, result, step, start, rows, size)
                if result != dq:
                    _copy_rows(result, step, dq, heads * e, 0, rows, e)
        _copy_rows(buffers.key_sums, width, arrays.dk + kv_offset, kv_heads * e, 0, s, e)
        _copy_rows(buffers.value_sums, width, arrays.dv + kv_offset, kv_heads * e, 0, s, e)


@compiled
def backward(pool, arrays, sizes):
    """Compute dq, dk and dv from the gradient dy of y; the arrays are those of `_Backward`."""
    run_parallel(pool, _backward_part, (_Backward(*arrays), _Sizes(*sizes)))
