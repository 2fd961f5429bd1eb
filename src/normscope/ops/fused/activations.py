"""Elementwise kernels of the activations and their derivatives.

A forward kernel maps the input to the result; a backward kernel maps the input and the gradient of the result to the
gradient of the input. Gated activations also take a gate. NaN and infinity behave as in torch.
"""

from collections.abc import Sequence

import numpy as np

from normscope.ops.fused.compiler import Function, compiled, float32_at, fma, uncached, vectorize
from normscope.ops.fused.math_functions import normal_cdf_pdf, sigmoids, times_sigmoid
from normscope.ops.fused.parallel import run_parallel, share

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
def _bounded_square(x):
    square = x * x
    return _SQUARE_HIGHEST if square > _SQUARE_HIGHEST else square


@compiled
def gelu_tanh(x):
    return times_sigmoid(x, x * fma(_B, _bounded_square(x), _A))


@compiled
def silu(x):
    return times_sigmoid(x, x)


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
    share_below, density = normal_cdf_pdf(x)
    return v * fma(x, density, share_below)


@compiled
def _gelu_tanh_gradient(x, v):
    square = _bounded_square(x)
    up, down = sigmoids(x * fma(_B, square, _A))
    return v * fma(x * (up * down), fma(_THREE * _B, square, _A), up)


@compiled
def _silu_gradient(x, v):
    up, down = sigmoids(x)
    return v * (up * fma(x, down, _ONE))


def _plain(function: Function, gradient: Function) -> tuple[Function, Function]:
    """Return the loops y = function(x) and dx = gradient(x, dy), with both functions inlined."""

    @uncached
    def forward(first, last, x, up, y):
        vectorize()
        for i in range(first, last):
            y[i] = function(x[i])

    @uncached
    def backward(first, last, x, up, dy, dx, dup):
        vectorize()
        for i in range(first, last):
            dx[i] = gradient(x[i], dy[i])

    return forward, backward


def _gated(function: Function, gradient: Function) -> tuple[Function, Function]:
    """Return the loops y = function(x) * up, and those of the gradients of x and up."""

    @uncached
    def forward(first, last, x, up, y):
        vectorize()
        for i in range(first, last):
            y[i] = function(x[i]) * up[i]

    @uncached
    def backward(first, last, x, up, dy, dx, dup):
        vectorize()
        for i in range(first, last):
            dx[i] = gradient(x[i], dy[i] * up[i])
            dup[i] = dy[i] * function(x[i])

    return forward, backward


_LOOPS = {
    "relu2": _plain(_relu2, _relu2_gradient),
    "gelu-tanh": _plain(gelu_tanh, _gelu_tanh_gradient),
    "silu": _plain(silu, _silu_gradient),
    "swiglu": _gated(silu, _silu_gradient),
    "reglu": _gated(_relu, _relu_gradient),
    "geglu": _gated(gelu, _gelu_gradient),
}
KINDS = tuple(_LOOPS)


def _choice(loops: Sequence[Function]) -> Function:
    """Return a function that runs the loop of a number."""
    loop = loops[0]
    if len(loops) == 1:
        return uncached(lambda number, *arguments: loop(*arguments))
    others = _choice(loops[1:])

    @uncached
    def run(number, *arguments):
        if number == 0:
            loop(*arguments)
        else:
            others(number - 1, *arguments)

    return run


_run_forward = _choice([forward for forward, _ in _LOOPS.values()])
_run_backward = _choice([backward for _, backward in _LOOPS.values()])
_STRIDE = 64  # values: the share of a thread starts at a cache line, and at a step of the vectorized loop


@compiled
def _bounds(part, parts, count):
    mine = share(part, parts, -(-count // _STRIDE))
    return mine.start * _STRIDE, min(mine.stop * _STRIDE, count)


@compiled
def _forward_part(part, parts, kind, x, up, y, count):
    first, last = _bounds(part, parts, count)
    _run_forward(kind, first, last, float32_at(x), float32_at(up), float32_at(y))


@compiled
def _backward_part(part, parts, kind, x, up, dy, dx, dup, count):
    (first, last), xs, ups, dys = _bounds(part, parts, count), float32_at(x), float32_at(up), float32_at(dy)
    _run_backward(kind, first, last, xs, ups, dys, float32_at(dx), float32_at(dup))


@compiled
def forward(pool, kind, arrays, count):
    """Compute y of `count` values, for an activation of KINDS.

    Args:
        arrays: addresses of x, up (0 if the activation is not gated) and y.
    """
    run_parallel(pool, _forward_part, (kind, *arrays, count))


@compiled
def backward(pool, kind, arrays, count):
    """Compute gradients. The arrays are x, up, the gradient dy of y, dx and dup, where up and dup may be 0."""
    run_parallel(pool, _backward_part, (kind, *arrays, count))
