"""Accuracy assertions that hold for every instruction set and number of threads.

The last bits of a float32 sum depend on summation order: on vector width, fused multiply-add and the number of threads.
This also holds for torch's operations. Two equally accurate implementations therefore differ in their errors: measured
with AVX-512, AVX2 and SSE kernels, by up to 1.9 times in the maximum and 1.4 times in the rms (4.8 times for a
cross-entropy with SSE). So "no larger than torch's" has a margin that covers this; losing a digit (a factor of ten) is
far outside it.

Results computed in float64 and rounded once need no margin: half an ulp.
"""

import math

import torch
from torch import Tensor

NO_AVX = torch.backends.cpu.get_cpu_capability() == "DEFAULT"
"""Whether the CPU, or the one that is emulated, is an x86 CPU from before 2013 (or no x86 CPU at all)."""


def ulp(value: float, dtype: torch.dtype) -> float:
    """Distance from a value to the next larger one in this dtype."""
    info = torch.finfo(dtype)
    smallest = info.tiny * info.eps
    return max(2.0 ** math.floor(math.log2(value)) * info.eps, smallest) if value else smallest


def assert_no_less_accurate(
    ours: Tensor,
    theirs: Tensor,
    exact: Tensor,
    dtype: torch.dtype = torch.float32,
    *,
    size: float = 0.0,
    what: str = "",
) -> None:
    """The largest error is at most 2x torch's plus two ulps, and the rms error 1.5x plus a quarter of an ulp.

    Without AVX, sums are in four lanes instead of sixteen, and products are rounded too: plus eight ulps, and one.

    The ulp is that of the largest exact value, or of `size` if larger (the magnitude of the terms of a sum that
    cancels). Where torch's result is not finite, its error counts as zero.
    """
    unit = ulp(max(exact.abs().max().item(), size), dtype)
    mine, other = (ours.double() - exact).abs(), (theirs.double() - exact).abs().nan_to_num(0.0, 0.0)
    largest, bound = mine.max().item(), 2 * other.max().item() + (8 if NO_AVX else 2) * unit
    assert largest <= bound, f"{what} largest error: {largest:.3g} > {bound:.3g} ({unit:.3g} is an ulp)"
    rms, bound = (error.square().mean().sqrt().item() for error in (mine, other))
    bound = 1.5 * bound + (unit if NO_AVX else unit / 4)
    assert rms <= bound, f"{what} rms error: {rms:.3g} > {bound:.3g} ({unit:.3g} is an ulp)"


def assert_rounded_once(found: Tensor, exact: Tensor, dtype: torch.dtype = torch.float32, what: str = "") -> None:
    """No error exceeds half an ulp of the largest exact value (plus 2% for rounding in float64).

    Without fused multiply-adds there is a second rounding, so one ulp.
    """
    share = 1.02 if NO_AVX else 0.51
    largest, bound = (found.double() - exact).abs().max().item(), share * ulp(exact.abs().max().item(), dtype)
    assert largest <= bound, f"{what}: {largest:.3g} > {bound:.3g}, {share} ulp"
