"""Attention kernels for short sequences, forward and backward: one head at a time, within the cache.

Axes: s tokens; heads of e features, of which `group` share the keys and values of one KV head. Queries are processed in
panels of PANEL columns, so that the softmax of each query runs in a vector lane and needs no reduction across lanes.
Scores have shape (key, query).

- A query attends to the keys from `back` before it to `ahead` after it. Tiles outside this range are skipped; within
  partially visible tiles, masked scores are -inf.
- Rows that do not fill whole tiles are first copied into zero-padded buffers, so there is one code path for all sizes.
- The backward pass recomputes the probabilities from q and k. Saving the row sums would save little time, which is
  spent on the matrix product, and would cost digits for large scores. With probabilities p and dp = g v:
  ds = scale p (dp - sum(p dp)), then dq = ds k, dk = ds q, dv = p g.

A KV head is processed by one thread in a fixed order, so results do not depend on the number of threads, and the result
of a query does not depend on masked keys.
"""

import math

import numpy as np

from normscope.ops.fused.compiler import compiled, float32_at, vectorize
from normscope.ops.fused.math_functions import exp_negative
from normscope.ops.fused.matmul_tiles import PANEL, ROWS, invert_panel, plus_times, scale_panel, times, transpose
from normscope.ops.fused.parallel import run_parallel
from normscope.ops.fused.vector_loops import fill

_SUM_LENGTH = 128  # length of sequential sums; longer sums are sums of these
_ZERO, _ONE, _NEGATIVE_INFINITY = np.float32(0.0), np.float32(1.0), np.float32(-np.inf)


@compiled
def _round_up(count, unit):
    """Round count up to a multiple of unit."""
    return (count + unit - 1) // unit * unit


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
            c, d = (
                exp_negative(scale * (most - scores[at + 2 * PANEL])),
                exp_negative(scale * (most - scores[at + 3 * PANEL])),
            )
            scores[at], scores[at + PANEL], scores[at + 2 * PANEL], scores[at + 3 * PANEL] = a, b, c, d
            totals[j] += (a + b) + (c + d)


@compiled
def _scores(queries_t, keys, stride, scores, first, last, e):
    """Compute scores (key, query) of a panel of queries, given transposed."""
    for t in range(first, last, ROWS):
        times(keys + 4 * t * stride, stride, 1, queries_t, PANEL, scores + 4 * t * PANEL, PANEL, e)


@compiled
def _softmax_weights(scores, sums, start, s, first, last, back, ahead, scale):
    """Replace the scores of a panel with exponentials, and compute the inverse of their sums."""
    found, largest, totals = float32_at(scores), float32_at(sums), float32_at(sums + 4 * PANEL)
    # The keys that every query of the panel attends to
    since, until = max(first, start + PANEL - 1 - back), min(last, min(start + ahead + 1, s))
    _mask_scores(found, first, min(since, last), start, s, back, ahead)
    _mask_scores(found, max(first, until), last, start, s, back, ahead)
    _largest(found, largest, first, last)
    _exponentials(found, largest, totals, scale, first, last)
    invert_panel(sums + 4 * PANEL)


@compiled
def _sum_over_keys(weights, x, stride, y, y_stride, start, rows, s, width, back, ahead):
    """Compute y (query, e) = sum over visible keys of weights (key, query) * x (key, e)."""
    for r in range(0, rows, ROWS):
        first, last = max(0, start + r - back), min(s, start + r + ROWS + ahead)
        for j in range(0, width, PANEL):
            since, until = first, min(last, _round_up(first + 1, _SUM_LENGTH))
            a, b, c = weights + 4 * r, x + 4 * j, y + 4 * (r * y_stride + j)
            times(a + 4 * since * PANEL, 1, PANEL, b + 4 * since * stride, stride, c, y_stride, until - since)
            while until < last:
                since, until = until, min(last, until + _SUM_LENGTH)
                plus_times(a + 4 * since * PANEL, 1, PANEL, b + 4 * since * stride, stride, c, y_stride, until - since)


@compiled
def _forward_part(part, parts, q, k, v, y, workspace, workspace_size, items, s, kv_heads, group, e, back, ahead):
    """Compute y for the KV heads of one thread."""
    whole, width, scale = _round_up(s, ROWS), _round_up(e, PANEL), np.float32(1.0 / math.sqrt(e))
    size, panel, heads = 4 * whole * width, 4 * PANEL * width, kv_heads * group
    key_buffer = workspace + 4 * part * workspace_size
    value_buffer, scores = key_buffer + size, key_buffer + 2 * size
    query_buffer = scores + 4 * whole * PANEL
    queries_t, sums = query_buffer + panel, query_buffer + 2 * panel
    for item in range(items * part // parts, items * (part + 1) // parts):
        batch, kv = item // kv_heads, item % kv_heads
        at = 4 * (batch * s * kv_heads + kv) * e
        keys, stride = _padded_rows(k + at, kv_heads * e, key_buffer, s, e, whole, width)
        values, _ = _padded_rows(v + at, kv_heads * e, value_buffer, s, e, whole, width)
        for head in range(kv * group, (kv + 1) * group):
            for start in range(0, s, PANEL):
                rows, at = min(PANEL, s - start), 4 * ((batch * s + start) * heads + head) * e
                first, last = max(0, start - back) // ROWS * ROWS, _round_up(min(s, start + PANEL + ahead), ROWS)
                queries, step = _padded_rows(q + at, heads * e, query_buffer, rows, e, PANEL, width)
                transpose(queries, step, queries_t, PANEL, width)
                _scores(queries_t, keys, stride, scores, first, last, e)
                _softmax_weights(scores, sums, start, s, first, last, back, ahead, scale)
                result, step = (y + at, heads * e) if queries != query_buffer else (query_buffer, width)
                _sum_over_keys(scores, values, stride, result, step, start, rows, s, width, back, ahead)
                _copy_rows(result, step, y + at, heads * e, sums + 4 * PANEL, rows, e)


@compiled
def forward(pool, q, k, v, y, workspace, workspace_size, items, s, kv_heads, group, e, back, ahead):
    """y (b, s, heads, e) of q (the same), k and v (b, s, kv_heads, e), all given by their addresses.

    At `workspace` there are `workspace_size` float32 numbers for each thread (see `forward_workspace_size`).
    """
    run_parallel(pool, _forward_part,
        (q, k, v, y, workspace, workspace_size, items, s, kv_heads, group, e, back, ahead),
    )  # fmt: skip


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
def _sum_over_queries(weights, x, stride, y, start, rows, first, last, width, back, ahead):
    """Add to y (key, e) the sum over the panel's queries of weights (key, query) * x (query, e)."""
    for t in range(first, last, ROWS):
        since, until = max(0, t - ahead - start), min(rows, t + ROWS + back - start)
        for j in range(0, width, PANEL):
            plus_times(
                weights + 4 * (t * PANEL + since), PANEL, 1, x + 4 * (since * stride + j), stride,
                y + 4 * (t * width + j), width, until - since,
            )  # fmt: skip


@compiled
def _backward_part(
    part, parts, q, k, v, g, dq, dk, dv, workspace, workspace_size, items, s, kv_heads, group, e, back, ahead
):
    """Compute dq, dk and dv for the KV heads of one thread."""
    whole, width, scale = _round_up(s, ROWS), _round_up(e, PANEL), np.float32(1.0 / math.sqrt(e))
    size, panel, heads = 4 * whole * width, 4 * PANEL * width, kv_heads * group
    key_buffer = workspace + 4 * part * workspace_size
    value_buffer, key_sums, value_sums, scores = (
        key_buffer + size,
        key_buffer + 2 * size,
        key_buffer + 3 * size,
        key_buffer + 4 * size,
    )
    score_grads = scores + 4 * whole * PANEL
    query_buffer = score_grads + 4 * whole * PANEL
    queries_t, grad_buffer = query_buffer + panel, query_buffer + 2 * panel
    grads_t, sums = query_buffer + 3 * panel, query_buffer + 4 * panel
    for item in range(items * part // parts, items * (part + 1) // parts):
        batch, kv = item // kv_heads, item % kv_heads
        kv_offset = 4 * (batch * s * kv_heads + kv) * e
        keys, stride = _padded_rows(k + kv_offset, kv_heads * e, key_buffer, s, e, whole, width)
        values, _ = _padded_rows(v + kv_offset, kv_heads * e, value_buffer, s, e, whole, width)
        fill(float32_at(key_sums), _ZERO, 2 * whole * width)
        for head in range(kv * group, (kv + 1) * group):
            for start in range(0, s, PANEL):
                rows, at = min(PANEL, s - start), 4 * ((batch * s + start) * heads + head) * e
                first, last = max(0, start - back) // ROWS * ROWS, _round_up(min(s, start + PANEL + ahead), ROWS)
                queries, step = _padded_rows(q + at, heads * e, query_buffer, rows, e, PANEL, width)
                transpose(queries, step, queries_t, PANEL, width)
                grads, _ = _padded_rows(g + at, heads * e, grad_buffer, rows, e, PANEL, width)
                transpose(grads, step, grads_t, PANEL, width)
                _scores(queries_t, keys, stride, scores, first, last, e)
                _softmax_weights(scores, sums, start, s, first, last, back, ahead, scale)
                _scores(grads_t, values, stride, score_grads, first, last, e)
                _softmax_backward(float32_at(scores), float32_at(score_grads), float32_at(sums), scale, first, last)
                _sum_over_queries(scores, grads, step, value_sums, start, rows, first, last, width, back, ahead)
                _sum_over_queries(score_grads, queries, step, key_sums, start, rows, first, last, width, back, ahead)
                result, step = (dq + at, heads * e) if queries != query_buffer else (query_buffer, width)
                _sum_over_keys(score_grads, keys, stride, result, step, start, rows, s, width, back, ahead)
                if queries == query_buffer:
                    _copy_rows(result, step, dq + at, heads * e, 0, rows, e)
        _copy_rows(key_sums, width, dk + kv_offset, kv_heads * e, 0, s, e)
        _copy_rows(value_sums, width, dv + kv_offset, kv_heads * e, 0, s, e)


@compiled
def backward(
    pool, q, k, v, g, dq, dk, dv, workspace, workspace_size, items, s, kv_heads, group, e, back,
    ahead,
):  # fmt: skip
    """Compute dq, dk and dv from the gradient g of y. `workspace` holds `workspace_size` float32 numbers per thread."""
    run_parallel(pool, _backward_part,
        (q, k, v, g, dq, dk, dv, workspace, workspace_size, items, s, kv_heads, group, e, back, ahead),
    )  # fmt: skip


def forward_workspace_size(s: int, e: int) -> int:
    """Return the number of float32 values of workspace per thread, as `_forward_part` lays them out."""
    whole, width = -(-s // ROWS) * ROWS, -(-e // PANEL) * PANEL
    return 2 * whole * width + whole * PANEL + 2 * PANEL * width + 2 * PANEL


def backward_workspace_size(s: int, e: int) -> int:
    whole, width = -(-s // ROWS) * ROWS, -(-e // PANEL) * PANEL
    return 4 * whole * width + 2 * whole * PANEL + 4 * PANEL * width + 2 * PANEL
