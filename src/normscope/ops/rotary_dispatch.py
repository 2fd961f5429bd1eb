"""Turning queries and keys by their places, with or without the rms norm of each head before it.

Axes: x is (b, s, heads, e); cos and sin are (s, 1, e/2), one row of angles for each place, or (b, s, 1, e/2) where the
rows of a batch stand at places of their own.

| what                                                          | form                                             |
|---------------------------------------------------------------|--------------------------------------------------|
| float32, bfloat16, float16 on the CPU, tables of float32      | `rotary`: one pass over memory, there and back   |
| float64, other devices, learnt tables, huge heads             | the steps below, in plain torch                  |

Both give the same numbers. `normscope.ops.kernel_mode` says when kernels may run at all.
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
"""The largest e that the kernels have room for."""

_HEADS = Scope.parse("b s h [e]")


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """(a, b) -> (a cos - b sin, a sin + b cos), a and b the halves of a head."""
    if cos.dim() == 4:
        return apply_rotary(*_flatten_batch(x, cos, sin)).reshape(x.shape)
    backend = _select_backend(x, None, cos, sin)
    fused = None if backend == "reference" else kernels("rotary")
    if fused is None:
        return apply_rotary_reference(x, cos, sin)
    y: Tensor = fused.apply_rotary(x, cos, sin, backend)
    return y


def rms_norm_rotary(x: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    """Each head over its root mean square, times a gain along e, and turned."""
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
    """Rows at places of their own are one row of b*s tokens whose places jump: no loop has to know of them."""
    return x.flatten(0, 1)[None], cos.flatten(0, 1), sin.flatten(0, 1)


def _select_backend(x: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor) -> Backend:
    """How it is to be computed: the steps, wherever the kernels do not fit."""
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
    """The readable form."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).to(x.dtype)


def rms_norm_rotary_reference(x: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    """The readable form: first the one, then the other."""
    affine = Affine(weight, None, (1, 1, 1, x.shape[-1]))
    y, _ = norm_reference.normalize_with_batch_statistics(
        x, _HEADS.bind(x.shape), statistic=RMS, eps=eps, affine=affine, mask=None
    )
    return apply_rotary_reference(y, cos, sin)
