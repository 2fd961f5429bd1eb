"""In which precision should the reference norm run? Errors on hard inputs, and the time of each choice.

.venv/bin/python benchmarks/norm_precision.py
"""

import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor

from normscope import layer_norm
from normscope.ops.kernel_mode import reference_kernels

ROWS, WIDTH, REPEATS = 2048, 384, 101


def two_pass(x: Tensor) -> Tensor:
    centered = x - x.mean(-1, keepdim=True)
    return centered * torch.rsqrt(centered.square().mean(-1, keepdim=True) + 1e-5)


def two_pass_centered_twice(x: Tensor) -> Tensor:
    centered = x - x.mean(-1, keepdim=True)
    centered = centered - centered.mean(-1, keepdim=True)
    return centered * torch.rsqrt(centered.square().mean(-1, keepdim=True) + 1e-5)


def readable(x: Tensor) -> Tensor:
    with reference_kernels():
        return layer_norm(x)


FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "torch's layer_norm": lambda x: F.layer_norm(x, (x.shape[-1],)),
    "float32": two_pass,
    "float32, centered twice": two_pass_centered_twice,
    "normscope, readable": readable,
    "normscope, fused": layer_norm,
}


def hard_inputs() -> dict[str, Tensor]:
    normal = torch.randn(ROWS, WIDTH)
    outlier = normal.clone()
    outlier[:, -1] = 1e6
    return {
        "normal": normal,
        "mean 1e4, spread 1e-2": 1e4 + 1e-2 * normal,
        "scale 1e-20": 1e-20 * normal,
        "scale 1e30": 1e30 * normal,
        "one outlier of 1e6": outlier,
        "constant": torch.full_like(normal, 0.1),
    }


def times() -> list[float]:
    """Median time of a forward and backward pass of each variant, interleaved so that noise affects all."""
    x, gradient = torch.randn(ROWS, WIDTH, requires_grad=True), torch.randn(ROWS, WIDTH)
    found: list[list[float]] = [[] for _ in FORMS]
    for _ in range(REPEATS):
        for form, seconds in zip(FORMS.values(), found, strict=True):
            start = time.perf_counter()
            form(x).backward(gradient)
            seconds.append(time.perf_counter() - start)
    return [statistics.median(seconds) for seconds in found]


if __name__ == "__main__":
    torch.manual_seed(0)
    table = Table("input", *FORMS, title=f"largest error against float64, {ROWS} x {WIDTH} float32", box=None)
    for name, x in hard_inputs().items():
        exact = two_pass(x.double())
        errors = [(form(x).double() - exact).abs().max().item() for form in FORMS.values()]
        table.add_row(name, *(f"{error:.1e}" for error in errors))
    medians = times()
    table.add_row("time, forward + backward", *(f"{median / medians[0]:.1f} x" for median in medians))
    Console(width=120).print(table)
