"""Decode one token per sequence through a whole GPT in a single call.

A forward pass in Python takes about a hundred calls per token, which for a small model takes ten times as long as the
arithmetic. This kernel supports pre-norm blocks whose norms are over the width of each token.
`normscope.generate.decoder` decides which models qualify, and builds the tables.

Axes: r rows (sequences), d width, h heads, e features of a head, f hidden features.
"""

import numpy as np

from normscope.ops.fused.activations import gelu, gelu_tanh, silu
from normscope.ops.fused.compiler import compiled, float32_at, float64_at, int64_at
from normscope.ops.fused.decode_rows import apply_rotary, attend, four_products, normalize
from normscope.ops.fused.math_functions import tanh
from normscope.ops.fused.parallel import run_parallel, share

# Fields of a layer's table: addresses of norms, matrices and the KV cache. The scale and bias of a matrix follow its
# weight, and the bias of a norm follows its weight.
(
    NORM1, NORM1_BIAS, NORM2, NORM2_BIAS,
    Q, Q_SCALE, Q_BIAS, K, K_SCALE, K_BIAS, V, V_SCALE, V_BIAS, OUT, OUT_SCALE, OUT_BIAS,
    UP, UP_SCALE, UP_BIAS, GATE, GATE_SCALE, GATE_BIAS, DOWN, DOWN_SCALE, DOWN_BIAS,
    Q_NORM, Q_NORM_BIAS, K_NORM, K_NORM_BIAS, KEYS, VALUES, WINDOW, COS, SIN,
) = range(LAYER_FIELDS := 34)  # fmt: skip

# Fields of the model's table: sizes and options; addresses of the first and last layers, the input and the buffers.
(
    ROWS, LAYERS, WIDTH, HEADS, KV_HEADS, HEAD_DIM, HIDDEN, VOCABULARY, ROW_STRIDE, HEAD_STRIDE, SCORES_STRIDE,
    WEIGHT_FORMAT, CENTERED, QK_NORM, QK_CENTERED, ACTIVATION, EMBEDDING_NORM, EMBEDDING, POSITION_EMBEDDING,
    INPUT_NORM, INPUT_NORM_BIAS, FINAL_NORM, FINAL_NORM_BIAS, HEAD, HEAD_SCALE, HEAD_BIAS, LAYER_TABLE,
    TOKENS, POSITIONS, STREAM, NORMED, QUERY, KEY, VALUE, ATTENDED, INNER, SCORES, LOGITS,
) = range(MODEL_FIELDS := 38)  # fmt: skip
EPS, QK_EPS, CAP, SCALE, EMBEDDING_FACTOR = range(FLOAT_FIELDS := 5)

RELU2, RELU, GELU, GELU_TANH, SILU = 0, 1, 2, 3, 4
# Epilogues: y, y + output, act(y), act(y) * output. If they were Python ints, numba would compile `_linear` for each.
SET, ADD, ACTIVATE, ACTIVATE_AND_MULTIPLY = np.arange(4)
_ZERO = np.float32(0.0)
_MIN_PARALLEL_SIZE = 1 << 15  # size of a weight below which one thread is faster


@compiled
def _activate(kind, x):
    positive = _ZERO if x < 0 else x  # NaN < 0 is False: NaN propagates
    if kind == RELU2:
        return positive * positive
    if kind == RELU:
        return positive
    if kind == GELU:
        return gelu(x)
    return gelu_tanh(x) if kind == GELU_TANH else silu(x)


@compiled
def _store_output(results, i, value, bias, epilogue, activation):
    """Apply bias and epilogue to output i of a linear layer, and store it."""
    if bias:
        value += float32_at(bias)[i]
    if epilogue == ADD:
        value += results[i]
    elif epilogue == ACTIVATE:
        value = _activate(activation, value)
    elif epilogue == ACTIVATE_AND_MULTIPLY:
        value = _activate(activation, value) * results[i]
    results[i] = value


@compiled
def _linear_part(part, parts, size, x, matrix, y, d_in, d_out, epilogue):
    """Compute y = x w^T + bias for a part of the outputs, four at a time; the last part includes the remainder."""
    (w, scale, bias), kind, activation, fours = matrix, size[WEIGHT_FORMAT], size[ACTIVATION], d_out // 4
    for i in share(part, parts, fours):
        for r in range(size[ROWS]):
            results = float32_at(y, r * d_out)
            y0, y1, y2, y3 = four_products(kind, x + 4 * r * d_in, w, scale, i, fours, d_in)
            _store_output(results, i, y0, bias, epilogue, activation)
            _store_output(results, i + fours, y1, bias, epilogue, activation)
            _store_output(results, i + 2 * fours, y2, bias, epilogue, activation)
            _store_output(results, i + 3 * fours, y3, bias, epilogue, activation)
    if part == parts - 1:
        for i in range(4 * fours, d_out):
            for r in range(size[ROWS]):
                y0, _, _, _ = four_products(kind, x + 4 * r * d_in, w, scale, i, 0, d_in)
                _store_output(float32_at(y, r * d_out), i, y0, bias, epilogue, activation)


@compiled
def _attend_part(part, parts, size, fraction, layer):
    """Compute attention of each head of each row over the row's cache."""
    heads, e, window, scale = size[HEADS], size[HEAD_DIM], layer[WINDOW], np.float32(fraction[SCALE])
    for pair in share(part, parts, size[ROWS] * heads):
        r, h = pair // heads, pair % heads
        count = int64_at(size[POSITIONS])[r] + 1
        first = max(0, count - window) if window else 0
        start = 4 * (r * size[ROW_STRIDE] + h * size[KV_HEADS] // heads * size[HEAD_STRIDE] + first * e)
        query, keys, values = size[QUERY] + 4 * pair * e, layer[KEYS] + start, layer[VALUES] + start
        scores = size[SCORES] + 4 * pair * size[SCORES_STRIDE]
        attend(query, keys, values, size[ATTENDED] + 4 * pair * e, scores, count - first, e, scale)


@compiled
def _append_to_cache(new, cache, size):
    """Write the new keys or values to the cache."""
    numbers, workspace, kv_heads, e = float32_at(new), float32_at(cache), size[KV_HEADS], size[HEAD_DIM]
    for r in range(size[ROWS]):
        for h in range(kv_heads):
            start = r * size[ROW_STRIDE] + h * size[HEAD_STRIDE] + int64_at(size[POSITIONS])[r] * e
            for j in range(e):
                workspace[start + j] = numbers[(r * kv_heads + h) * e + j]


@compiled
def _norm_and_rotate(x, size, fraction, layer, norm, count):
    """Apply QK-norm and rotary embedding to each head, if the model has them."""
    e = size[HEAD_DIM]
    for r in range(size[ROWS]):
        offset = 2 * e * int64_at(size[POSITIONS])[r]  # bytes: half a head of float32 per position
        for h in range(count):
            head = x + 4 * (r * count + h) * e
            if size[QK_NORM]:
                normalize(head, norm[0], norm[1], head, e, fraction[QK_EPS], size[QK_CENTERED])
            if layer[COS]:
                apply_rotary(head, layer[COS] + offset, layer[SIN] + offset, e // 2)


@compiled
def _normalize_all(x, weight, bias, y, size, fraction):
    d = size[WIDTH]
    for r in range(size[ROWS]):
        normalize(x + 4 * r * d, weight, bias, y + 4 * r * d, d, fraction[EPS], size[CENTERED])


@compiled
def _pool_for(work, pool):
    return pool[0] if work >= _MIN_PARALLEL_SIZE else 1, pool[1], pool[2], pool[3]


@compiled
def _linear(pool, size, x, matrix, y, d_in, d_out, epilogue):
    run_parallel(_pool_for(d_in * d_out, pool), _linear_part, (size, x, matrix, y, d_in, d_out, epilogue))


@compiled
def _matrix(layer, field):
    return layer[field], layer[field + 1], layer[field + 2]


@compiled
def _attention(pool, size, fraction, layer):
    d, heads, kv_heads, e = size[WIDTH], size[HEADS], size[KV_HEADS], size[HEAD_DIM]
    x, query, key, value = size[NORMED], size[QUERY], size[KEY], size[VALUE]
    _linear(pool, size, x, _matrix(layer, Q), query, d, heads * e, SET)
    _linear(pool, size, x, _matrix(layer, K), key, d, kv_heads * e, SET)
    _linear(pool, size, x, _matrix(layer, V), value, d, kv_heads * e, SET)
    _norm_and_rotate(query, size, fraction, layer, (layer[Q_NORM], layer[Q_NORM_BIAS]), heads)
    _norm_and_rotate(key, size, fraction, layer, (layer[K_NORM], layer[K_NORM_BIAS]), kv_heads)
    _append_to_cache(key, layer[KEYS], size)
    _append_to_cache(value, layer[VALUES], size)
    seen = 0
    for r in range(size[ROWS]):
        seen += int64_at(size[POSITIONS])[r] + 1
    run_parallel(_pool_for(seen * heads * e, pool), _attend_part, (size, fraction, layer))
    _linear(pool, size, size[ATTENDED], _matrix(layer, OUT), size[STREAM], heads * e, d, ADD)


@compiled
def _mlp(pool, size, layer):
    d, f, inner = size[WIDTH], size[HIDDEN], size[INNER]
    gated = layer[GATE] != 0
    _linear(pool, size, size[NORMED], _matrix(layer, UP), inner, d, f, SET if gated else ACTIVATE)
    if gated:
        _linear(pool, size, size[NORMED], _matrix(layer, GATE), inner, d, f, ACTIVATE_AND_MULTIPLY)
    _linear(pool, size, inner, _matrix(layer, DOWN), size[STREAM], f, d, ADD)


@compiled
def _embed(size, fraction):
    d, stream, scale = size[WIDTH], float32_at(size[STREAM]), np.float32(fraction[EMBEDDING_FACTOR])
    for r in range(size[ROWS]):
        row = float32_at(size[EMBEDDING], d * int64_at(size[TOKENS])[r])
        for j in range(d):
            stream[r * d + j] = row[j] * scale
        if size[POSITION_EMBEDDING]:
            position = float32_at(size[POSITION_EMBEDDING], d * int64_at(size[POSITIONS])[r])
            for j in range(d):
                stream[r * d + j] += position[j]


@compiled
def advance(pool, sizes, fractions):
    """Run the newest token of each row through the model: append its keys and values to the cache, fill LOGITS."""
    size, fraction = int64_at(sizes), float64_at(fractions)
    stream, normed = size[STREAM], size[NORMED]
    _embed(size, fraction)
    if size[EMBEDDING_NORM]:
        _normalize_all(stream, size[INPUT_NORM], size[INPUT_NORM + 1], stream, size, fraction)
    for i in range(size[LAYERS]):
        layer = int64_at(size[LAYER_TABLE], LAYER_FIELDS * i)
        _normalize_all(stream, layer[NORM1], layer[NORM1 + 1], normed, size, fraction)
        _attention(pool, size, fraction, layer)
        _normalize_all(stream, layer[NORM2], layer[NORM2 + 1], normed, size, fraction)
        _mlp(pool, size, layer)
    _normalize_all(stream, size[FINAL_NORM], size[FINAL_NORM + 1], normed, size, fraction)
    _linear(pool, size, normed, _matrix(size, HEAD), size[LOGITS], size[WIDTH], size[VOCABULARY], SET)
    if fraction[CAP] > 0:
        cap, logits = np.float32(fraction[CAP]), float32_at(size[LOGITS])
        for i in range(size[ROWS] * size[VOCABULARY]):
            logits[i] = cap * tanh(logits[i] / cap)
