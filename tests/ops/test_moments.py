"""Moments in one pass: against float64, however the numbers lie in memory, and put together from parts."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from normscope.ops import moments as kernel
from normscope.ops.kernel_mode import reference_kernels
from normscope.ops.moments import ColumnStatistics, Moments, compute_moments
from tests.support import randn

SHAPES = ((1,), (7,), (4095,), (4096,), (4097,), (3, 70_000), (17, 5, 9))


def exact(x: Tensor) -> dict[str, float]:
    """The figures by numpy, in long double where there is one."""
    numbers = x.double().numpy().ravel().astype(np.longdouble)
    real = numbers[np.isfinite(numbers)]
    off = real - real.mean()
    variance = (off**2).mean()
    return {
        "count": len(real),
        "mean": float(real.mean()),
        "variance": float(variance),
        "rms": float(np.sqrt((real**2).mean())),
        "kurtosis": float((off**4).mean() / variance**2) if variance > 0 else 0.0,
        "minimum": float(real.min()),
        "maximum": float(real.max()),
        "zeros": int((numbers == 0).sum()),
        "non_finite": len(numbers) - len(real),
    }


def assert_equal_to_exact(found: Moments, x: Tensor) -> None:
    size = 1 + float(x.abs().nan_to_num().max())
    for name, wanted in exact(x).items():
        assert getattr(found, name) == pytest.approx(wanted, rel=1e-9, abs=1e-12 * size), name


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_moments_of_normal_numbers(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = (3 * randn(*shape) - 1).to(dtype)
    assert_equal_to_exact(compute_moments(x), x)
    with reference_kernels():
        assert_equal_to_exact(compute_moments(x), x)


def test_numbers_far_from_zero_keep_their_variance() -> None:
    x = (randn(50_000) + 1e4).float()
    assert compute_moments(x).variance == pytest.approx(float(x.double().var(correction=0)), rel=1e-9)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_number_of_threads_changes_no_bit(threads: int) -> None:
    x = randn(300_001).float()
    before = torch.get_num_threads()
    try:
        alone = compute_moments(x)
        torch.set_num_threads(threads)
        assert compute_moments(x) == alone
    finally:
        torch.set_num_threads(before)


def test_what_is_not_finite_is_counted_and_left_out() -> None:
    x = torch.tensor([1.0, -math.inf, math.nan, 3.0, 0.0, -0.0, math.inf, 1e-45])
    for found in (compute_moments(x), kernel.moments_reference(x)):
        assert (found.count, found.non_finite, found.zeros) == (5, 3, 2)
        assert (found.minimum, found.maximum) == (0.0, 3.0)
        assert found.mean == pytest.approx(0.8)
    nothing = compute_moments(torch.tensor([math.nan, math.inf]))
    assert (nothing.count, nothing.non_finite, nothing.rms) == (0, 2, 0.0)
    assert compute_moments(torch.empty(0)) == Moments()


@pytest.mark.parametrize("value", [-2.5, 0.0, 3.4e38, -3.4e38, 1e-40, -1e-40])
def test_extremes_of_every_sign_and_size(value: float) -> None:
    found = compute_moments(torch.tensor([value]))
    assert found.minimum == found.maximum == pytest.approx(value, rel=1e-6)


def test_memory_in_any_order() -> None:
    x = randn(6, 5, 4, 3).float()
    views = (x.permute(2, 0, 3, 1), x.to(memory_format=torch.channels_last), x[::2, :, 1:], x[:1].expand(9, 5, 4, 3))
    for view in views:
        assert_equal_to_exact(compute_moments(view), view.contiguous())


numbers = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40)


@given(numbers, numbers)
@settings(max_examples=60, deadline=None)
def test_two_halves_make_the_whole(a: list[float], b: list[float]) -> None:
    both = compute_moments(torch.tensor(a)).merge(compute_moments(torch.tensor(b)))
    whole = compute_moments(torch.tensor(a + b))
    size = max(map(abs, a + b)) + 1e-30
    assert (both.count, both.minimum, both.maximum, both.zeros) == (
        whole.count,
        whole.minimum,
        whole.maximum,
        whole.zeros,
    )
    for power, name in enumerate(("mean", "second", "third", "fourth"), start=1):
        assert getattr(both, name) == pytest.approx(
            getattr(whole, name), rel=1e-9, abs=1e-10 * size**power * whole.count
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("d", [1, 3, 16, 67])
def test_columns(d: int, dtype: torch.dtype) -> None:
    first, second = randn(9, d).to(dtype), randn(4, d, seed=1).to(dtype)
    first[:, 0] = second[:, 0] = 0
    columns = ColumnStatistics(d)
    columns.add(first)
    columns.add(second)
    both = torch.cat([first, second]).double()
    np.testing.assert_allclose(columns.squares, both.square().sum(0), rtol=1e-6)
    np.testing.assert_allclose(columns.max_abs, both.abs().amax(0), rtol=1e-6)
    np.testing.assert_array_equal(columns.nonzero, (both != 0).sum(0))
    assert columns.rows == 13
