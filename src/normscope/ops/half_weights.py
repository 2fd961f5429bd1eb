"""Products of float32 activations with weights that are stored in bfloat16 or float16, on the CPU.

Few CPUs multiply these types fast, some crash. So a weight is converted to float32 a few rows at a time, which costs
little beside the product, and only as much memory as those rows. The backward pass converts it again.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from normscope.ops.kernel_mode import is_function_transform_active
from normscope.runtime.precision import probe_bfloat16

HALF_DTYPES = (torch.bfloat16, torch.float16)
_CHUNK = 1 << 22
"""Elements of a weight that are converted at a time."""
_MIN_PROBED = 1 << 20
"""Elements from which a weight is worth the probe, which takes seconds."""
_MIN_SPEEDUP = 2.0


def is_stored_in_half(weight: Tensor) -> bool:
    """Whether activations are float32 although a weight is not: on the CPU, outside of autocast."""
    return weight.dtype in HALF_DTYPES and weight.device.type == "cpu" and not torch.is_autocast_enabled("cpu")


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute x weight^T + bias in float32 for a weight of another type, with the same gradients.

    >>> x, weight = torch.randn(2, 3), torch.randn(5, 3).bfloat16()
    >>> torch.equal(linear(x, weight), x @ weight.float().T)
    True
    """
    if is_function_transform_active() or torch.compiler.is_compiling():
        y = F.linear(x, weight.to(x.dtype))
    elif weight.numel() >= _MIN_PROBED and _is_fast(weight.dtype):
        y = F.linear(x.to(weight.dtype), weight).to(x.dtype)
    else:
        y = _Product.apply(x, weight)
    return y if bias is None else y + bias


def _is_fast(dtype: torch.dtype) -> bool:
    return dtype == torch.bfloat16 and (probe_bfloat16().ratio or 0.0) >= _MIN_SPEEDUP


class _Product(torch.autograd.Function):
    """x weight^T."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        parts = [F.linear(x, part.to(x.dtype)) for part in weight.split(_rows(weight))]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        dx = dweight = None
        if ctx.needs_input_grad[0]:
            rows = _rows(weight)
            parts = zip(dy.split(rows, dim=-1), weight.split(rows), strict=True)
            dx = sum((part @ converted.to(dy.dtype) for part, converted in parts), torch.zeros_like(x))
        if ctx.needs_input_grad[1]:
            dweight = (dy.flatten(0, -2).t() @ x.flatten(0, -2)).to(weight.dtype)
        return dx, dweight


def _rows(weight: Tensor) -> int:
    return max(1, _CHUNK // max(1, weight.shape[1]))
