"""Elementwise kernels of the activations and their derivatives.

A forward kernel maps the input to the result; a backward kernel maps the input and the gradient of the result to the
gradient of the input. Gated activations also take a gate. NaN and infinity behave as in torch.
"""

from typing import NamedTuple

import numpy as np

from normscope.ops.fused.compiler import compiled, float32_at, fma, vectorize
from normscope.ops.fused.elementwise import ElementwiseKernel
from normscope.ops.fused.math_functions import normal_cdf_pdf, sigmoids, times_sigmoid

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


def _relu2_values(first, last, x, y, _c, _d, _e):
    vectorize()
    xs, ys = float32_at(x), float32_at(y)
    for i in range(first, last):
        positive = _relu(xs[i])
        ys[i] = positive * positive


def _relu2_slopes(first, last, x, g, dx, _d, _e):
    vectorize()
    xs, gs, dxs = float32_at(x), float32_at(g), float32_at(dx)
    for i in range(first, last):
        dxs[i] = _ZERO if xs[i] <= 0 else gs[i] * (_TWO * xs[i])


def _gelu_tanh_values(first, last, x, y, _c, _d, _e):
    vectorize()
    xs, ys = float32_at(x), float32_at(y)
    for i in range(first, last):
        ys[i] = gelu_tanh(xs[i])


def _gelu_tanh_slopes(first, last, x, g, dx, _d, _e):
    vectorize()
    xs, gs, dxs = float32_at(x), float32_at(g), float32_at(dx)
    for i in range(first, last):
        dxs[i] = gs[i] * _gelu_tanh_slope(xs[i])


def _silu_values(first, last, x, y, _c, _d, _e):
    vectorize()
    xs, ys = float32_at(x), float32_at(y)
    for i in range(first, last):
        ys[i] = silu(xs[i])


def _silu_slopes(first, last, x, g, dx, _d, _e):
    vectorize()
    xs, gs, dxs = float32_at(x), float32_at(g), float32_at(dx)
    for i in range(first, last):
        dxs[i] = gs[i] * _silu_slope(xs[i])


def _swiglu_values(first, last, gate, up, y, _d, _e):
    vectorize()
    gates, ups, ys = float32_at(gate), float32_at(up), float32_at(y)
    for i in range(first, last):
        ys[i] = silu(gates[i]) * ups[i]


def _swiglu_slopes(first, last, gate, up, g, dgate, dup):
    vectorize()
    gates, ups, gs, dgates, dups = float32_at(gate), float32_at(up), float32_at(g), float32_at(dgate), float32_at(dup)
    for i in range(first, last):
        dgates[i] = gs[i] * ups[i] * _silu_slope(gates[i])
        dups[i] = gs[i] * silu(gates[i])


def _reglu_values(first, last, gate, up, y, _d, _e):
    vectorize()
    gates, ups, ys = float32_at(gate), float32_at(up), float32_at(y)
    for i in range(first, last):
        ys[i] = _relu(gates[i]) * ups[i]


def _reglu_slopes(first, last, gate, up, g, dgate, dup):
    vectorize()
    gates, ups, gs, dgates, dups = float32_at(gate), float32_at(up), float32_at(g), float32_at(dgate), float32_at(dup)
    for i in range(first, last):
        dgates[i] = _ZERO if gates[i] <= 0 else gs[i] * ups[i]
        dups[i] = gs[i] * _relu(gates[i])


def _geglu_values(first, last, gate, up, y, _d, _e):
    vectorize()
    gates, ups, ys = float32_at(gate), float32_at(up), float32_at(y)
    for i in range(first, last):
        ys[i] = gelu(gates[i]) * ups[i]


def _geglu_slopes(first, last, gate, up, g, dgate, dup):
    vectorize()
    gates, ups, gs, dgates, dups = float32_at(gate), float32_at(up), float32_at(g), float32_at(dgate), float32_at(dup)
    for i in range(first, last):
        dgates[i] = gs[i] * ups[i] * _gelu_slope(gates[i])
        dups[i] = gs[i] * gelu(gates[i])


class ActivationKernels(NamedTuple):
    forward: ElementwiseKernel
    backward: ElementwiseKernel


KERNELS = {
    "relu2": ActivationKernels(ElementwiseKernel(_relu2_values), ElementwiseKernel(_relu2_slopes)),
    "gelu-tanh": ActivationKernels(ElementwiseKernel(_gelu_tanh_values), ElementwiseKernel(_gelu_tanh_slopes)),
    "silu": ActivationKernels(ElementwiseKernel(_silu_values), ElementwiseKernel(_silu_slopes)),
    "swiglu": ActivationKernels(ElementwiseKernel(_swiglu_values), ElementwiseKernel(_swiglu_slopes)),
    "reglu": ActivationKernels(ElementwiseKernel(_reglu_values), ElementwiseKernel(_reglu_slopes)),
    "geglu": ActivationKernels(ElementwiseKernel(_geglu_values), ElementwiseKernel(_geglu_slopes)),
}
