"""Vectorizable float32 implementations of exp, tanh, sigmoid and the normal distribution.

The C library's functions are scalar. These have no branches and no calls, so LLVM vectorizes loops over them. Each
reduces its argument to a small range and evaluates a polynomial there. The error is at most one to three ulps for every
float32, and five ulps in the tail of the normal distribution. NaN propagates; exponentials below 2^-125.5 are flushed
to zero, because denormals are slow.

The coefficients were found with numpy: interpolation in float64 at Chebyshev nodes of the interval, then rounding to
float32. `tests/ops/test_math_functions.py` measures the error.
"""

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from normscope.ops.fused.compiler import HAS_FMA, compiled, fma, instruction

_ONE, _TWO, _HALF = np.float32(1.0), np.float32(2.0), np.float32(0.5)

# x = n ln 2 + r. The upper part of ln 2 has 16 bits, so that its product with n is exact.
_PER_OCTAVE = np.float32(1 / math.log(2))
_LN2_HIGH = np.float32(round(math.log(2) * 2**16) / 2**16)
_LN2_LOW = np.float32(math.log(2) - round(math.log(2) * 2**16) / 2**16)
# Adding a number of this size rounds to an integer, which is then in the low bits of the mantissa.
# The 126 biases it: shifted into the exponent bits, n gives 2^(n - 1). Half, so that n can be 128.
_ROUNDER = np.float32(1.5 * 2**23 + 126)
_EXP_LOWEST, _EXP_HIGHEST = np.float32(-87.5), np.float32(89.0)  # where it is zero, and where it is infinite

# (exp(r) - 1 - r) / r^2 for |r| <= ln(2) / 2, from the constant up
_E0, _E1, _E2, _E3, _E4 = (
    np.float32(c) for c in (0.5, 0.16666576266289, 0.041666556149721, 0.0083631789311767, 0.00139261840377)
)

_TANH_HIGHEST = np.float32(10.0)  # from 9.02 on, tanh is one in float32

_NORMAL_HIGHEST = np.float32(13.2)  # the square root of 2 * 87.12: beyond it the tail of the distribution is zero
_DENSITY_AT_ZERO = np.float32(1 / math.sqrt(2 * math.pi))
# (a + 2) R(a) for 0 <= a <= 15 as a polynomial in (a - 2) / (a + 2), from the constant up; see `normal_cdf_pdf`
_T0, _T1, _T2, _T3, _T4, _T5, _T6, _T7, _T8, _T9, _T10 = (
    np.float32(c)
    for c in (
        0.67240798473358, -0.33140447735786, 0.028798704966903, 0.036719594150782, -0.00048652006080374,
        -0.0067403330467641, -0.0018769744783640, 0.00086095777805895, 0.00069966807495803, 4.6797209506622e-05,
        -6.0329952248139e-05,
    )
)  # fmt: skip


_AS_WRITTEN = ("contract",)
"""Fast-math flags of operations that must not be reordered. Without any flags, numba would set its own."""


def _call_of_two(name: str) -> Any:
    """Return an LLVM intrinsic of two float32 numbers."""

    @instruction(types.float32, types.float32, types.float32)
    def function(builder: Any, a: Any, b: Any) -> Any:
        called = builder.module.declare_intrinsic(name, [a.type], ir.FunctionType(a.type, [a.type, b.type]))
        return builder.call(called, [a, b])

    return function


_with_sign_of = _call_of_two("llvm.copysign")
maximum = _call_of_two("llvm.maximum")
"""The maximum of two numbers; NaN if either is NaN. Unlike comparisons, LLVM vectorizes it in reductions."""


@instruction(types.float32, types.float32, types.float32)
def _minus(builder: Any, a: Any, b: Any) -> Any:
    """a - b, never combined with the operation that computed a."""
    return builder.fsub(a, b, flags=_AS_WRITTEN)


@instruction(types.float32, types.float32)
def _half_power(builder: Any, shifted: Any) -> Any:
    """2^(n - 1), where the low bits of `shifted` hold n + 126, which is shifted into the exponent bits."""
    bits = ir.IntType(32)
    return builder.bitcast(builder.shl(builder.bitcast(shifted, bits), bits(23)), ir.FloatType())


@compiled
def _reduce(x):
    """Range reduction: return r of x = n ln 2 + r, and 2^(n - 1)."""
    shifted = fma(x, _PER_OCTAVE, _ROUNDER)
    n = _minus(shifted, _ROUNDER)
    return fma(n, -_LN2_LOW, fma(n, -_LN2_HIGH, x)), _half_power(shifted)


@compiled
def _small_expm1(r):
    p = fma(fma(fma(fma(_E4, r, _E3), r, _E2), r, _E1), r, _E0)
    return fma(r * r, p, r)


@compiled
def _exp_in_range(x):
    """exp of a value within the bounds, or NaN."""
    r, half_power = _reduce(x)
    return fma(_TWO, _small_expm1(r), _TWO) * half_power


@compiled
def exp(x):
    x = _EXP_LOWEST if x < _EXP_LOWEST else x
    return _exp_in_range(_EXP_HIGHEST if x > _EXP_HIGHEST else x)


@compiled
def exp_negative(a):
    """exp(-a) for a >= 0, which needs one bound less than exp."""
    return _exp_in_range(-(-_EXP_LOWEST if a > -_EXP_LOWEST else a))


@compiled
def tanh(x):
    """With e = exp(-2 |x|), and the sign of x: (1 - e) / (1 + e) near zero, else 1 - 2 e / (1 + e).

    Near zero, where e is close to 1, it computes 1 - e; elsewhere it computes the difference from 1.
    """
    size = abs(x)
    size = _TANH_HIGHEST if size > _TANH_HIGHEST else size
    r, half_power = _reduce(-_TWO * size)
    part, power = _small_expm1(r), _TWO * half_power
    e = fma(power, part, power)
    is_near = size < _HALF
    share = (fma(-power, part, _ONE - power) if is_near else _TWO * e) / (_ONE + e)
    return _with_sign_of(share if is_near else _ONE - share, x)


@compiled
def sigmoids(x):
    """Return sigmoid(x) and sigmoid(-x), both without cancellation."""
    e = exp_negative(abs(x))
    large = _ONE / (_ONE + e)
    small = e * large
    return (small, large) if x < 0 else (large, small)


@compiled
def times_sigmoid(x, u):
    """x * sigmoid(u), with one rounding less than the product."""
    e = exp_negative(abs(u))
    return (x * e if u < 0 else x) / (_ONE + e)


@compiled
def sigmoid(x):
    return times_sigmoid(_ONE, x)


@compiled
def _slow_part_of_tail(y):
    p = fma(fma(fma(fma(fma(_T10, y, _T9), y, _T8), y, _T7), y, _T6), y, _T5)
    return fma(fma(fma(fma(fma(p, y, _T4), y, _T3), y, _T2), y, _T1), y, _T0)


@compiled
def normal_cdf_pdf(x):
    """Return the CDF and the PDF of the standard normal distribution at x.

    With a = |x| the share beyond a is exp(-a^2 / 2) R(a), where R falls slowly, from 1/2 to about 1 / (a sqrt(2 pi)).
    (a + 2) R(a) is a polynomial in (a - 2) / (a + 2).
    """
    a = abs(x)
    a = _NORMAL_HIGHEST if a > _NORMAL_HIGHEST else a
    square = a * a
    # The rounding error of the square, which the exponential would amplify.
    rest = fma(a, a, -square) if HAS_FMA else np.float32(np.float64(a) * np.float64(a) - np.float64(square))
    e = _exp_in_range(-_HALF * square)
    e = fma(e, -_HALF * rest, e)
    t = _ONE / (a + _TWO)
    tail = e * (t * _slow_part_of_tail((a - _TWO) * t))
    return tail if x < 0 else _ONE - tail, e * _DENSITY_AT_ZERO
