"""Rotary embedding of queries and keys, optionally after an RMS norm of each head.

Axes: x is (b, s, heads, e); cos and sin are (s, 1, e/2), or (b, s, 1, e/2) if rows have different positions.

| input                                                         | implementation                                   |
|---------------------------------------------------------------|--------------------------------------------------|
| float32, bfloat16, float16 on the CPU, float32 tables         | `rotary`: one pass over memory                   |
| float64, other devices, tables with gradients, large heads    | the reference functions below                    |

Results are the same. `normscope.ops.kernel_mode` decides whether kernels run at all.
"""

import torch
from torch import Tensor

from normscope.ops import kernel_mode, norm_reference
from normscope.ops.kernel_mode import Backend
from normscope.ops.norm_reference import Affine
from normscope.ops.numba_loader import kernels
from normscope.ops.statistic import RMS
from normscope.scope import Scope

MAX_HEAD_DIM = 1024
"""The largest head size that the kernels support."""

_HEADS = Scope.parse("b s h [e]")


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each head: (a, b) -> (a cos - b sin, a sin + b cos), where a and b are its halves."""
    if cos.dim() == 4:
        return apply_rotary(*_flatten_batch(x, cos, sin)).reshape(x.shape)
    backend = _select_backend(x, None, cos, sin)
    fused = None if backend == "reference" else kernels("rotary")
    if fused is None:
        return apply_rotary_reference(x, cos, sin)
    y: Tensor = fused.apply_rotary(x, cos, sin, backend)
    return y


def rms_norm_rotary(x: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    """Apply an RMS norm with a gain over each head, then the rotary embedding."""
    if cos.dim() == 4:
        x_in_line, cos, sin = _flatten_batch(x, cos, sin)
        return rms_norm_rotary(x_in_line, weight, cos, sin, eps).reshape(x.shape)
    backend = _select_backend(x, weight, cos, sin)
    fused = None if backend == "reference" else kernels("rotary")
    if fused is None:
        return rms_norm_rotary_reference(x, weight, cos, sin, eps)
    y: Tensor = fused.rms_norm_rotary(x, weight, cos, sin, eps, backend)
    return y


def _flatten_batch(x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Flatten rows with different positions into one row of b*s tokens, which the kernels support."""
    return x.flatten(0, 1)[None], cos.flatten(0, 1), sin.flatten(0, 1)


def _select_backend(x: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor) -> Backend:
    """Select the backend; the reference if the kernels do not support the input."""
    fits = (
        x.dtype in kernel_mode.SUPPORTED_DTYPES
        and (weight is None or weight.dtype in kernel_mode.SUPPORTED_DTYPES)
        and cos.dtype == sin.dtype == torch.float32
        and cos.shape == sin.shape == (x.shape[1], 1, x.shape[3] // 2)
        and cos.is_contiguous()
        and sin.is_contiguous()
        and not (cos.requires_grad or sin.requires_grad)
        and x.shape[-1] <= MAX_HEAD_DIM
        and x.numel() > 0
    )
    return kernel_mode.select_backend(x, weight, cos, sin) if fits else "reference"


def apply_rotary_reference(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Reference implementation of `apply_rotary`."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).to(x.dtype)


def rms_norm_rotary_reference(x: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    """Reference implementation of `rms_norm_rotary`."""
    affine = Affine(weight, None, (1, 1, 1, x.shape[-1]))
    y, _ = norm_reference.normalize_with_batch_statistics(
        x, _HEADS.bind(x.shape), statistic=RMS, eps=eps, affine=affine, mask=None
    )
    return apply_rotary_reference(y, cos, sin)
