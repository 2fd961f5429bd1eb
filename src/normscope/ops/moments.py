"""Moments of a tensor's values, computed in one pass in float64.

On the CPU `fused/moments.py` has the kernels; on other devices, and without numba, torch computes them in chunks.
"""

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normscope.ops.operation import KernelError, run_kernel
from normscope.ops.registry import choose_moments
from normscope.ops.threads import thread_pool_for

_BLOCKS = 16  # fixed, so that the order of summation does not depend on the number of threads
_SMALLEST = 1 << 14  # values per block
_MIN_PARALLEL = 1 << 18
"""Fewer values than this take one thread less time than it takes others, which the next operation wakes again."""
_PART = 1 << 22


@dataclass(frozen=True)
class Moments:
    """Moments and extremes of a set of values. Non-finite values are counted and excluded.

    Moments can be merged, as if all values had been measured at once:

    >>> a, b = compute_moments(torch.tensor([1.0, 2.0])), compute_moments(torch.tensor([3.0, math.inf]))
    >>> both = a.merge(b)
    >>> both.mean, both.variance, both.maximum, both.non_finite
    (2.0, 0.6666666666666666, 3.0, 1)

    Args:
        count: number of finite values.
        mean: their mean.
        second, third, fourth: sums of powers of the deviations from the mean (M2, M3, M4).
        minimum, maximum: the extremes; inf and -inf if there are no values.
        zeros: number of zeros.
        non_finite: number of NaN and infinite values.
    """

    count: int = 0
    mean: float = 0.0
    second: float = 0.0
    third: float = 0.0
    fourth: float = 0.0
    minimum: float = math.inf
    maximum: float = -math.inf
    zeros: int = 0
    non_finite: int = 0

    @property
    def variance(self) -> float:
        return self.second / self.count if self.count else 0.0

    @property
    def rms(self) -> float:
        return math.sqrt(self.variance + self.mean * self.mean)

    @property
    def kurtosis(self) -> float:
        """The fourth standardized moment: 3 for a normal distribution, 0 for constant values."""
        square = self.variance * self.variance
        return self.fourth / self.count / square if square > 0 else 0.0

    def merge(self, other: "Moments") -> "Moments":
        """Return the moments of the union of both sets of values."""
        m, n, total = self.count, other.count, self.count + other.count
        zeros, non_finite = self.zeros + other.zeros, self.non_finite + other.non_finite
        if not m or not n:
            some = self if m else other
            return replace(some, zeros=zeros, non_finite=non_finite)
        off = other.mean - self.mean
        step = off / total
        return Moments(
            total,
            self.mean + n * step,
            self.second + other.second + off * step * m * n,
            self.third
            + other.third
            + off * step * step * m * n * (m - n)
            + 3 * step * (m * other.second - n * self.second),
            self.fourth
            + other.fourth
            + off * step**3 * m * n * (m * m - m * n + n * n)
            + 6 * step * step * (m * m * other.second + n * n * self.second)
            + 4 * step * (m * other.third - n * self.third),
            min(self.minimum, other.minimum),
            max(self.maximum, other.maximum),
            zeros,
            non_finite,
        )


def compute_moments(x: Tensor) -> Moments:
    """Compute the moments of all values of a real tensor."""
    x = _to_supported_dtype(x)
    if x.numel() == 0:
        return Moments()
    if choose_moments(x) == "fused":
        with suppress(KernelError):
            return moments_fused(x)
    total = Moments()
    for part in x.contiguous().reshape(-1).split(_PART):
        total = total.merge(moments_reference(part))
    return total


def moments_fused(x: Tensor) -> Moments:
    numbers, count = x.float(), x.numel()
    if not numbers.is_contiguous() and not torch.ops.aten.is_non_overlapping_and_dense(numbers):
        numbers = numbers.contiguous()  # the order of values does not matter
    blocks = min(_BLOCKS, -(-count // _SMALLEST))
    found: Any = np.zeros((blocks, 9))
    found[:, 5], found[:, 6] = math.inf, -math.inf
    run_kernel(
        "moments",
        "measure",
        thread_pool_for(count, None if count >= _MIN_PARALLEL else 1),
        numbers.data_ptr(),
        count,
        blocks,
        found.ctypes.data,
    )
    n, mean, second, third, fourth, minimum, maximum, zeros, non_finite = found[0].tolist()
    return Moments(int(n), mean, second, third, fourth, minimum, maximum, int(zeros), int(non_finite))


def _to_supported_dtype(x: Tensor) -> Tensor:
    """Convert 8-bit floats, for which torch has no arithmetic, to float32."""
    x = x.detach()
    return x.float() if x.is_floating_point() and x.element_size() == 1 else x


def moments_reference(x: Tensor) -> Moments:
    """Reference implementation, for one chunk."""
    finite = torch.isfinite(x)
    count, zeros = int(finite.sum()), int((x == 0).sum())
    non_finite = x.numel() - count
    if count == 0:
        return Moments(non_finite=non_finite)
    wide = x[finite] if non_finite else x
    wide = wide.double() if wide.device.type != "mps" else wide.cpu().double()  # MPS has no float64
    mean = wide.mean()
    off = wide - mean
    square = off * off
    sums = [square.sum(), (square * off).sum(), (square * square).sum(), wide.min(), wide.max()]
    second, third, fourth, minimum, maximum = (float(value) for value in sums)
    return Moments(count, float(mean), second, third, fourth, minimum, maximum, zeros, non_finite)


class ColumnStatistics:
    """Per-column statistics of matrices (rows, d), to find dead units and outlier features.

    >>> columns = ColumnStatistics(3)
    >>> columns.add(torch.tensor([[1.0, 0.0, -4.0], [2.0, 0.0, 0.0]]))
    >>> columns.rows, columns.nonzero.tolist(), columns.max_abs.tolist()
    (2, [2.0, 0.0, 1.0], [2.0, 0.0, 4.0])
    """

    def __init__(self, d: int) -> None:
        self.rows = 0
        self.squares = np.zeros(d, dtype=np.float64)
        self.max_abs = np.zeros(d, dtype=np.float32)
        self.nonzero = np.zeros(d, dtype=np.float64)

    def add(self, x: Tensor) -> None:
        """Accumulate a matrix (rows, d)."""
        x = _to_supported_dtype(x)
        rows, d = x.shape
        self.rows += rows
        if not x.numel():
            return
        if choose_moments(x) == "fused":
            numbers, nonzero = x.float().contiguous(), np.zeros(d, dtype=np.float32)
            addresses = (array.ctypes.data for array in (self.squares, self.max_abs, nonzero))
            with suppress(KernelError):
                run_kernel("moments", "columns", numbers.data_ptr(), rows, d, *addresses)
                self.nonzero += nonzero
                return
        sizes = x.abs().float()
        self.squares += sizes.double().square().sum(0).cpu().numpy()
        self.max_abs = np.fmax(self.max_abs, sizes.amax(0).cpu().numpy())
        self.nonzero += (x != 0).sum(0).cpu().numpy()
