"""How accurate a result has to be, in terms that hold on every instruction set and for every number of threads.

The last bits of a float32 sum depend on the order in which it is added up: on the width of the vectors, on whether
products and sums are fused, on the number of threads. So do those of torch's own operations. Two implementations that
are equally accurate then differ in their largest error by chance: measured with AVX-512, AVX2 and SSE kernels, by up to
1.9 times, and in the root mean square by up to 1.4 times. "No larger than torch's" is therefore stated with a margin
that covers this; a lost digit (a factor of ten) is far outside of it.

Where everything is computed in float64 and rounded once at the end, no margin is needed: half a unit in the last place.
"""

import math

import torch
from torch import Tensor


def ulp(value: float, dtype: torch.dtype) -> float:
    """The distance from a number to the next larger one of the type."""
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
    """The largest error is at most twice torch's plus two ulps, and the rms error 1.5 times plus a quarter of an ulp.

    An ulp is one of the largest exact value; or of `size`, if that is larger: the size of the terms of a sum that
    cancels. Where torch's result is not finite, its error counts as zero.
    """
    unit = ulp(max(exact.abs().max().item(), size), dtype)
    mine, other = (ours.double() - exact).abs(), (theirs.double() - exact).abs().nan_to_num(0.0, 0.0)
    largest, bound = mine.max().item(), 2 * other.max().item() + 2 * unit
    assert largest <= bound, f"{what} largest error: {largest:.3g} > {bound:.3g} ({unit:.3g} is an ulp)"
    rms, bound = (error.square().mean().sqrt().item() for error in (mine, other))
    bound = 1.5 * bound + unit / 4
    assert rms <= bound, f"{what} rms error: {rms:.3g} > {bound:.3g} ({unit:.3g} is an ulp)"


def assert_rounded_once(found: Tensor, exact: Tensor, dtype: torch.dtype = torch.float32, what: str = "") -> None:
    """No error is larger than half an ulp of the largest exact value (and 2% of that, for float64's own roundings)."""
    largest, bound = (found.double() - exact).abs().max().item(), 0.51 * ulp(exact.abs().max().item(), dtype)
    assert largest <= bound, f"{what}: {largest:.3g} > {bound:.3g}, half an ulp"
