"""is_finite agrees with torch.isfinite."""

import math

import pytest
import torch

from normscope.ops.finite import is_finite


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_bad_value_anywhere(dtype: torch.dtype, bad: float) -> None:
    for size in (1, 7, 1000):
        for position in {0, size // 2, size - 1}:
            values = torch.linspace(-3, 3, size, dtype=dtype)
            assert is_finite(values)
            values[position] = bad
            assert not is_finite(values)
            assert not is_finite(values[None].expand(2, -1))


@pytest.mark.parametrize("values", [torch.zeros(0), torch.zeros(2, 0), torch.tensor(1.0), torch.tensor([2**63 - 1])])
def test_empty_tensors_scalars_and_integers_are_finite(values: torch.Tensor) -> None:
    assert is_finite(values)
