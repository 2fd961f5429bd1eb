"""The functions behind the kernels, each against float64 over the whole range of float32."""

import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from normscope.ops.fused import math_functions as mathematics
from normscope.ops.fused.compiler import OPTIONS, float32_at, vectorize

Floats = NDArray[Any]
SMALLEST = float(np.finfo(np.float32).tiny)


def uncached(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled as the kernels are, but each time anew: numba's cache does not notice a change in what is called."""
    loop: Callable[..., Any] = numba.njit(function, **OPTIONS)
    return loop


@uncached
def _exp(x, y, count):  # type: ignore[no-untyped-def]
    vectorize()
    for i in range(count):
        float32_at(y)[i] = mathematics.exp(float32_at(x)[i])


@uncached
def _decay(x, y, count):  # type: ignore[no-untyped-def]
    vectorize()
    for i in range(count):
        float32_at(y)[i] = mathematics.exp_negative(abs(float32_at(x)[i]))


@uncached
def _tanh(x, y, count):  # type: ignore[no-untyped-def]
    vectorize()
    for i in range(count):
        float32_at(y)[i] = mathematics.tanh(float32_at(x)[i])


@uncached
def _sigmoid(x, y, count):  # type: ignore[no-untyped-def]
    vectorize()
    for i in range(count):
        float32_at(y)[i] = mathematics.sigmoid(float32_at(x)[i])


@uncached
def _rest_of_sigmoid(x, y, count):  # type: ignore[no-untyped-def]
    vectorize()
    for i in range(count):
        float32_at(y)[i] = mathematics.sigmoids(float32_at(x)[i])[1]


@uncached
def _share(x, y, count):  # type: ignore[no-untyped-def]
    vectorize()
    for i in range(count):
        float32_at(y)[i] = mathematics.normal_cdf_pdf(float32_at(x)[i])[0]


@uncached
def _density(x, y, count):  # type: ignore[no-untyped-def]
    vectorize()
    for i in range(count):
        float32_at(y)[i] = mathematics.normal_cdf_pdf(float32_at(x)[i])[1]


def over(function: Any, x: Floats) -> Floats:
    y = np.empty_like(x)
    function(x.ctypes.data, y.ctypes.data, x.size)
    return y


def stable_sigmoid(x: Floats) -> Floats:
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, e, 1.0) / (1 + e))


def normal_share(x: Floats) -> Floats:
    return np.array([math.erfc(-value / math.sqrt(2)) / 2 for value in x.tolist()])


FUNCTIONS: dict[str, tuple[Any, Callable[[Floats], Floats]]] = {
    "exp": (_exp, np.exp),
    "decay": (_decay, lambda x: np.exp(-np.abs(x))),
    "tanh": (_tanh, np.tanh),
    "sigmoid": (_sigmoid, stable_sigmoid),
    "rest of sigmoid": (_rest_of_sigmoid, lambda x: stable_sigmoid(-x)),
    "normal share": (_share, normal_share),
    "normal density": (_density, lambda x: np.exp(-x * x / 2) / math.sqrt(2 * math.pi)),
}
UNITS = {
    "exp": 1.1,
    "decay": 1.1,
    "tanh": 2.6,
    "sigmoid": 2.4,
    "rest of sigmoid": 2.6,
    "normal share": 4.6,
    "normal density": 2.7,
}
"""The largest error, in units in the last place."""

every_function = pytest.mark.parametrize("name", FUNCTIONS)


def values() -> Floats:
    """Numbers of every size, and many of those where the functions change."""
    random = np.random.default_rng(0)
    return np.concatenate([
        random.uniform(-3, 3, 40_000), random.uniform(-110, 110, 40_000), random.normal(0, 10, 20_000),
        np.exp(random.uniform(-100, 88, 20_000)), -np.exp(random.uniform(-100, 88, 20_000)),
    ]).astype(np.float32)  # fmt: skip


@every_function
def test_the_error_is_of_the_size_of_the_last_place(name: str) -> None:
    function, exactly = FUNCTIONS[name]
    x = values()
    with np.errstate(over="ignore", under="ignore"):
        wanted = exactly(x.astype(np.float64))
    found = over(function, x)
    with np.errstate(invalid="ignore"):  # infinity less infinity
        error = np.abs(found - wanted)
    small, large = np.abs(wanted) < 4 * SMALLEST, wanted > np.finfo(np.float32).max
    assert error[small].max() <= 4 * SMALLEST
    assert np.isposinf(found[large]).all()
    fair = ~small & ~large
    units = error[fair] / np.spacing(np.abs(wanted[fair]).astype(np.float32)).astype(np.float64)
    assert units.max() <= UNITS[name]


@every_function
def test_nan_infinity_and_zero(name: str) -> None:
    function, exactly = FUNCTIONS[name]
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 3e38, -3e38] * 8, dtype=np.float32)
    with np.errstate(over="ignore", under="ignore"):
        wanted = exactly(x.astype(np.float64)).astype(np.float32)
    found = over(function, x)
    np.testing.assert_array_equal(found, wanted)
    there = ~np.isnan(x)
    np.testing.assert_array_equal(np.signbit(found[there]), np.signbit(wanted[there]))


@every_function
def test_a_number_gives_the_same_bits_wherever_it_stands(name: str) -> None:
    """In the vectors of a loop and in what is left over at its end."""
    function, _ = FUNCTIONS[name]
    x = values()[:997]
    whole = over(function, x)
    for first, last in ((0, 1), (3, 20), (5, 70), (1, 997)):
        np.testing.assert_array_equal(over(function, x[first:last].copy()), whole[first:last])


def test_the_larger_of_two_numbers_is_nan_if_either_is() -> None:
    @uncached
    def maximum(a, b):  # type: ignore[no-untyped-def]
        return mathematics.maximum(np.float32(a), np.float32(b))

    pairs = [(1.0, 2.0), (2.0, 1.0), (-math.inf, 0.0), (math.nan, 1.0), (1.0, math.nan)]
    found = torch.tensor([maximum(a, b) for a, b in pairs])
    wanted = torch.stack([torch.maximum(torch.tensor(a), torch.tensor(b)) for a, b in pairs])
    torch.testing.assert_close(found, wanted, equal_nan=True, check_dtype=False)
