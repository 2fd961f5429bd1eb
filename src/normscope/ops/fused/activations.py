"""Elementwise kernels of the activations and their derivatives.

A forward kernel maps the input to the result; a backward kernel maps the input and the gradient of the result to the
gradient of the input. Gated activations also take a gate. NaN and infinity behave as in torch.
"""

import numpy as np

from normscope.ops.fused.compiler import Function, compiled, float32_at, fma, uncached, vectorize
from normscope.ops.fused.math_functions import normal_cdf_pdf, sigmoids, times_sigmoid
from normscope.ops.fused.parallel import run_parallel

_ZERO, _ONE, _TWO, _THREE = np.float32(0.0), np.float32(1.0), np.float32(2.0), np.float32(3.0)

# gelu-tanh: (1 + tanh u) / 2 = sigmoid(2 u), and 2 u = x (a + b x^2)
_A = np.float32(2 * np.sqrt(2 / np.pi))
_B = np.float32(2 * np.sqrt(2 / np.pi) * 0.044715)
_SQUARE_HIGHEST = np.float32(1e4)  # for |x| > 100 the sigmoid is 0 or 1; this keeps 2 u and its derivative finite


@compiled
def _relu(x):
    return _ZERO if x < 0 else x  # NaN < 0 is False: NaN propagates


@compiled
def gelu(x):
    return x * normal_cdf_pdf(x)[0]


@compiled
def _gelu_slope(x):
    share, density = normal_cdf_pdf(x)
    return fma(x, density, share)


@compiled
def _bounded_square(x):
    square = x * x
    return _SQUARE_HIGHEST if square > _SQUARE_HIGHEST else square


@compiled
def gelu_tanh(x):
    return times_sigmoid(x, x * fma(_B, _bounded_square(x), _A))


@compiled
def _gelu_tanh_slope(x):
    square = _bounded_square(x)
    up, down = sigmoids(x * fma(_B, square, _A))
    return fma(x * (up * down), fma(_THREE * _B, square, _A), up)


@compiled
def silu(x):
    return times_sigmoid(x, x)


@compiled
def _silu_slope(x):
    up, down = sigmoids(x)
    return up * fma(x, down, _ONE)


@compiled
def _relu2(x):
    positive = _relu(x)
    return positive * positive


# Gradients of the input, given the gradient v of the result.
@compiled
def _relu2_gradient(x, v):
    return _ZERO if x <= 0 else v * (_TWO * x)


@compiled
def _relu_gradient(x, v):
    return _ZERO if x <= 0 else v


@compiled
def _gelu_gradient(x, v):
    return v * _gelu_slope(x)


@compiled
def _gelu_tanh_gradient(x, v):
    return v * _gelu_tanh_slope(x)


@compiled
def _silu_gradient(x, v):
    return v * _silu_slope(x)


def _plain_loops(function: Function, gradient: Function) -> tuple[Function, Function]:
    """Return the loops y = function(x) and dx = gradient(x, g), with both functions inlined."""

    @uncached
    def forward(first, last, x, y):
        vectorize()
        for i in range(first, last):
            y[i] = function(x[i])

    @uncached
    def backward(first, last, x, g, dx):
        vectorize()
        for i in range(first, last):
            dx[i] = gradient(x[i], g[i])

    return forward, backward


def _gated_loops(function: Function, gradient: Function) -> tuple[Function, Function]:
    """Return the loops y = function(gate) * up, and those of the gradients of gate and up."""

    @uncached
    def forward(first, last, gate, up, y):
        vectorize()
        for i in range(first, last):
            y[i] = function(gate[i]) * up[i]

    @uncached
    def backward(first, last, gate, up, g, dgate, dup):
        vectorize()
        for i in range(first, last):
            dgate[i] = gradient(gate[i], g[i] * up[i])
            dup[i] = g[i] * function(gate[i])

    return forward, backward


_relu2_forward, _relu2_backward = _plain_loops(_relu2, _relu2_gradient)
_gelu_tanh_forward, _gelu_tanh_backward = _plain_loops(gelu_tanh, _gelu_tanh_gradient)
_silu_forward, _silu_backward = _plain_loops(silu, _silu_gradient)
_swiglu_forward, _swiglu_backward = _gated_loops(silu, _silu_gradient)
_reglu_forward, _reglu_backward = _gated_loops(_relu, _relu_gradient)
_geglu_forward, _geglu_backward = _gated_loops(gelu, _gelu_gradient)

KINDS = ("relu2", "gelu-tanh", "silu", "swiglu", "reglu", "geglu")
_RELU2, _GELU_TANH, _SILU, _SWIGLU, _REGLU, _GEGLU = range(len(KINDS))
_STRIDE = 64  # values: the share of a thread starts at a cache line, and at a step of the vectorized loop


@compiled
def _share(part, parts, count):
    steps = -(-count // _STRIDE)
    return steps * part // parts * _STRIDE, min(steps * (part + 1) // parts * _STRIDE, count)


@compiled
def _forward_part(part, parts, kind, x, up, y, count):
    (first, last), xs, ups, ys = _share(part, parts, count), float32_at(x), float32_at(up), float32_at(y)
    if kind == _RELU2:
        _relu2_forward(first, last, xs, ys)
    elif kind == _GELU_TANH:
        _gelu_tanh_forward(first, last, xs, ys)
    elif kind == _SILU:
        _silu_forward(first, last, xs, ys)
    elif kind == _SWIGLU:
        _swiglu_forward(first, last, xs, ups, ys)
    elif kind == _REGLU:
        _reglu_forward(first, last, xs, ups, ys)
    else:
        _geglu_forward(first, last, xs, ups, ys)


@compiled
def _backward_part(part, parts, kind, x, up, g, dx, dup, count):
    (first, last), xs, ups, gs = _share(part, parts, count), float32_at(x), float32_at(up), float32_at(g)
    dxs, dups = float32_at(dx), float32_at(dup)
    if kind == _RELU2:
        _relu2_backward(first, last, xs, gs, dxs)
    elif kind == _GELU_TANH:
        _gelu_tanh_backward(first, last, xs, gs, dxs)
    elif kind == _SILU:
        _silu_backward(first, last, xs, gs, dxs)
    elif kind == _SWIGLU:
        _swiglu_backward(first, last, xs, ups, gs, dxs, dups)
    elif kind == _REGLU:
        _reglu_backward(first, last, xs, ups, gs, dxs, dups)
    else:
        _geglu_backward(first, last, xs, ups, gs, dxs, dups)


@compiled
def forward(pool, kind, x, up, y, count):
    """Compute y of `count` values. Arrays are passed as addresses; `up` is 0 if the activation is not gated."""
    run_parallel(pool, _forward_part, (kind, x, up, y, count))


@compiled
def backward(pool, kind, x, up, g, dx, dup, count):
    """Compute dx and, if gated, dup from the gradient g of y."""
    run_parallel(pool, _backward_part, (kind, x, up, g, dx, dup, count))
