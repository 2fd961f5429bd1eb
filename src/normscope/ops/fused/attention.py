"""Attention over short sequences, there and back, one head at a time and all of it in the cache.

Axes: s tokens; heads of e features, of which `group` share the keys and values of one. Queries are taken a panel at a
time: PANEL of them lie side by side, so that what is done to each (the largest score, the sum, the softmax) is done in
vectors and needs no sum across one. Keys stand below each other: scores are (key, query).

- A query sees the keys from `back` before it to `ahead` after it. Tiles that no query sees are left out; in those that
  some do, what is hidden becomes -inf.
- Rows that do not make whole tiles are copied first, with zeros around them: so there is one path for every size.
- The backward pass makes the probabilities anew, from nothing but q and k. Kept sums would not spare much, for it is
  the product that takes time, and once rounded they would cost digits where scores are large. With p the probabilities
  and dp = g v: ds = scale p (dp - sum(p dp)), and then dq = ds k, dk = ds q, dv = p g.

A head of keys is computed by one thread in one order, whatever the number of threads: the same input gives the same
bits, and a query's do not depend on what it does not see.
"""

import math

import numpy as np

from normscope.ops.fused.compiler import compiled, float32_at, in_vectors
from normscope.ops.fused.math_functions import decay
from normscope.ops.fused.matmul_tiles import PANEL, ROWS, invert_panel, plus_times, scale_panel, times, transpose
from normscope.ops.fused.parallel import share
from normscope.ops.fused.vector_loops import fill

_CHAIN = 128  # terms that are added one after the other; longer sums are sums of such
_ZERO, _ONE, _HIDDEN = np.float32(0.0), np.float32(1.0), np.float32(-np.inf)


@compiled
def _whole(count, unit):
    """The least multiple of the unit that is not below the count."""
    return (count + unit - 1) // unit * unit


@compiled
def _move(x, stride, y, breadth, factors, rows, e):
    """Rows of e numbers from x, where they are `stride` apart, to y; each times a factor of its own, if there are."""
    panels = e // PANEL * PANEL
    for i in range(rows):
        factor = float32_at(factors)[i] if factors else _ONE
        for j in range(0, panels, PANEL):
            scale_panel(x + 4 * (i * stride + j), y + 4 * (i * breadth + j), factor)
        for j in range(panels, e):
            float32_at(y)[i * breadth + j] = float32_at(x)[i * stride + j] * factor


@compiled
def _whole_rows(x, stride, room, rows, e, whole, width):
    """Where rows of e numbers are whole tiles, (whole, width), and how far apart: as they are, or with zeros around."""
    if rows == whole and e == width:
        return x, stride
    fill(float32_at(room), _ZERO, whole * width)
    _move(x, stride, room, width, 0, rows, e)
    return room, width


@compiled
def _hide(scores, first, last, start, s, back, ahead):
    """-inf for the keys that a query does not see, and for those beyond the last."""
    in_vectors()
    for t in range(first, last):
        since = np.float32(t - ahead - start if t < s else PANEL)  # as float32, for vectors of one kind only
        until = np.float32(t + back - start)
        for j in range(PANEL):
            is_hidden = (np.float32(j) < since) | (np.float32(j) > until)
            scores[t * PANEL + j] = _HIDDEN if is_hidden else scores[t * PANEL + j]


@compiled
def _max(a, b):
    return a if a > b else b


@compiled
def _largest(scores, largest, first, last):
    """The largest score of each query. A NaN may be passed over: it will be in the sum."""
    in_vectors()
    for j in range(PANEL):
        largest[j] = _HIDDEN
    for t in range(first, last, 4):
        for j in range(PANEL):
            a, b = t * PANEL + j, (t + 2) * PANEL + j
            four = _max(_max(scores[a], scores[a + PANEL]), _max(scores[b], scores[b + PANEL]))
            largest[j] = _max(largest[j], four)


@compiled
def _exponentials(scores, largest, totals, scale, first, last):
    """exp(scale (score - largest)) in the scores' place, which is 1 for the largest; and their sums."""
    in_vectors()
    for j in range(PANEL):
        totals[j] = _ZERO
    for t in range(first, last, 4):
        for j in range(PANEL):
            at, most = t * PANEL + j, largest[j]
            a, b = decay(scale * (most - scores[at])), decay(scale * (most - scores[at + PANEL]))
            c, d = decay(scale * (most - scores[at + 2 * PANEL])), decay(scale * (most - scores[at + 3 * PANEL]))
            scores[at], scores[at + PANEL], scores[at + 2 * PANEL], scores[at + 3 * PANEL] = a, b, c, d
            totals[j] += (a + b) + (c + d)


@compiled
def _scores(turned, keys, stride, scores, first, last, e):
    """scores (key, query) = the products of the keys' rows with those of a panel of queries, which are given turned."""
    for t in range(first, last, ROWS):
        times(keys + 4 * t * stride, stride, 1, turned, PANEL, scores + 4 * t * PANEL, PANEL, e)


@compiled
def _weigh(scores, sums, start, s, first, last, back, ahead, scale):
    """The exponentials of a panel's scores in their place, and one over their sums."""
    found, largest, totals = float32_at(scores), float32_at(sums), float32_at(sums + 4 * PANEL)
    # The keys that every query of the panel sees
    since, until = max(first, start + PANEL - 1 - back), min(last, min(start + ahead + 1, s))
    _hide(found, first, min(since, last), start, s, back, ahead)
    _hide(found, max(first, until), last, start, s, back, ahead)
    _largest(found, largest, first, last)
    _exponentials(found, largest, totals, scale, first, last)
    invert_panel(sums + 4 * PANEL)


@compiled
def _sum_over_keys(weights, x, stride, y, breadth, start, rows, s, width, back, ahead):
    """y (query, e) = the sum over the keys that a query sees of weights (key, query) times the keys' rows x."""
    for r in range(0, rows, ROWS):
        first, last = max(0, start + r - back), min(s, start + r + ROWS + ahead)
        for j in range(0, width, PANEL):
            since, until = first, min(last, _whole(first + 1, _CHAIN))
            a, b, c = weights + 4 * r, x + 4 * j, y + 4 * (r * breadth + j)
            times(a + 4 * since * PANEL, 1, PANEL, b + 4 * since * stride, stride, c, breadth, until - since)
            while until < last:
                since, until = until, min(last, until + _CHAIN)
                plus_times(a + 4 * since * PANEL, 1, PANEL, b + 4 * since * stride, stride, c, breadth, until - since)


@compiled
def _forward_part(part, parts, q, k, v, y, room, needed, items, s, kv_heads, group, e, back, ahead):
    """y of the heads of keys that fall to one thread."""
    whole, width, scale = _whole(s, ROWS), _whole(e, PANEL), np.float32(1.0 / math.sqrt(e))
    size, panel, heads = 4 * whole * width, 4 * PANEL * width, kv_heads * group
    key_room = room + 4 * part * needed
    value_room, scores = key_room + size, key_room + 2 * size
    query_room = scores + 4 * whole * PANEL
    turned, sums = query_room + panel, query_room + 2 * panel
    for item in range(items * part // parts, items * (part + 1) // parts):
        batch, kv = item // kv_heads, item % kv_heads
        at = 4 * (batch * s * kv_heads + kv) * e
        keys, stride = _whole_rows(k + at, kv_heads * e, key_room, s, e, whole, width)
        values, _ = _whole_rows(v + at, kv_heads * e, value_room, s, e, whole, width)
        for head in range(kv * group, (kv + 1) * group):
            for start in range(0, s, PANEL):
                rows, at = min(PANEL, s - start), 4 * ((batch * s + start) * heads + head) * e
                first, last = max(0, start - back) // ROWS * ROWS, _whole(min(s, start + PANEL + ahead), ROWS)
                queries, step = _whole_rows(q + at, heads * e, query_room, rows, e, PANEL, width)
                transpose(queries, step, turned, PANEL, width)
                _scores(turned, keys, stride, scores, first, last, e)
                _weigh(scores, sums, start, s, first, last, back, ahead, scale)
                result, step = (y + at, heads * e) if queries != query_room else (query_room, width)
                _sum_over_keys(scores, values, stride, result, step, start, rows, s, width, back, ahead)
                _move(result, step, y + at, heads * e, sums + 4 * PANEL, rows, e)


@compiled
def forward(threads, fork, number, team, q, k, v, y, room, needed, items, s, kv_heads, group, e, back, ahead):
    """y (b, s, heads, e) of q (the same), k and v (b, s, kv_heads, e), all given by their addresses.

    At `room` there are `needed` float32 numbers for each thread (see `forward_room`).
    """
    share(
        threads, fork, number, team, _forward_part,
        (q, k, v, y, room, needed, items, s, kv_heads, group, e, back, ahead),
    )  # fmt: skip


@compiled
def _pull_back_weights(weights, pulls, sums, scale, first, last):
    """The probabilities in the weights' place, and the gradient of the scores in that of the pulls."""
    in_vectors()
    for j in range(PANEL):
        sums[j] = _ZERO
    for t in range(first, last, 4):
        for j in range(PANEL):
            at, share_of = t * PANEL + j, sums[PANEL + j]
            a, b = weights[at] * share_of, weights[at + PANEL] * share_of
            c, d = weights[at + 2 * PANEL] * share_of, weights[at + 3 * PANEL] * share_of
            weights[at], weights[at + PANEL], weights[at + 2 * PANEL], weights[at + 3 * PANEL] = a, b, c, d
            sums[j] += (a * pulls[at] + b * pulls[at + PANEL]) + (c * pulls[at + 2 * PANEL] + d * pulls[at + 3 * PANEL])
    for t in range(first, last):
        for j in range(PANEL):
            at = t * PANEL + j
            pulls[at] = scale * weights[at] * (pulls[at] - sums[j])


@compiled
def _sum_over_queries(weights, x, stride, y, start, rows, first, last, width, back, ahead):
    """y (key, e) += the sum over the panel's queries of weights (key, query) times the queries' rows x."""
    for t in range(first, last, ROWS):
        since, until = max(0, t - ahead - start), min(rows, t + ROWS + back - start)
        for j in range(0, width, PANEL):
            plus_times(
                weights + 4 * (t * PANEL + since), PANEL, 1, x + 4 * (since * stride + j), stride,
                y + 4 * (t * width + j), width, until - since,
            )  # fmt: skip


@compiled
def _backward_part(part, parts, q, k, v, g, dq, dk, dv, room, needed, items, s, kv_heads, group, e, back, ahead):
    """dq, dk and dv of the heads of keys that fall to one thread."""
    whole, width, scale = _whole(s, ROWS), _whole(e, PANEL), np.float32(1.0 / math.sqrt(e))
    size, panel, heads = 4 * whole * width, 4 * PANEL * width, kv_heads * group
    key_room = room + 4 * part * needed
    value_room, key_sums, value_sums, scores = (
        key_room + size,
        key_room + 2 * size,
        key_room + 3 * size,
        key_room + 4 * size,
    )
    pulls = scores + 4 * whole * PANEL
    query_room = pulls + 4 * whole * PANEL
    turned, given_room = query_room + panel, query_room + 2 * panel
    given_turned, sums = query_room + 3 * panel, query_room + 4 * panel
    for item in range(items * part // parts, items * (part + 1) // parts):
        batch, kv = item // kv_heads, item % kv_heads
        place = 4 * (batch * s * kv_heads + kv) * e
        keys, stride = _whole_rows(k + place, kv_heads * e, key_room, s, e, whole, width)
        values, _ = _whole_rows(v + place, kv_heads * e, value_room, s, e, whole, width)
        fill(float32_at(key_sums), _ZERO, 2 * whole * width)
        for head in range(kv * group, (kv + 1) * group):
            for start in range(0, s, PANEL):
                rows, at = min(PANEL, s - start), 4 * ((batch * s + start) * heads + head) * e
                first, last = max(0, start - back) // ROWS * ROWS, _whole(min(s, start + PANEL + ahead), ROWS)
                queries, step = _whole_rows(q + at, heads * e, query_room, rows, e, PANEL, width)
                transpose(queries, step, turned, PANEL, width)
                given, _ = _whole_rows(g + at, heads * e, given_room, rows, e, PANEL, width)
                transpose(given, step, given_turned, PANEL, width)
                _scores(turned, keys, stride, scores, first, last, e)
                _weigh(scores, sums, start, s, first, last, back, ahead, scale)
                _scores(given_turned, values, stride, pulls, first, last, e)
                _pull_back_weights(float32_at(scores), float32_at(pulls), float32_at(sums), scale, first, last)
                _sum_over_queries(scores, given, step, value_sums, start, rows, first, last, width, back, ahead)
                _sum_over_queries(pulls, queries, step, key_sums, start, rows, first, last, width, back, ahead)
                result, step = (dq + at, heads * e) if queries != query_room else (query_room, width)
                _sum_over_keys(pulls, keys, stride, result, step, start, rows, s, width, back, ahead)
                if queries == query_room:
                    _move(result, step, dq + at, heads * e, 0, rows, e)
        _move(key_sums, width, dk + place, kv_heads * e, 0, s, e)
        _move(value_sums, width, dv + place, kv_heads * e, 0, s, e)


@compiled
def backward(
    threads, fork, number, team, q, k, v, g, dq, dk, dv, room, needed, items, s, kv_heads, group, e, back, ahead
):
    """dq, dk and dv of the gradient g of y. At `room` there are `needed` float32 numbers for each thread."""
    share(
        threads, fork, number, team, _backward_part,
        (q, k, v, g, dq, dk, dv, room, needed, items, s, kv_heads, group, e, back, ahead),
    )  # fmt: skip


def forward_room(s: int, e: int) -> int:
    """How many float32 numbers a thread needs, at the places that `_forward_part` gives them."""
    whole, width = -(-s // ROWS) * ROWS, -(-e // PANEL) * PANEL
    return 2 * whole * width + whole * PANEL + 2 * PANEL * width + 2 * PANEL


def backward_room(s: int, e: int) -> int:
    whole, width = -(-s // ROWS) * ROWS, -(-e // PANEL) * PANEL
    return 4 * whole * width + 2 * whole * PANEL + 4 * PANEL * width + 2 * PANEL
